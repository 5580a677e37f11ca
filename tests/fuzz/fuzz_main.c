/* fuzz_main.c: runs a fuzz target without libFuzzer: fuzz_NAME [-n MUTATIONS] [-s SEED] FILE|FOLDER ...
 * Every file is an input; with -n so many mutations of these are too. The input of a
 * crash is kept in fuzz_NAME.last. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

enum { MAX_BYTES = 1 << 20, MAX_FILES = 4096, MAX_CHANGES = 8 };

typedef struct input {
    uint8_t *data;
    size_t n;
} input;

static input inputs[MAX_FILES];
static int n_inputs;
static uint64_t state = 1;

static uint64_t draw(void)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void add_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || n_inputs == MAX_FILES) {
        fprintf(stderr, "fuzz: cannot take %s\n", path);
        exit(1);
    }
    input *i = &inputs[n_inputs++];
    i->data = malloc(MAX_BYTES);
    i->n = i->data ? fread(i->data, 1, MAX_BYTES, f) : 0;
    fclose(f);
}

static void add(const char *path)
{
    DIR *d = opendir(path);
    if (!d) {
        add_file(path);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            add_file(inner);
    }
    closedir(d);
}

/* Changes a few places of x: bits, bytes, lengths, pieces of another input. */
static void mutate(input *x)
{
    static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '[', ',', '-', '9', '\\'};
    for (uint64_t k = 1 + draw() % MAX_CHANGES; k > 0; k--) {
        const size_t at = x->n ? draw() % x->n : 0;
        const input *other = &inputs[draw() % (uint64_t)n_inputs];
        const size_t from = other->n ? draw() % other->n : 0;
        size_t n = 1 + draw() % 16;
        switch (x->n ? draw() % 6 : 4) {
        case 0: x->data[at] ^= (uint8_t)(1u << draw() % 8); break;
        case 1: x->data[at] = telling[draw() % sizeof telling]; break;
        case 2: x->data[at] = (uint8_t)draw(); break;
        case 3: /* out */
            n = n < x->n - at ? n : x->n - at;
            memmove(x->data + at, x->data + at + n, x->n - at - n);
            x->n -= n;
            break;
        case 4: /* in */
            n = n < other->n - from ? n : other->n - from;
            if (x->n + n > MAX_BYTES)
                break;
            memmove(x->data + at + n, x->data + at, x->n - at);
            memcpy(x->data + at, other->data + from, n);
            x->n += n;
            break;
        default: x->n = draw() % 8 ? x->n : at; break;
        }
    }
}

static char kept[4096];
static input current;

/* On the way down: keeps what was run. */
static void fall(int sig)
{
    const int fd = open(kept, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd >= 0 && write(fd, current.data, current.n) == (ssize_t)current.n)
        close(fd);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void run(const uint8_t *data, size_t n)
{
    memmove(current.data, data, n);
    current.n = n;
    (void)LLVMFuzzerTestOneInput(current.data, n);
}

int main(int argc, char **argv)
{
    uint64_t mutations = 0;
    int o;
    while ((o = getopt(argc, argv, "n:s:")) != -1)
        if (o == 'n')
            mutations = strtoull(optarg, NULL, 10);
        else if (o == 's')
            state = strtoull(optarg, NULL, 10);
    for (int i = optind; i < argc; i++)
        add(argv[i]);
    if (!n_inputs) {
        fprintf(stderr, "fuzz: no inputs\n");
        return 1;
    }
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    input x = {malloc(MAX_BYTES), 0};
    current.data = malloc(MAX_BYTES);
    if (!x.data || !current.data)
        return 1;
    snprintf(kept, sizeof kept, "%s.last", argv[0]);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], fall);
    for (int i = 0; i < n_inputs; i++)
        run(inputs[i].data, inputs[i].n);
    for (uint64_t k = 0; k < mutations; k++) {
        const input *from = &inputs[draw() % (uint64_t)n_inputs];
        memcpy(x.data, from->data, from->n);
        x.n = from->n;
        mutate(&x);
        run(x.data, x.n);
    }
    printf("%d seeds, %" PRIu64 " mutations\n", n_inputs, mutations);
    free(x.data);
    free(current.data);
    for (int i = 0; i < n_inputs; i++)
        free(inputs[i].data);
    return 0;
}

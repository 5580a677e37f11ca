/* fault_run.c: runs a command again and again, each time with another of its calls made to fail by
 * fault_shim.c, and looks at how it ends:
 *     fault_run SHIM N|all NAME COMMAND ...
 * in an empty folder; COMMAND may write the file "out" there, and nothing else. N: how many of a
 * call's numbers are tried, spread evenly and beginning with the first; NAME is for messages.
 * Right is: exit code 0 with the output and the file of a run without faults (the program can do
 * without), or exit code 1 with a line "octet: ..." and no file at all. Never a signal, never more
 * than TIMEOUT seconds. A call that does a part of its work only must not change anything. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT = 60 };

static const struct {
    const char *name, *what;
} faults[] = {{"malloc", "12"},    {"mmap", "12"},      {"mmap", "19"},     {"open", "24"},
              {"open", "13"},      {"read", "5"},       {"read", "short"},  {"write", "28"},
              {"write", "short"},  {"pread", "5"},      {"pread", "short"}, {"pwrite", "28"},
              {"pwrite", "5"},     {"pwrite", "short"}, {"rename", "13"},   {"fsync", "5"},
              {"fallocate", "28"}, {"fallocate", "95"}, {"ftruncate", "5"}, {"mbind", "12"},
              {"thread", "11"}};

typedef struct result {
    char *out, *err, *file; /* standard output and error, "out"; NULL: there is none */
    size_t n_out, n_err, n_file;
    int status;
    int n_files; /* in the folder, "out" apart */
} result;

static char dir[] = "fault-XXXXXX", where[4096];

static char *path_of(const char *name)
{
    static char text[4][4200];
    static int i;
    i = (i + 1) % 4;
    snprintf(text[i], sizeof text[i], "%s%s", where, name);
    return text[i];
}

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "r");
    *n = 0;
    if (!f)
        return NULL;
    char *text = NULL;
    for (size_t room = 1 << 16;; room *= 2) {
        text = realloc(text, room + 1);
        if (!text)
            abort();
        *n += fread(text + *n, 1, room - *n, f);
        if (*n < room)
            break;
    }
    fclose(f);
    text[*n] = 0;
    return text;
}

/* How much memory there is changes from run to run; and `octet info` says what it could not find
 * out of the machine. */
static void drop_machine(char *text, size_t *n)
{
    static const char *const words[] = {"memory", "  cpu  ", "  threads  ", "GPU", "driver"};
    for (char *line = text; line && *line;) {
        char *next = strchr(line, '\n');
        next = next ? next + 1 : line + strlen(line);
        bool dropped = false;
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            const char *word = strstr(line, words[i]);
            dropped = dropped || (word && word < next);
        }
        if (dropped)
            memmove(line, next, strlen(next) + 1);
        else
            line = next;
    }
    *n = text ? strlen(text) : 0;
}

static void child(const char *shim, const char *fault, char **command)
{
    int null = open("/dev/null", O_RDONLY), out = creat(path_of(".stdout"), 0666),
        err = creat(path_of(".stderr"), 0666);
    if (null < 0 || out < 0 || err < 0 || chdir(dir) != 0)
        _exit(98);
    dup2(null, 0);
    dup2(out, 1);
    dup2(err, 2);
    setenv("OCT_FAULT", fault, 1);
    setenv("OCT_FAULT_COUNT", path_of(".count"), 1);
    setenv("LD_PRELOAD", shim, 1);
    execv(command[0], command);
    _exit(98);
}

static result run(const char *shim, const char *fault, char **command)
{
    result r = {0};
    unlink(path_of(".count"));
    pid_t pid = fork();
    if (pid == 0)
        child(shim, fault, command);
    time_t until = time(NULL) + TIMEOUT;
    while (waitpid(pid, &r.status, WNOHANG) == 0) {
        if (time(NULL) > until)
            kill(pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    r.out = slurp(path_of(".stdout"), &r.n_out);
    drop_machine(r.out, &r.n_out);
    r.err = slurp(path_of(".stderr"), &r.n_err);
    char out[sizeof dir + 8];
    snprintf(out, sizeof out, "%s/out", dir);
    r.file = slurp(out, &r.n_file);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[sizeof dir + 300];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        r.n_files += strcmp(e->d_name, "out") != 0;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    return r;
}

static void result_free(result *r)
{
    free(r->out);
    free(r->err);
    free(r->file);
}

static bool same(const char *a, size_t na, const char *b, size_t nb)
{
    return !a || !b ? a == b : na == nb && memcmp(a, b, na) == 0;
}

/* What is wrong with how a run with a fault ended; NULL: nothing. */
static const char *judge(const char *name, const result *r, const result *plain, bool is_short)
{
    bool done = WIFEXITED(r->status) && WEXITSTATUS(r->status) == 0;
    if (!WIFEXITED(r->status))
        return WTERMSIG(r->status) == SIGKILL ? "it hangs" : "it ends by a signal";
    if (r->n_files)
        return "a temporary file is left";
    /* A conversation goes on after a line that could not be taken, and says so. */
    if (done && !is_short && strstr(r->err, "octet: ") &&
        (strcmp(name, "talk") == 0 || strcmp(name, "save") == 0))
        return NULL;
    if (done)
        return !same(r->out, r->n_out, plain->out, plain->n_out) ? "exit code 0, but other output"
               : !same(r->file, r->n_file, plain->file, plain->n_file)
                   ? "exit code 0, but another file"
                   : NULL;
    if (is_short)
        return "half of a read or write is not gone on with";
    if (WEXITSTATUS(r->status) != 1)
        return "an exit code that is neither 0 nor 1";
    if (!strstr(r->err, "octet: "))
        return "no message";
    if (r->file && (strstr(r->err, "is complete, but") /* the folder was not synced */ ||
                    strstr(r->err, "cannot write to standard output"))) /* what is said of it */
        return same(r->file, r->n_file, plain->file, plain->n_file) ? NULL : "another file";
    return r->file ? "a file in spite of exit code 1" : NULL;
}

int main(int argc, char **argv)
{
    static char shim[4096];
    if (argc < 5 || !realpath(argv[1], shim) || !getcwd(where, sizeof where - 16) || !mkdtemp(dir))
        return 98;
    snprintf(where + strlen(where), 16, "/%s", dir);
    char **command = argv + 4;
    const int64_t most = strcmp(argv[2], "all") == 0 ? INT64_MAX : atoll(argv[2]);
    result plain = run(shim, "none 0 0", command);
    int64_t n_tried = 0, n_bad = 0, n_lived = 0;
    if (!WIFEXITED(plain.status) || WEXITSTATUS(plain.status) != 0) {
        printf("%s: fails without a fault: %s\n", argv[3], plain.err);
        return 1;
    }
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        char fault[128];
        size_t n;
        snprintf(fault, sizeof fault, "%s 0 0", faults[f].name);
        result counted = run(shim, fault, command);
        char *text = slurp(path_of(".count"), &n);
        const int64_t count = text ? atoll(text) : 0, tries = count < most ? count : most;
        free(text);
        result_free(&counted);
        for (int64_t i = 0; i < tries; i++) {
            const int64_t at = 1 + (tries < 2 ? 0 : i * (count - 1) / (tries - 1));
            snprintf(fault, sizeof fault, "%s %lld %s", faults[f].name, (long long)at,
                     faults[f].what);
            result r = run(shim, fault, command);
            const char *wrong = judge(argv[3], &r, &plain, strcmp(faults[f].what, "short") == 0);
            n_tried++;
            n_lived += WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0;
            if (wrong && ++n_bad <= 20)
                printf("%s: OCT_FAULT=\"%s\": %s (status %d): %s\n", argv[3], fault, wrong,
                       r.status, r.err);
            result_free(&r);
        }
    }
    result_free(&plain);
    unlink(path_of(".stdout"));
    unlink(path_of(".stderr"));
    unlink(path_of(".count"));
    rmdir(dir);
    printf("%s: %lld faults, %lld without effect on the result, %lld wrong\n", argv[3],
           (long long)n_tried, (long long)n_lived, (long long)n_bad);
    return n_bad != 0;
}

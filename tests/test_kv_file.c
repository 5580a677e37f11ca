/* test_kv_file.c: pages saved by one session and taken up by another give the bits of fresh ones,
 * on NUMA domains, devices, ranks; what is damaged or of something else is refused as a whole. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "convert.h"
#include "grok.h"
#include "kv_file.h"
#include "machine.h"
#include "model_impl.h"
#include "poisoned_device.h"
#include "rig.h"
#include "session_impl.h"
#include "thread_ranks.h"

enum { V = 130, CTX = 1024, PAGE = 128, N_TEXTS = 5 };

static oct_model *model, *other;
static int model_fd, other_fd;
static int32_t ids[16 * CTX]; /* of no meaning */
static char top[] = "/tmp/octet-kv-XXXXXX", folder[64], file[128];

static oct_model *make_model(uint64_t seed, int *fd)
{
    char path[64];
    oct_model *m;
    oct_grok_config c = oct_grok1_config(2, V);
    c.n_ctx = CTX;
    c.d_model = 64;
    c.n_q_heads = 16;
    c.head_dim = 24; /* values are padded to 32 */
    c.d_ff = 128;
    const oct_synthetic_params p = {.config = &c, .seed = seed, .fd = memfd_create("model", 0)};
    MUST(oct_synthetic_write(&p, &must));
    *fd = p.fd;
    snprintf(path, sizeof path, "/proc/self/fd/%d", p.fd);
    MUST(oct_model_open(path, &m, &must));
    return m;
}

static int set_up(void **state)
{
    (void)state;
    rig_rng rng = {3};
    signal(SIGXFSZ, SIG_IGN);
    model = make_model(1, &model_fd);
    other = make_model(2, &other_fd);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = (int32_t)rig_int(&rng, 3, V - 1);
    assert_non_null(mkdtemp(top));
    snprintf(folder, sizeof folder, "%s/kv", top);
    snprintf(file, sizeof file, "%s/octet-%016llx.kv", folder,
             (unsigned long long)oct_model_get_info(model)->fingerprint);
    return 0;
}

/* Empties the folder, and says how many files were in it. */
static int empty(void)
{
    char command[256], count[16];
    snprintf(command, sizeof command, "ls -A %s 2>/dev/null | wc -l; rm -rf %s", folder, folder);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(count, sizeof count, f));
    pclose(f);
    return atoi(count);
}

static int tear_down(void **state)
{
    (void)state;
    empty();
    oct_model_close(model);
    oct_model_close(other);
    close(model_fd);
    close(other_fd);
    return rmdir(top);
}

/* ---- texts ---- */

/* Some of the common beginning, then what only this one has: full pages, and a bit more. */
static const struct {
    int64_t common, own;
} texts[N_TEXTS] = {{300, 20}, {300, 200}, {512, 140}, {0, 129}, {100, 500}};

static int64_t text(int t, int32_t *out)
{
    memcpy(out, ids, (size_t)texts[t].common * sizeof *out);
    memcpy(out + texts[t].common, ids + (t + 2) * CTX, (size_t)texts[t].own * sizeof *out);
    return texts[t].common + texts[t].own;
}

static oct_status eval_from(oct_session *s, int32_t seq, const int32_t *t, int64_t from, int64_t n,
                            float *logits, oct_error *err)
{
    int32_t seqs[CTX];
    for (int64_t i = from; i < n; i++)
        seqs[i - from] = seq;
    return oct_eval(s, &(oct_batch){.n = n - from, .token = t + from, .seq = seqs}, logits, err);
}

/* All texts, each in a sequence that is emptied again; logits: [N_TEXTS][V], after the last token.
 * held, if not NULL: what was there already. */
static oct_status tell_all(oct_session *s, float *logits, int64_t *held, oct_error *err)
{
    int32_t t[CTX];
    for (int k = 0; k < N_TEXTS; k++) {
        const int64_t n = text(k, t);
        int64_t had = 0;
        if (held)
            OCT_TRY(oct_session_reuse(s, 0, t, n, &had, err));
        OCT_TRY(eval_from(s, 0, t, had, n, logits + k * V, err));
        oct_session_truncate(s, 0, 0);
        if (held)
            held[k] = had;
    }
    return OCT_OK;
}

static oct_session *new_session(const oct_model *m, const oct_session_params *p,
                                const oct_devices *d)
{
    oct_session *s;
    oct_session_params q = *p;
    q.n_threads = q.n_threads ? q.n_threads : 1;
    q.n_seqs = q.n_seqs ? q.n_seqs : 2; /* or the pool were too small for all texts */
    MUST(oct_session_new_on(m, &q, d, &s, &must));
    return s;
}

static oct_kv_kept save(oct_session *s)
{
    oct_kv_kept kept;
    MUST(oct_session_save(s, folder, 60, &kept, &must));
    return kept;
}

static oct_kv_kept restore(oct_session *s)
{
    oct_kv_kept kept;
    MUST(oct_session_restore(s, folder, &kept, &must));
    return kept;
}

static void want_logits(const oct_session_params *p, float *want)
{
    oct_session *s = new_session(model, p, NULL);
    MUST(tell_all(s, want, NULL, &must));
    oct_session_free(s);
}

/* Full pages of each text but for its last token, as long as all are there. */
static void check_held(const int64_t *held, const char *what)
{
    int32_t t[CTX];
    for (int k = 0; k < N_TEXTS; k++)
        if (held[k] != (text(k, t) - 1) / PAGE * PAGE)
            fail_msg("%s: text %d: %lld were there", what, k, (long long)held[k]);
}

/* What a session saved, another of the same kind has, whatever computes in it. */
static void pass_on(const oct_session_params *p, const oct_devices *from,
                    const oct_session_params *q, const oct_devices *to, const float *want,
                    const char *what)
{
    static float got[N_TEXTS * V];
    int64_t held[N_TEXTS];
    oct_session *s = new_session(model, p, from);
    MUST(tell_all(s, got, NULL, &must));
    const oct_kv_kept kept = save(s);
    oct_session_free(s);
    s = new_session(model, q, to);
    const oct_kv_kept back = restore(s);
    assert_string_equal(back.why, "");
    assert_int_equal(back.pages, kept.pages);
    assert_true(back.bytes == kept.bytes && kept.bytes > 0);
    memset(got, 0, sizeof got);
    MUST(tell_all(s, got, held, &must));
    check_held(held, what);
    if (memcmp(got, want, sizeof got) != 0)
        fail_msg("%s: other bits", what);
    oct_session_free(s);
    assert_int_equal(empty(), 1);
}

/* ---- the same bits ---- */

static void test_kinds(void **state)
{
    (void)state;
    static float want[N_TEXTS * V];
    for (int kv = OCT_KV_F16; kv <= OCT_KV_F32; kv++) {
        const int act = kv == OCT_KV_BF16 ? OCT_ACT_I8 : OCT_ACT_I16;
        const oct_session_params p = {.kv = (oct_kv_type)kv, .act = (oct_act)act};
        char what[64];
        snprintf(what, sizeof what, "kv %d, act %d", kv, act);
        want_logits(&p, want);
        pass_on(&p, NULL, &p, NULL, want, what);
    }
}

static void test_domains(void **state)
{
    (void)state;
    static float want[N_TEXTS * V];
    const oct_session_params plain = {0};
    oct_machine *machine;
    MUST(oct_machine_load("numa:2 core:2 pu:1", &machine, &must));
    const oct_session_params domains = {.machine = machine, .n_threads = 4, .chunk = 48};
    want_logits(&plain, want);
    pass_on(&plain, NULL, &domains, NULL, want, "to domains");
    pass_on(&domains, NULL, &plain, NULL, want, "from domains");
    oct_machine_free(machine);
}

/* The second layer is a device's, or both. */
static void deal_layer(void *ctx, const oct_graph *g, uint8_t *where)
{
    for (int i = 0; i < g->n_nodes; i++)
        where[i] = g->nodes[i].layer == 1 || (*(const bool *)ctx && g->nodes[i].layer == 0);
}

static void test_devices(void **state)
{
    (void)state;
    static float want[N_TEXTS * V];
    const oct_session_params p = {.n_ctx = CTX};
    oct_session *s = new_session(model, &p, NULL);
    oct_cpu_numbers numbers = s->p.cpu;
    oct_session_free(s);
    numbers.n_threads = numbers.n_domains = 1;
    bool both = false;
    const oct_devices d = {.n = 1,
                           .device[0] = {&poisoned_kind, &numbers, device_open},
                           .deal = deal_layer,
                           .ctx = &both};
    want_logits(&p, want);
    for (int i = 0; i < 2; i++, both = true) {
        pass_on(&p, NULL, &p, &d, want, "to a device");
        pass_on(&p, &d, &p, NULL, want, "from a device");
    }
}

/* ---- what is kept ---- */

/* Of a pool that lacks room those used last; sequences that still hold pages lose none. */
static void test_small_pool(void **state)
{
    (void)state;
    static float got[N_TEXTS * V];
    int32_t t[CTX];
    int64_t held;
    oct_session *s = new_session(model, &(oct_session_params){.n_seqs = 2}, NULL);
    MUST(tell_all(s, got, NULL, &must));
    const int64_t n = text(1, t);
    MUST(eval_from(s, 1, t, 0, n, got, &must)); /* and stays */
    const oct_kv_kept kept = save(s);
    MUST(oct_session_reuse(s, 0, t, n, &held, &must)); /* saving changes nothing */
    assert_int_equal(held, n / PAGE * PAGE);
    const uint64_t page = s->p.kv.page_bytes;
    oct_session_free(s);
    s = new_session(model, &(oct_session_params){.kv_bytes = 4 * page}, NULL);
    assert_int_equal(restore(s).pages, 4);
    assert_true(kept.pages > 4);
    oct_kv_usage u;
    oct_session_get_kv(s, &u);
    assert_int_equal(u.cached, 4);
    MUST(oct_session_reuse(s, 0, t, n, &held, &must));
    assert_int_equal(held, 3 * PAGE); /* used last */
    oct_session_truncate(s, 0, 0);
    const int64_t last = text(4, t);
    MUST(oct_session_reuse(s, 0, t, last, &held, &must));
    assert_int_equal(held, PAGE); /* the fourth */
    oct_session_free(s);
    assert_int_equal(empty(), 1);
}

/* Pages come and go at random; whatever the first session would find, the second one finds. */
static void test_random(void **state)
{
    (void)state;
    static float got[V];
    rig_rng rng = {11};
    for (int round = 0; round < 4; round++) {
        int32_t t[CTX];
        struct {
            int64_t at, common, n;
        } story[24];
        oct_session *s = new_session(model, &(oct_session_params){.n_ctx = 1}, NULL);
        const uint64_t page = s->p.kv.page_bytes;
        oct_session_free(s);
        const oct_session_params p = {.n_seqs = 3, .kv_bytes = 11 * page};
        s = new_session(model, &p, NULL);
        for (int i = 0; i < 24; i++) {
            story[i].common = rig_int(&rng, 0, 4) * 100;
            story[i].at = rig_int(&rng, 0, 5) * CTX;
            story[i].n = story[i].common + rig_int(&rng, 1, 420);
            memcpy(t, ids, sizeof t);
            memcpy(t + story[i].common, ids + story[i].at,
                   (size_t)(story[i].n - story[i].common) * sizeof *t);
            const int32_t seq = i % 3;
            int64_t held;
            oct_session_truncate(s, seq, 0);
            MUST(oct_session_reuse(s, seq, t, story[i].n, &held, &must));
            if (eval_from(s, seq, t, held, story[i].n, got, NULL) != OCT_OK)
                oct_session_truncate(s, seq, 0);
        }
        save(s);
        for (int32_t q = 0; q < 3; q++)
            oct_session_truncate(s, q, 0);
        oct_session *r = new_session(model, &p, NULL);
        assert_string_equal(restore(r).why, "");
        for (int i = 0; i < 24; i++) {
            int64_t a, b;
            memcpy(t, ids, sizeof t);
            memcpy(t + story[i].common, ids + story[i].at,
                   (size_t)(story[i].n - story[i].common) * sizeof *t);
            MUST(oct_session_reuse(s, 0, t, story[i].n, &a, &must));
            MUST(oct_session_reuse(r, 0, t, story[i].n, &b, &must));
            assert_int_equal(a, b);
            oct_session_truncate(s, 0, 0);
            oct_session_truncate(r, 0, 0);
        }
        oct_session_free(s);
        oct_session_free(r);
        assert_int_equal(empty(), 1);
    }
}

static void test_rules(void **state)
{
    (void)state;
    static float got[N_TEXTS * V];
    oct_kv_kept kept;
    oct_error err = {0};
    struct stat st;
    volatile int cancel = 0;
    oct_session *s = new_session(model, &(oct_session_params){.cancel = &cancel}, NULL);
    assert_int_equal(restore(s).pages, 0); /* none is there: that is fine, and the folder is made */
    assert_int_equal(save(s).pages, 0);    /* and nothing is written */
    assert_int_equal(empty(), 0);
    MUST(tell_all(s, got, NULL, &must));
    assert_int_equal(oct_session_restore(s, folder, &kept, &err), OCT_ERR_ARG);
    MUST(oct_session_save(s, folder, 0, &kept, &must)); /* no time is left: one page */
    assert_int_equal(kept.pages, 1);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    oct_session *r = new_session(model, &(oct_session_params){.cancel = &cancel}, NULL);
    cancel = 1;
    assert_int_equal(oct_session_restore(r, folder, &kept, NULL), OCT_ERR_CANCELLED);
    cancel = 0;
    assert_int_equal(restore(r).pages, 1);
    oct_session_free(r);
    oct_session_free(s);
    assert_int_equal(empty(), 1);
}

/* ---- disks that do not take it ---- */

static void test_disk(void **state)
{
    (void)state;
    static float got[N_TEXTS * V];
    oct_kv_kept kept;
    oct_error err = {0};
    char path[192];
    struct rlimit was, small = {4 << 20, 4 << 20};
    oct_session *s = new_session(model, &(oct_session_params){0}, NULL);
    MUST(tell_all(s, got, NULL, &must));
    snprintf(path, sizeof path, "%s/not/there", top);
    assert_int_equal(oct_session_save(s, path, 1, &kept, &err), OCT_ERR_IO);
    assert_non_null(strstr(err.text, "/not/there: cannot be made: No such file or directory"));
    assert_int_equal(oct_session_restore(s, path, &kept, NULL), OCT_ERR_ARG);
    const int64_t all = save(s).pages;
    getrlimit(RLIMIT_FSIZE, &was);
    small.rlim_cur = (rlim_t)all * s->p.kv.page_bytes / 2;
    small.rlim_max = was.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    err = (oct_error){0};
    assert_int_equal(oct_session_save(s, folder, 60, &kept, &err), OCT_ERR_IO);
    assert_int_equal(kept.pages, 0);
    assert_non_null(strstr(err.text, "File too large"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    oct_session *r = new_session(model, &(oct_session_params){0}, NULL);
    assert_int_equal(restore(r).pages, all); /* the last one is still there */
    oct_session_free(r);
    /* What a process that was killed left is taken over, so that nothing piles up. */
    snprintf(path, sizeof path, "%s.tmp-1", file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 1 << 20; i++)
        fputs("left behind", f);
    fclose(f);
    assert_int_equal(save(s).pages, all);
    r = new_session(model, &(oct_session_params){0}, NULL);
    assert_int_equal(restore(r).pages, all);
    oct_session_free(r);
    oct_session_free(s);
    assert_int_equal(empty(), 1);
}

/* ---- damage ---- */

static unsigned char *read_file(size_t *n)
{
    struct stat st;
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    unsigned char *p = malloc((size_t)st.st_size + 1);
    *n = fread(p, 1, (size_t)st.st_size, f);
    assert_int_equal(*n, st.st_size);
    fclose(f);
    return p;
}

static void write_file(const void *p, size_t n)
{
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The file as it is now is not used. */
static void refused(oct_session *s, const char *what, int64_t at)
{
    const oct_kv_kept kept = restore(s);
    if (kept.pages != 0 || !kept.why[0] || strchr(kept.why, '\n') || !strstr(kept.why, file))
        fail_msg("%s at %lld: %lld pages, \"%s\"", what, (long long)at, (long long)kept.pages,
                 kept.why);
}

static void test_damage(void **state)
{
    (void)state;
    static float want[N_TEXTS * V], got[N_TEXTS * V];
    int64_t held[N_TEXTS];
    size_t n, tried = 0;
    oct_session *s = new_session(model, &(oct_session_params){0}, NULL);
    MUST(tell_all(s, want, NULL, &must));
    const int64_t pages = save(s).pages;
    const uint64_t page = s->p.kv.page_bytes, at = oct_kv_file_pages_at(pages);
    oct_session_free(s);
    unsigned char *right = read_file(&n);
    assert_int_equal(n, at + (uint64_t)pages * page);
    s = new_session(model, &(oct_session_params){0}, NULL);
    const int fd = open(file, O_RDWR);
    for (size_t i = 0; i < n; i++) {
        const uint64_t in = i < at ? 0 : (i - at) % page;
        /* all of the head, much of the list, of each page the ends and a bit */
        if (i >= sizeof(oct_kv_file_head) + 600 && i < at && i % 61 && i < at - 5)
            continue;
        if (i >= at && in > 0 && in < page - 1 && in % (page / 3))
            continue;
        const unsigned char wrong = (unsigned char)(right[i] ^ 1 << i % 8);
        assert_int_equal(pwrite(fd, &wrong, 1, (off_t)i), 1);
        refused(s, "a bit", (int64_t)i);
        assert_int_equal(pwrite(fd, right + i, 1, (off_t)i), 1);
        tried++;
    }
    for (size_t i = 0; i <= n; i++) {
        const bool edge =
            i < 300 || i + 3 >= n || (i >= at && (i - at) % page < 2) || i % 100003 == 0;
        if (!edge || i == n)
            continue;
        assert_int_equal(ftruncate(fd, (off_t)i), 0);
        refused(s, "an end", (int64_t)i);
        assert_int_equal(pwrite(fd, right + i, n - i, (off_t)i), n - i);
        tried++;
    }
    assert_int_equal(pwrite(fd, "x", 1, (off_t)n), 1);
    refused(s, "one byte more", (int64_t)n);
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    close(fd);
    printf("  %zu kinds of damage\n", tried);
    /* What was refused has left nothing behind. */
    MUST(oct_session_restore(s, folder, &(oct_kv_kept){0}, &must));
    MUST(tell_all(s, got, held, &must));
    check_held(held, "after damage");
    assert_memory_equal(got, want, sizeof got);
    oct_session_free(s);
    s = new_session(model, &(oct_session_params){0}, NULL);
    right[at + 5] ^= 4;
    write_file(right, n);
    refused(s, "a bit", (int64_t)at + 5);
    MUST(tell_all(s, got, held, &must));
    assert_memory_equal(got, want, sizeof got);
    free(right);
    oct_session_free(s);
    assert_int_equal(empty(), 1);
}

static void refused_by(const oct_model *m, const oct_session_params *p, const char *why)
{
    oct_session *s = new_session(m, p, NULL);
    const oct_kv_kept kept = restore(s);
    assert_int_equal(kept.pages, 0);
    if (!strstr(kept.why, why))
        fail_msg("\"%s\", expected \"%s\"", kept.why, why);
    oct_session_free(s);
}

static void test_foreign(void **state)
{
    (void)state;
    static float got[N_TEXTS * V];
    char name[128];
    const oct_session_params plain = {0};
    oct_session *s = new_session(model, &plain, NULL);
    MUST(tell_all(s, got, NULL, &must));
    save(s);
    oct_session_free(s);
    refused_by(model, &(oct_session_params){.kv = OCT_KV_BF16}, "KV type: 0, expected 1");
    refused_by(model, &(oct_session_params){.act = OCT_ACT_I8}, "activations: 0, expected 1");
    refused_by(model, &(oct_session_params){.isa = "ref"}, "order of sums: 0, expected 1");
    assert_int_equal(chmod(file, 0620), 0);
    refused_by(model, &plain, "other users can write to it");
    assert_int_equal(chmod(file, 0600), 0);
    size_t n;
    unsigned char *bytes = read_file(&n);
    oct_kv_file_head *head = (void *)bytes;
    head->kind.build[3] ^= 1;
    write_file(bytes, n);
    refused_by(model, &plain, "by another build of octet");
    head->kind.build[3] ^= 1;
    write_file(bytes, n);
    snprintf(name, sizeof name, "%s/octet-%016llx.kv", folder,
             (unsigned long long)oct_model_get_info(other)->fingerprint);
    assert_int_equal(rename(file, name), 0);
    refused_by(other, &plain, "of another model: its fingerprint is");
    assert_int_equal(unlink(name), 0);
    write_file("#!/bin/sh\n", 10);
    refused_by(model, &plain, "ends at 10");
    memset(bytes, 'x', n);
    write_file(bytes, n);
    refused_by(model, &plain, "holds no keys and values of octet");
    write_file("", 0);
    refused_by(model, &plain, "ends at 0");
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkdir(file, 0700), 0);
    refused_by(model, &plain, "is not a regular file");
    assert_int_equal(rmdir(file), 0);
    assert_int_equal(mkfifo(file, 0600), 0); /* must not wait for a writer */
    refused_by(model, &plain, "is not a regular file");
    free(bytes);
    empty();
}

/* Checksums are right, but no session wrote it. */
static void test_made_up(void **state)
{
    (void)state;
    static float got[N_TEXTS * V];
    oct_session *s = new_session(model, &(oct_session_params){0}, NULL);
    MUST(tell_all(s, got, NULL, &must));
    save(s);
    oct_session_free(s);
    size_t n;
    unsigned char *right = read_file(&n);
    for (int i = 0; i < 10; i++) {
        unsigned char *p = malloc(n);
        memcpy(p, right, n);
        oct_kv_file_head head;
        memcpy(&head, p, sizeof head);
        oct_kv_file_entry *e = (void *)(p + sizeof head);
        switch (i) {
        case 0: e[1].parent = 1; break;
        case 1: e[0].parent = -2; break;
        case 2: e[2].parent = INT64_MAX; break;
        case 3: e[1].ids[7] = V; break;
        case 4: e[0].ids[127] = -1; break;
        case 5: head.n_pages++; break;
        case 6: head.n_pages = -1; break;
        case 7: head.page_bytes -= 2; break;
        case 8: head.page_bytes = UINT64_MAX / 2; break;
        default: head.kind.n_heads++; break;
        }
        oct_kv_file_seal(p, &head);
        write_file(p, n);
        s = new_session(model, &(oct_session_params){0}, NULL);
        refused(s, "made up", i);
        oct_session_free(s);
        free(p);
    }
    free(right);
    assert_int_equal(empty(), 1);
}

/* ---- ranks ---- */

static oct_status lead_save(job *j, oct_session *s, oct_error *err)
{
    oct_kv_kept kept;
    OCT_TRY(tell_all(s, j->logits, NULL, err));
    OCT_TRY(oct_session_save(s, folder, 60, &kept, err));
    return kept.pages > 0 ? OCT_OK : oct_fail(err, OCT_ERR_ARG, "no pages");
}

static char rank_why[OCT_ERROR_TEXT];

static oct_status lead_restore(job *j, oct_session *s, oct_error *err)
{
    oct_kv_kept kept;
    int64_t held[N_TEXTS];
    OCT_TRY(oct_session_restore(s, folder, &kept, err));
    memcpy(rank_why, kept.why, sizeof rank_why);
    OCT_TRY(tell_all(s, j->logits, held, err));
    if (held[0] != (kept.pages > 0 ? 256 : 0)) /* later ones find pages of this run */
        return oct_fail(err, OCT_ERR_ARG, "%lld pages, but %lld positions were there",
                        (long long)kept.pages, (long long)held[0]);
    return OCT_OK;
}

static float *on_ranks(int n, oct_shard_layout by,
                       oct_status (*what)(job *j, oct_session *s, oct_error *err))
{
    job j = {.model = model,
             .params = {.n_ctx = CTX, .n_threads = 1, .chunk = 64, .shard = by, .n_seqs = 2},
             .B = 1,
             .T = N_TEXTS,
             .n_ranks = n,
             .lead = what};
    return run_job(&j);
}

static void check_ranks(int n, oct_shard_layout by, const float *want, const char *why)
{
    float *got = on_ranks(n, by, lead_restore);
    if (memcmp(got, want, N_TEXTS * V * sizeof *got) != 0)
        fail_msg("%d ranks, layout %d: other bits", n, (int)by);
    if (!*why ? *rank_why : !strstr(rank_why, why))
        fail_msg("%d ranks, layout %d: \"%s\", expected \"%s\"", n, (int)by, rank_why, why);
    free(got);
}

static void test_ranks(void **state)
{
    (void)state;
    static float want[N_TEXTS * V];
    char name[2][192];
    want_logits(&(oct_session_params){0}, want);
    for (int n = 2; n <= 4; n *= 2)
        for (int by = 0; by < (n == 2 ? OCT_SHARD_LAYOUTS : 1); by++) {
            free(on_ranks(n, (oct_shard_layout)by, lead_save));
            check_ranks(n, (oct_shard_layout)by, want, "");
            /* Rank 1 has what rank 0 saved, then nothing. */
            for (int r = 0; r < 2; r++)
                snprintf(name[r], sizeof name[r], "%s/octet-%016llx-%d-of-%d.kv", folder,
                         (unsigned long long)oct_model_get_info(model)->fingerprint, r, n);
            assert_int_equal(rename(name[0], name[1]), 0);
            const bool replicated =
                by == OCT_SHARD_SLICE_REPLICATED || by == OCT_SHARD_EXPERT_REPLICATED;
            check_ranks(n, (oct_shard_layout)by, want, replicated ? "" : "rank 1: ");
            assert_int_equal(empty(), n - 1);
            check_ranks(n, (oct_shard_layout)by, want, "");
            empty();
        }
}

static int64_t n_told;

static oct_status lead_other(job *j, oct_session *s, oct_error *err)
{
    oct_kv_kept kept;
    (void)j;
    OCT_TRY(eval_from(s, 0, ids + 7, 0, 700, j->logits, err));
    OCT_TRY(oct_session_save(s, folder, n_told == 0 ? 0 : 60, &kept, err));
    n_told = kept.pages;
    return OCT_OK;
}

/* Ranks whose files are of two runs: as many pages, of other texts. */
static void test_ranks_differ(void **state)
{
    (void)state;
    static float want[N_TEXTS * V];
    char name[128], aside[160];
    want_logits(&(oct_session_params){0}, want);
    free(on_ranks(2, OCT_SHARD_SLICE, lead_save));
    snprintf(name, sizeof name, "%s/octet-%016llx-1-of-2.kv", folder,
             (unsigned long long)oct_model_get_info(model)->fingerprint);
    snprintf(aside, sizeof aside, "%s-", name);
    assert_int_equal(rename(name, aside), 0);
    n_told = 1;
    free(on_ranks(2, OCT_SHARD_SLICE, lead_other));
    assert_true(n_told > 1);
    assert_int_equal(rename(aside, name), 0);
    check_ranks(2, OCT_SHARD_SLICE, want, "rank 1 has keys and values of other texts than rank 0");
    empty();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),   cmocka_unit_test(test_domains),
        cmocka_unit_test(test_devices), cmocka_unit_test(test_small_pool),
        cmocka_unit_test(test_random),  cmocka_unit_test(test_rules),
        cmocka_unit_test(test_disk),    cmocka_unit_test(test_damage),
        cmocka_unit_test(test_foreign), cmocka_unit_test(test_made_up),
        cmocka_unit_test(test_ranks),   cmocka_unit_test(test_ranks_differ),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* test_slice.c: parts of a model on disk. Ranks that have a part each give the bits of one process;
 * a part is good for nobody else; damage is found. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "convert.h"
#include "gguf.h"
#include "gguf_part.h"
#include "thread_ranks.h"

#define MODEL(name) OCT_TEST_MODELS "/" name ".gguf"

static const int32_t tokens[12] = {5, 9, 200, 31, 4, 4, 77, 8, 90, 3, 6, 100};
static char dir[] = "/tmp/octet-slice-XXXXXX";

static const char *part_path(int rank)
{
    static char path[MAX_RANKS][64];
    snprintf(path[rank], sizeof path[rank], "%s/part-%d.gguf", dir, rank);
    return path[rank];
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    for (int r = 0; r < MAX_RANKS; r++)
        unlink(part_path(r));
    return rmdir(dir); /* fails if a temporary file was left */
}

static oct_slice_report cut(const char *model, int rank, int size, oct_shard_layout by)
{
    oct_error err = {0};
    oct_slice_report report;
    const oct_slice_params p = {
        .model = model, .out = part_path(rank), .by = by, .rank = rank, .size = size};
    if (oct_slice(&p, &report, &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_lines_free(&report.warnings);
    return report;
}

static oct_model *open_model(const char *path)
{
    oct_error err = {0};
    oct_model *m;
    if (oct_model_open(path, &m, &err) != OCT_OK)
        fail_msg("%s", err.text);
    return m;
}

/* Bytes of a file that are mapped. */
static uint64_t mapped(const char *path)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[1024];
    uint64_t total = 0, lo, hi;
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strstr(line, path) && sscanf(line, "%" SCNx64 "-%" SCNx64, &lo, &hi) == 2)
            total += hi - lo;
    fclose(f);
    return total;
}

/* ---- the bits of one process ---------------------------------------------------------------- */

/* Even ranks use the whole file if mixed; of the others, the second has its part in memory. */
static void check_job(const char *model, int ranks, oct_shard_layout by, bool mixed,
                      const float *want)
{
    oct_error err = {0};
    oct_model *m[MAX_RANKS];
    oct_own_report own;
    oct_placement *owned = NULL;
    uint64_t bytes = 0;
    for (int r = 0; r < ranks; r++) {
        bool whole = mixed && r % 2 == 0;
        if (!whole)
            bytes += cut(model, r, ranks, by).bytes;
        m[r] = open_model(whole ? model : part_path(r));
        const oct_model_info *i = oct_model_get_info(m[r]);
        assert_int_equal(i->part_size, whole ? 0 : ranks);
        assert_true(whole || (i->part_rank == r && i->part_by == by));
        assert_true(i->fingerprint == oct_model_get_info(m[0])->fingerprint);
        if (!whole && mapped(part_path(r)) > i->file_bytes)
            fail_msg("rank %d: %" PRIu64 " bytes are mapped of %" PRIu64, r, mapped(part_path(r)),
                     i->file_bytes);
    }
    if (ranks == 2)
        assert_int_equal(
            oct_placement_own(m[1], &(oct_own_params){.n_threads = 2}, &owned, &own, &err), OCT_OK);
    assert_true(mixed || mapped(model) == 0);
    job j = {.model = m[0],
             .parts = m,
             .params = {.n_threads = 1, .shard = by},
             .placement = {NULL, owned},
             .tokens = tokens,
             .B = 1,
             .T = 12,
             .n_ranks = ranks};
    float *got = run_job(&j);
    assert_memory_equal(want, got,
                        (size_t)(12 * oct_model_get_info(m[0])->n_vocab) * sizeof(float));
    free(got);
    oct_placement_free(owned);
    for (int r = 0; r < ranks; r++)
        oct_model_close(m[r]);
    printf("  %s, %d ranks by %s%s: same bits, %" PRIu64 " bytes of parts\n",
           strrchr(model, '/') + 1, ranks, oct_shard_name((oct_shard_layout)by),
           mixed ? ", whole files too" : "", bytes);
}

static void check_model(const char *model)
{
    oct_model *m = open_model(model);
    job one = {
        .model = m, .params = {.n_threads = 1}, .tokens = tokens, .B = 1, .T = 12, .n_ranks = 1};
    float *want = run_job(&one);
    oct_model_close(m);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int by = 0; by < OCT_SHARD_LAYOUTS; by++)
            check_job(model, ranks, (oct_shard_layout)by, false, want);
    check_job(model, 4, OCT_SHARD_SLICE, true, want);
    check_job(model, 4, OCT_SHARD_EXPERT_REPLICATED, true, want);
    free(want);
}

static void test_bits(void **state)
{
    (void)state;
    check_model(MODEL("tiny-grok"));
    check_model(MODEL("odd"));
    check_model(MODEL("dense"));
}

/* ---- nobody else's -------------------------------------------------------------------------- */

static void refused(oct_status expected, oct_status found, const char *words, oct_error *err)
{
    if (found != expected || !strstr(err->text, words))
        fail_msg("expected '%s' with '%s', found '%s' with '%s'", oct_status_name(expected), words,
                 oct_status_name(found), err->text);
    *err = (oct_error){0};
}

static void test_other_ranks(void **state)
{
    (void)state;
    static const struct {
        int rank, size;
        oct_shard_layout by;
        const char *words;
    } wrong[] = {
        {0, 1, OCT_SHARD_EXPERT, "rank 1 of 4 by expert, asked for is the whole model"},
        {2, 4, OCT_SHARD_EXPERT, "asked for is rank 2 of 4 by expert"},
        {1, 4, OCT_SHARD_SLICE, "asked for is rank 1 of 4 by slice"},
        {1, 8, OCT_SHARD_EXPERT, "asked for is rank 1 of 8 by expert"},
        {1, 4, OCT_SHARD_EXPERT_REPLICATED,
         "rank 1 of 4 by expert, asked for is rank 1 of 4 by expert with attention replicated"},
    };
    oct_error err = {0};
    cut(MODEL("dense"), 1, 4, OCT_SHARD_EXPERT);
    oct_model *m = open_model(part_path(1));
    for (size_t i = 0; i <= sizeof wrong / sizeof *wrong; i++) {
        bool right = i == sizeof wrong / sizeof *wrong;
        oct_comm comm = {.rank = right ? 1 : wrong[i].rank, .size = right ? 4 : wrong[i].size};
        const oct_session_params p = {.comm = &comm,
                                      .shard = right ? OCT_SHARD_EXPERT : wrong[i].by};
        oct_session_need need;
        oct_session *s;
        if (right) {
            assert_int_equal(oct_session_estimate(m, &p, &need, &err), OCT_OK);
            assert_int_equal(oct_model_keep_part(m, 1, 4, p.shard, &err), OCT_OK);
            /* the file, but for its header, padding and tokenizer */
            assert_true(need.weights <= oct_model_get_info(m)->file_bytes);
            break;
        }
        refused(OCT_ERR_UNSUPPORTED, oct_session_new(m, &p, &s, &err), wrong[i].words, &err);
        refused(OCT_ERR_UNSUPPORTED, oct_session_estimate(m, &p, &need, &err), wrong[i].words,
                &err);
        refused(OCT_ERR_UNSUPPORTED,
                oct_model_keep_part(m, wrong[i].rank, wrong[i].size, wrong[i].by, &err),
                wrong[i].words, &err);
    }
    oct_model_close(m);
    oct_slice_report report;
    oct_export_report exported;
    oct_slice_params p = {.model = part_path(1), .out = part_path(2), .rank = 0, .size = 2};
    refused(OCT_ERR_UNSUPPORTED, oct_slice(&p, &report, &err), "asked for is the whole model",
            &err);
    refused(OCT_ERR_UNSUPPORTED,
            oct_export_q8_0(&(oct_export_params){.model = part_path(1), .out = part_path(2)},
                            &exported, &err),
            "asked for is the whole model", &err);
    p.model = MODEL("dense");
    static const int sizes[] = {-1, 0, 1, 3, 16};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        p.size = sizes[i];
        refused(OCT_ERR_ARG, oct_slice(&p, &report, &err), "part 0 of", &err);
    }
    p = (oct_slice_params){.model = part_path(1), .out = part_path(1), .size = 2};
    assert_int_not_equal(oct_slice(&p, &report, &err), OCT_OK);
    assert_int_equal(access(part_path(1), F_OK), 0);
    assert_int_not_equal(access(part_path(2), F_OK), 0);
}

/* ---- damage --------------------------------------------------------------------------------- */

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *b = malloc(*n);
    assert_int_equal(fread(b, 1, *n, f), *n);
    fclose(f);
    return b;
}

static void write_file(const char *path, const uint8_t *b, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b, 1, n, f), n);
    fclose(f);
}

/* Opens what the bytes say; verifies it too if it can be opened. */
static oct_status look(const uint8_t *b, size_t n, oct_error *err)
{
    oct_model *m;
    *err = (oct_error){0};
    write_file(part_path(0), b, n);
    oct_status s = oct_model_open(part_path(0), &m, err);
    if (s != OCT_OK)
        return s;
    oct_model_close(m);
    return oct_verify(part_path(0), NULL, NULL, NULL, err);
}

static void test_damage(void **state)
{
    (void)state;
    enum { FOOTER = 48, RUN = 32 };
    oct_error err;
    oct_gguf *g;
    size_t n;
    int64_t n_runs = cut(MODEL("dense"), 3, 4, OCT_SHARD_SLICE).n_runs;
    uint8_t *b = read_file(part_path(3), &n);
    assert_int_equal(look(b, n, &err), OCT_OK);
    size_t table = n - FOOTER - (size_t)n_runs * RUN;
    for (size_t at = table; at < n; at += at + FOOTER < n ? 97 : 1) { /* the table */
        b[at] ^= 0x10;
        if (look(b, n, &err) != OCT_ERR_FORMAT)
            fail_msg("byte %zu of the table changed: %s", at - table, err.text);
        b[at] ^= 0x10;
    }
    /* Every run, at its end. */
    assert_int_equal(oct_gguf_open(part_path(3), &g, &err), OCT_OK);
    const oct_part *part = oct_gguf_part(g);
    assert_int_equal(part->n_runs, n_runs);
    assert_true(n_runs > 8);
    for (int64_t i = 0; i < n_runs; i++) {
        size_t at = part->run[i].place + part->run[i].bytes - 1;
        b[at] ^= 1;
        if (look(b, n, &err) != OCT_ERR_FORMAT || !strstr(err.text, "checksum"))
            fail_msg("run %" PRId64 " changed: '%s'", i, err.text);
        b[at] ^= 1;
    }
    for (size_t cut_at = 0; cut_at < n; cut_at = cut_at < table ? cut_at * 3 + 1 : cut_at + 11) {
        if (cut_at > table && cut_at < table + 11)
            cut_at = table;
        if (look(b, cut_at, &err) != OCT_ERR_FORMAT)
            fail_msg("cut to %zu of %zu bytes: '%s'", cut_at, n, err.text);
    }
    oct_gguf_close(g);
    free(b);
}

/* A whole file has a checksum for each tensor and no other of its weights. */
static void test_whole_damage(void **state)
{
    (void)state;
    oct_error err;
    oct_gguf *g;
    size_t n;
    uint8_t *b = read_file(MODEL("dense"), &n);
    assert_int_equal(oct_gguf_open(MODEL("dense"), &g, &err), OCT_OK);
    assert_int_equal(look(b, n, &err), OCT_OK);
    for (int64_t i = 0; i < oct_gguf_n_tensors(g); i++) {
        const oct_gguf_tensor *t = oct_gguf_tensor_at(g, i);
        const size_t at = t->offset + (i % 2 ? t->bytes - 1 : 0);
        b[at] ^= 1;
        if (look(b, n, &err) != OCT_ERR_FORMAT || !strstr(err.text, t->name) ||
            !strstr(err.text, "checksum"))
            fail_msg("%s changed: '%s'", t->name, err.text);
        b[at] ^= 1;
    }
    oct_gguf_close(g);
    free(b);
}

/* Tables whose checksum is right, but which say something impossible. */
static void test_lies(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_gguf *g;
    size_t n, n_table;
    cut(MODEL("dense"), 3, 4, OCT_SHARD_SLICE);
    uint8_t *b = read_file(part_path(3), &n);
    assert_int_equal(oct_gguf_open(part_path(3), &g, &err), OCT_OK);
    for (int lie = 0; lie < 14; lie++) {
        oct_part p = *oct_gguf_part(g);
        size_t room = (size_t)(p.n_runs + 1) * sizeof *p.run;
        oct_part_run *run = malloc(room);
        memcpy(run, p.run, room - sizeof *run);
        p.run = run;
        switch (lie) {
        case 0: break; /* the truth */
        case 1: p.rank = 2; break;
        case 2:
            p.layout = OCT_SHARD_EXPERT;
            p.rank = 4;
            break;
        case 3:
            p.size = 3;
            p.rank = 2;
            break;
        case 4: p.n_runs--; break;
        case 5: p.n_runs = 1; break;
        case 6: run[0].at = 4096; break;
        case 7: run[1].at += 4096; break;
        case 8: run[2].place = (n + 4095) / 4096 * 4096; break;
        case 9: run[2].bytes = UINT64_MAX - 4095; break;
        case 10: run[0].bytes = 2048; break; /* the header is longer */
        case 11: p.layout = OCT_SHARD_SLICE_REPLICATED; break;
        case 12: p.layout = OCT_SHARD_LAYOUTS; break;
        default: p.whole_bytes = UINT64_MAX; break;
        }
        void *table = oct_part_table(&p, &n_table);
        size_t data = n - 48 - (size_t)oct_gguf_part(g)->n_runs * sizeof *run;
        uint8_t *copy = malloc(data + n_table);
        memcpy(copy, b, data);
        memcpy(copy + data, table, n_table);
        oct_status s = look(copy, data + n_table, &err);
        if ((s == OCT_OK) != (lie == 0))
            fail_msg("lie %d: '%s'", lie, err.text);
        free(copy);
        free(table);
        free(run);
    }
    oct_gguf_close(g);
    free(b);
}

/* Layouts have the numbers in the file that convert/FORMAT.md gives them. */
static void test_numbers(void **state)
{
    (void)state;
    static const uint32_t numbers[OCT_SHARD_LAYOUTS] = {
        [OCT_SHARD_EXPERT] = 0,
        [OCT_SHARD_SLICE] = 1,
        [OCT_SHARD_EXPERT_REPLICATED] = 2,
        [OCT_SHARD_SLICE_REPLICATED] = 3,
    };
    for (int by = 0; by < OCT_SHARD_LAYOUTS; by++) {
        size_t n;
        uint32_t found;
        cut(MODEL("dense"), 3, 4, (oct_shard_layout)by);
        uint8_t *b = read_file(part_path(3), &n);
        memcpy(&found, b + n - 48 + 8, sizeof found);
        assert_int_equal(found, numbers[by]);
        free(b);
    }
}

/* ---- interruption --------------------------------------------------------------------------- */

typedef struct watch {
    volatile int cancel;
    int calls, stop_at; /* stop_at: the call that cancels */
    uint64_t last;
    oct_convert_phase phase;
} watch;

static void on_progress(void *ctx, const oct_convert_progress *p)
{
    watch *w = ctx;
    const bool complete = p->phase == OCT_CONVERT_DONE;
    assert_int_equal(access(complete ? part_path(5) : p->temp, F_OK), 0);
    assert_true(complete || access(part_path(5), F_OK) != 0);
    assert_true(p->done <= p->total &&
                (p->phase == w->phase ? p->done >= w->last : p->phase > w->phase));
    w->last = p->done;
    w->phase = p->phase;
    if (++w->calls == w->stop_at)
        w->cancel = 1;
}

static void test_cancel(void **state)
{
    (void)state;
    int stop = 1, calls = 0;
    for (;; stop = stop < 5 ? stop + 1 : stop * 2) {
        oct_error err = {0};
        oct_slice_report report;
        watch w = {.stop_at = stop};
        const oct_slice_params p = {.model = MODEL("dense"),
                                    .out = part_path(5),
                                    .rank = 5,
                                    .size = 8,
                                    .progress = on_progress,
                                    .progress_ctx = &w,
                                    .cancel = &w.cancel};
        oct_status s = oct_slice(&p, &report, &err);
        oct_lines_free(&report.warnings);
        if (s == OCT_OK) {
            calls = w.calls;
            assert_int_equal(w.phase, OCT_CONVERT_DONE);
            break;
        }
        assert_int_equal(s, OCT_ERR_CANCELLED);
        assert_int_not_equal(access(part_path(5), F_OK), 0);
    }
    assert_true(stop > 5 && calls > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_ranks),  cmocka_unit_test(test_damage),
        cmocka_unit_test(test_whole_damage), cmocka_unit_test(test_lies),
        cmocka_unit_test(test_numbers),      cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_bits),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

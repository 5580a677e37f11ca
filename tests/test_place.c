/* test_place.c: moving the weights changes nothing but where they lie. */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "machine.h"
#include "machine_rig.h"
#include "measure.h"
#include "placement.h"
#include "topology.h"

static const int32_t tokens[9] = {677, 263, 2224, 272, 263, 1252, 9, 3000, 4095};

static oct_model *open_tiny(void)
{
    oct_error err = {0};
    oct_model *m;
    if (oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &m, &err) != OCT_OK)
        fail_msg("%s", err.text);
    return m;
}

static float *logits_of(const oct_model *m, const oct_placement *placement, const char *topology)
{
    oct_error err = {0};
    oct_session *s;
    oct_machine *machine = machine_like(topology);
    const oct_session_params p = {.n_threads = 4, .machine = machine, .placement = placement};
    float *out = malloc((size_t)oct_model_get_info(m)->n_vocab * sizeof *out);
    assert_int_equal(oct_session_new(m, &p, &s, &err), OCT_OK);
    const oct_batch b = {9, tokens, NULL, NULL};
    assert_int_equal(oct_eval(s, &b, out, &err), OCT_OK);
    oct_session_free(s);
    oct_machine_free(machine);
    return out;
}

/* Bytes of the model file that are mapped and may be read. */
static uint64_t mapped_bytes(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[1024], mode[8];
    uint64_t total = 0, lo, hi;
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strstr(line, "tiny-grok.gguf") &&
            sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &lo, &hi, mode) == 3 && mode[0] == 'r')
            total += hi - lo;
    fclose(f);
    return total;
}

static uint64_t last_done;

static void count(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    assert_true(done <= total && done >= last_done);
    last_done = done;
}

static void test_own(void **state)
{
    (void)state;
    static const char *const topologies[] = {NULL, "numa:2 core:2 pu:1", "numa:4 core:1 pu:1"};
    oct_model *m = open_tiny();
    float *want = logits_of(m, NULL, NULL);
    size_t bytes = (size_t)oct_model_get_info(m)->n_vocab * sizeof *want;
    for (size_t i = 0; i < 3; i++) {
        oct_error err = {0};
        oct_own_report r;
        oct_placement *owned;
        oct_machine *machine = machine_like(topologies[i]);
        const oct_own_params p = {.n_threads = 4, .machine = machine, .progress = count};
        last_done = 0;
        assert_int_equal(oct_placement_own(m, &p, &owned, &r, &err), OCT_OK);
        oct_machine_free(machine);
        if (i > 0)
            assert_int_equal(r.n_domains, i == 1 ? 2 : 4);
        assert_int_equal(r.pages_sampled, 0); /* one node, or a machine that is not there */
        assert_true(r.bytes > 10000000 && last_done > 0);
        float *got = logits_of(m, owned, topologies[i]);
        assert_memory_equal(want, got, bytes);
        free(got);
        oct_placement_free(owned);
    }
    free(want);
    oct_model_close(m);
}

/* Sessions of an owned placement read nothing of the mapping but what they own a copy of. */
static void test_own_reads_the_copy(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_own_report r;
    oct_placement *owned;
    oct_model *m = open_tiny();
    float *want = logits_of(m, NULL, NULL);
    size_t bytes = (size_t)oct_model_get_info(m)->n_vocab * sizeof *want;
    assert_int_equal(oct_placement_own(m, &(oct_own_params){.n_threads = 2}, &owned, &r, &err),
                     OCT_OK);
    uintptr_t at =
        (uintptr_t)oct_gguf_bytes(m->file) + (oct_gguf_data_offset(m->file) + 4095) / 4096 * 4096;
    size_t n = oct_gguf_file_bytes(m->file) - (oct_gguf_data_offset(m->file) + 4095) / 4096 * 4096;
    assert_int_equal(mprotect((void *)at, n, PROT_NONE), 0);
    float *got = logits_of(m, owned, NULL);
    assert_memory_equal(want, got, bytes);
    assert_int_equal(mprotect((void *)at, n, PROT_READ), 0);
    free(got);
    free(want);
    oct_placement_free(owned);
    oct_model_close(m);
}

/* A system of two nodes: what was bound where, and where it says that pages are. */
typedef struct fake_numa {
    _Atomic int64_t n_bound[2];
    int64_t n_asked;
    int refuse; /* errno of every binding */
    int answer; /* the node where all pages are said to be */
} fake_numa;

static int fake_bind(void *ctx, void *p, size_t bytes, int node)
{
    fake_numa *f = ctx;
    (void)p;
    assert_true(bytes > 0 && (node == 0 || node == 1));
    f->n_bound[node]++;
    return f->refuse;
}

static int fake_where(void *ctx, const void *p)
{
    fake_numa *f = ctx;
    (void)p;
    f->n_asked++;
    return f->answer;
}

/* Pages are counted, and those that lie wrong are seen. */
static void test_own_counts_pages(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_model *m = open_tiny();
    oct_topology t;
    assert_int_equal(oct_topology_load("numa:2 core:2 pu:1", &t, &err), OCT_OK);
    int64_t on_node[2];
    for (int node = 0; node < 2; node++) {
        fake_numa f = {.answer = node, .refuse = node ? EPERM : 0};
        const oct_numa numa = {fake_bind, fake_where, &f};
        oct_own_report r;
        oct_placement *owned;
        assert_int_equal(
            oct_placement_own_on(m, &(oct_own_params){.n_threads = 4}, &t, &numa, &owned, &r, &err),
            OCT_OK);
        assert_true(f.n_bound[0] > 0 && f.n_bound[1] > 0);
        assert_int_equal(r.pages_sampled, f.n_asked);
        assert_true(r.pages_sampled > 100);
        assert_int_equal(r.bind_errno, f.refuse);
        on_node[node] = r.pages_local;
        oct_placement_free(owned);
        if (node == 1) /* all pages belong to one of the two */
            assert_int_equal(on_node[0] + on_node[1], r.pages_sampled);
    }
    assert_true(on_node[0] > 0 && on_node[1] > 0);
    oct_topology_free(&t);
    oct_model_close(m);
}

static void test_own_cancelled(void **state)
{
    (void)state;
    const volatile int cancel = 1;
    oct_error err = {0};
    oct_own_report r;
    oct_placement *owned;
    oct_model *m = open_tiny();
    const oct_own_params p = {.n_threads = 2, .cancel = &cancel};
    assert_int_equal(oct_placement_own(m, &p, &owned, &r, &err), OCT_ERR_CANCELLED);
    assert_null(owned);
    float *logits = logits_of(m, NULL, NULL); /* still usable, from the mapping */
    free(logits);
    oct_model_close(m);
}

/* A model of which a part was kept refuses what needs more, whatever is called then. */
static void test_kept(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_own_report r;
    oct_placement *owned;
    oct_session *s;
    oct_model *m = open_tiny();
    assert_int_equal(oct_model_keep_part(m, 0, 2, (oct_shard_layout)77, &err), OCT_ERR_ARG);
    err = (oct_error){0};
    assert_int_equal(oct_model_keep_part(m, 2, 2, OCT_SHARD_SLICE, &err), OCT_ERR_ARG);
    err = (oct_error){0};
    assert_int_equal(oct_model_keep_part(m, 1, 2, OCT_SHARD_SLICE, &err), OCT_OK);
    assert_int_equal(oct_session_new(m, &(oct_session_params){0}, &s, &err), OCT_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "holds the part of rank 1 of 2 by slice"));
    err = (oct_error){0};
    assert_int_equal(oct_model_keep_part(m, 0, 2, OCT_SHARD_SLICE, &err), OCT_ERR_UNSUPPORTED);
    assert_int_equal(oct_placement_own(m, &(oct_own_params){.n_threads = 2}, &owned, &r, &err),
                     OCT_OK); /* of what is there */
    oct_placement_free(owned);
    oct_comm comm = {.rank = 1, .size = 2};
    int64_t next = 0;
    err = (oct_error){0};
    assert_int_equal(
        oct_session_new(m, &(oct_session_params){.n_threads = 2, .comm = &comm}, &s, &err), OCT_OK);
    assert_true(oct_measure_read(s, 4096, UINT64_MAX, &next) > 0 && next == 0);
    oct_session_free(s);
    oct_model_close(m);
    m = open_tiny();
    assert_int_equal(oct_model_keep_part(m, 0, 1, OCT_SHARD_EXPERT, &err), OCT_OK);
    assert_int_equal(oct_session_new(m, &(oct_session_params){.n_threads = 2}, &s, &err), OCT_OK);
    oct_session_free(s);
    oct_model_close(m);
}

/* Any numbers at all are refused or measured. */
static void test_operations(void **state)
{
    (void)state;
    static const int64_t wrong[] = {INT64_MIN, -1, 0, INT64_MAX};
    const oct_session_params p = {.n_threads = 1};
    oct_model *m = open_tiny();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        oct_error err = {0};
        oct_operation *o;
        int64_t n_seqs;
        assert_int_equal(oct_operation_experts(m, &p, wrong[i], 1, &o, &err), OCT_ERR_ARG);
        assert_null(o);
        assert_int_equal(oct_operation_attention(m, &p, wrong[i], 1 << 20, 1, &n_seqs, &o, &err),
                         OCT_ERR_ARG);
        assert_null(o);
    }
    oct_error err = {0};
    oct_operation *o;
    oct_operation_run run;
    int64_t n_seqs;
    assert_int_equal(oct_operation_attention(m, &p, 3, UINT64_MAX, 1, &n_seqs, &o, &err),
                     OCT_ERR_ARG);
    err = (oct_error){0};
    assert_int_equal(oct_operation_attention(m, &p, 3, 0, 1, &n_seqs, &o, &err), OCT_OK);
    assert_int_equal(n_seqs, 3);
    assert_int_equal(oct_operation_do(o, &run, &err), OCT_OK);
    oct_operation_free(o);
    oct_model_close(m);
}

/* Bytes of the attention matrices of all layers. */
static uint64_t attention_bytes(const oct_model *m)
{
    const oct_weight_layout *l[2] = {&m->layers[0].qkv.layout, &m->layers[0].attn_out.layout};
    uint64_t bytes = 0;
    for (int i = 0; i < 2; i++)
        bytes += (uint64_t)l[i]->n_slices * (l[i]->unit_stride + l[i]->scale_stride);
    return bytes * (uint64_t)m->config.n_layers;
}

static oct_session_need need_of(const oct_model *m, int rank, int size, oct_shard_layout by)
{
    oct_error err = {0};
    oct_session_need need;
    oct_comm comm = {.rank = rank, .size = size};
    const oct_session_params p = {
        .n_ctx = 200, .n_seqs = 2, .n_threads = 1, .shard = by, .comm = &comm};
    if (oct_session_estimate(m, &p, &need, &err) != OCT_OK)
        fail_msg("%s", err.text);
    return need;
}

/* With attention replicated a rank maps the attention matrices' other slices too and nothing else,
 * and has the caches of one process. */
static void test_replicated(void **state)
{
    (void)state;
    static const oct_shard_layout pairs[][2] = {
        {OCT_SHARD_SLICE, OCT_SHARD_SLICE_REPLICATED},
        {OCT_SHARD_EXPERT, OCT_SHARD_EXPERT_REPLICATED},
    };
    for (int pair = 0; pair < 2; pair++)
        for (int size = 2; size <= 8; size *= 2) {
            const int rank = size / 2;
            uint64_t mapped[2], more = 0;
            oct_session_need need[2];
            for (int k = 0; k < 2; k++) {
                oct_error err = {0};
                oct_model *m = open_tiny();
                oct_shard_layout by = pairs[pair][k];
                need[k] = need_of(m, rank, size, by);
                assert_int_equal(oct_model_keep_part(m, rank, size, by, &err), OCT_OK);
                mapped[k] = mapped_bytes();
                more = attention_bytes(m) / (uint64_t)size * (uint64_t)(size - 1);
                oct_model_close(m);
            }
            assert_true(more > 0 && mapped[1] - mapped[0] == more);
            assert_true(need[1].weights - need[0].weights == more);
            assert_true(need[1].weights <= mapped[1]);
            assert_true(need[1].kv == need[0].kv * (uint64_t)size);
            oct_model *m = open_tiny();
            assert_true(need[1].kv == need_of(m, 0, 1, OCT_SHARD_SLICE).kv);
            oct_model_close(m);
        }
}

static void test_keep_part(void **state)
{
    (void)state;
    for (int by = OCT_SHARD_SLICE; by <= OCT_SHARD_EXPERT; by++)
        for (int size = 2; size <= 8; size *= 2) {
            uint64_t sum = 0, whole = 0;
            for (int rank = 0; rank < size; rank++) {
                oct_error err = {0};
                oct_model *m = open_tiny();
                whole = mapped_bytes();
                assert_int_equal(oct_model_keep_part(m, rank, size, (oct_shard_layout)by, &err),
                                 OCT_OK);
                uint64_t part = mapped_bytes();
                assert_true(part < whole * 3 / 4);
                sum += part;
                oct_model_close(m);
            }
            /* every unit once; what is not a unit (header, norms, routers, tokenizer) on every
             * rank */
            assert_true(sum >= whole && sum - whole <= (uint64_t)(size - 1) * whole / 20);
        }
    oct_error err = {0};
    oct_model *m = open_tiny();
    assert_int_equal(oct_model_keep_part(m, 0, 3, OCT_SHARD_SLICE, &err), OCT_ERR_ARG);
    oct_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_own_reads_the_copy),
        cmocka_unit_test(test_own_counts_pages),
        cmocka_unit_test(test_own_cancelled),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_keep_part),
        cmocka_unit_test(test_replicated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

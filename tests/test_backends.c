/* test_backends.c: nodes dealt to the CPU and to devices with memories of their own, in every
 * pattern that a GPU will have and at random: the bits are those of one backend. And every copy
 * that the plan makes is needed: without it the result is another. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "poisoned_device.h"
#include "rig.h"
#include "thread_ranks.h"

static rig_rng rng;

enum { TOKENS = 150, CHUNK = 70, WANTED = 3 }; /* across a border of pages */

/* ---- who computes what ---- */

typedef enum pattern {
    ATTENTION, /* attention and the head on the device, experts on the CPU */
    EXPERTS,   /* the other way round */
    LAYERS,    /* whole layers in turn */
    FIRST,     /* the first layers and the embedding */
    EVERYTHING,
    TWO_DEVICES, /* attention on one, experts on another, the rest on the CPU */
    RANDOM,
    PATTERNS
} pattern;

static const char *const names[PATTERNS] = {"attention",    "experts",    "layers in turn",
                                            "first layers", "everything", "two devices",
                                            "random"};

static bool is_feed_forward(oct_op op)
{
    return op == OCT_OP_EXPERTS || op == OCT_OP_ROUTE || op == OCT_OP_COMBINE;
}

static void deal(void *ctx, const oct_graph *g, uint8_t *where)
{
    const pattern how = *(const pattern *)ctx;
    for (int i = 0; i < g->n_nodes; i++) {
        const oct_node *n = &g->nodes[i];
        const bool attention = n->op == OCT_OP_LINEAR || n->attn || n->op == OCT_OP_HEAD;
        switch (how) {
        case ATTENTION: where[i] = attention; break;
        case EXPERTS: where[i] = is_feed_forward(n->op); break;
        case LAYERS: where[i] = n->layer % 2 == 0; break;
        case FIRST: where[i] = n->layer < 2 && n->op != OCT_OP_HEAD; break;
        case EVERYTHING: where[i] = 1; break;
        case TWO_DEVICES: where[i] = attention ? 1 : n->op == OCT_OP_EXPERTS ? 2 : 0; break;
        default: where[i] = (uint8_t)rig_int(&rng, 0, 2); break;
        }
    }
}

/* ---- one session ---- */

static int32_t text[TOKENS];
static oct_model *model;

static void open_model(const char *name)
{
    oct_error err = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%s.gguf", OCT_TEST_MODELS, name);
    if (oct_model_open(path, &model, &err) != OCT_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < TOKENS; i++)
        text[i] = (int32_t)rig_int(&rng, 3, model->config.n_vocab - 1);
}

/* What a session makes of the text: the logits of its last tokens, and what its routers chose. */
typedef struct result {
    oct_status status;
    float *logits;
    uint64_t rows[OCT_WEIGHT_MAX_EXPERTS];
} result;

static result run_text(oct_session *s)
{
    const size_t V = (size_t)model->config.n_vocab;
    oct_error err = {0};
    oct_session_stats before, after;
    result r = {.logits = calloc(WANTED, V * sizeof *r.logits)};
    oct_session_truncate(s, 0, 0);
    oct_session_get_stats(s, &before);
    uint64_t rows[OCT_WEIGHT_MAX_EXPERTS];
    memcpy(rows, before.expert_rows, (size_t)model->config.n_experts * sizeof *rows);
    /* The CPU's memory is poisoned too; the devices do it themselves. */
    poison(&s->p.plan, OCT_HOST, s->runner.buffer[OCT_HOST]);
    r.status = oct_eval(s, &(oct_batch){.n = TOKENS - WANTED + 1, .token = text}, r.logits, &err);
    for (int i = 1; i < WANTED && r.status == OCT_OK; i++) {
        poison(&s->p.plan, OCT_HOST, s->runner.buffer[OCT_HOST]);
        r.status = oct_eval(s, &(oct_batch){.n = 1, .token = text + TOKENS - WANTED + i},
                            r.logits + (size_t)i * V, &err);
    }
    oct_session_get_stats(s, &after);
    for (int64_t e = 0; e < model->config.n_experts; e++)
        r.rows[e] = after.expert_rows[e] - rows[e];
    return r;
}

static bool same(const result *a, const result *b)
{
    return a->status == b->status && memcmp(a->rows, b->rows, sizeof a->rows) == 0 &&
           memcmp(a->logits, b->logits,
                  WANTED * (size_t)model->config.n_vocab * sizeof *a->logits) == 0;
}

static oct_session *session_on(const char *isa, const oct_devices *d)
{
    oct_error err = {0};
    oct_session *s;
    const oct_session_params p = {.n_threads = 2, .chunk = CHUNK, .isa = isa};
    if (oct_session_new_on(model, &p, d, &s, &err) != OCT_OK)
        fail_msg("%s", err.text);
    return s;
}

/* *row: what a device of the same kernels has. */
static result alone(const char *isa, oct_cpu_numbers *row)
{
    oct_session *s = session_on(isa, NULL);
    result r = run_text(s);
    *row = s->p.cpu;
    assert_int_equal(r.status, OCT_OK);
    oct_session_free(s);
    return r;
}

/* The first tensor that is read where it is not, by a simulation that knows nothing but who has
 * written what where; NULL: none. */
static const oct_tensor *reads_poison(const oct_plan *p)
{
    bool *good = calloc((size_t)(p->graph->n_tensors * OCT_MAX_PLACES), sizeof *good);
    const oct_tensor *bad = NULL;
    for (int i = 0; i < p->n_steps && !bad; i++) {
        const oct_step *s = &p->steps[i];
        const oct_tensor *read[3] = {s->copied, NULL, NULL}, *written = s->copied;
        if (s->node) {
            read[0] = s->node->in[0];
            read[1] = s->node->in[1];
            read[2] = oct_op_in_place(s->node->op) ? s->node->out : NULL;
            written = s->node->out;
        }
        int from = s->node ? s->place : s->from;
        for (int k = 0; k < 3; k++)
            if (read[k] && !good[read[k]->index * OCT_MAX_PLACES + from])
                bad = read[k];
        if (!written)
            continue;
        for (int q = 0; q < OCT_MAX_PLACES && s->node; q++) /* elsewhere it is old now */
            good[written->index * OCT_MAX_PLACES + q] = false;
        good[written->index * OCT_MAX_PLACES + s->place] = true;
    }
    for (int i = 0; i < p->graph->n_nodes && !bad; i++) { /* the runner counts choices */
        const oct_tensor *t = p->graph->nodes[i].out;
        if (t && t->routes && !good[t->index * OCT_MAX_PLACES + OCT_HOST])
            bad = t;
    }
    free(good);
    return bad;
}

/* Takes each copy out of the plan in turn. Without a router's choices there would be experts of any
 * number: those copies are only simulated. */
static int remove_copies(oct_session *s, const result *want, const char *what)
{
    oct_plan *p = &s->p.plan;
    int n = 0;
    for (int i = 0; i < p->n_steps; i++) {
        const oct_step copy = p->steps[i];
        if (copy.node)
            continue;
        n++;
        memmove(p->steps + i, p->steps + i + 1, (size_t)(p->n_steps - i - 1) * sizeof copy);
        p->n_steps--;
        result r = {0};
        if (!copy.copied->routes)
            r = run_text(s);
        if (copy.copied->routes ? !reads_poison(p) : same(&r, want))
            fail_msg("%s: copy %d, of '%s' from %d to %d, is not needed", what, i,
                     copy.copied->name, copy.from, copy.place);
        free(r.logits);
        memmove(p->steps + i + 1, p->steps + i, (size_t)(p->n_steps - i) * sizeof copy);
        p->steps[i] = copy;
        p->n_steps++;
    }
    return n;
}

static void check(pattern how, const char *isa, const oct_cpu_numbers *row, const result *want,
                  bool removing)
{
    const oct_kernels *k = row->k;
    const oct_cpu_numbers numbers = *row;
    const oct_devices d = {.n = 2,
                           .device = {{&poisoned_kind, &numbers, device_open},
                                      {&poisoned_kind, &numbers, device_open}},
                           .deal = deal,
                           .ctx = &how};
    oct_session *s = session_on(isa, &d);
    int copies = 0, there = 0;
    for (int i = 0; i < s->p.plan.n_steps; i++) {
        copies += !s->p.plan.steps[i].node;
        there += s->p.plan.steps[i].place > 0;
    }
    result r = run_text(s);
    if (!same(&r, want))
        fail_msg("%s, %s: other results", names[how], k->name);
    free(r.logits);
    if (removing) {
        assert_int_equal(remove_copies(s, want, names[how]), copies);
        r = run_text(s); /* all are back */
        assert_true(same(&r, want));
        free(r.logits);
        printf("  %s, %s: same bits, each of %d copies is needed\n", names[how], k->name, copies);
    }
    assert_true(there > 0);
    assert_true(how == EVERYTHING || copies > 0);
    oct_session_free(s);
}

static void test_patterns(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny-grok", "odd", "dense"};
    for (size_t m = 0; m < 3; m++) {
        open_model(models[m]);
        for (int row = 0; row < 2; row++) {
            const char *isa = row ? NULL : "ref";
            oct_cpu_numbers numbers;
            result want = alone(isa, &numbers);
            for (int how = 0; how < PATTERNS; how++)
                check((pattern)how, isa, &numbers, &want, row == 1 && m < 2 && how != RANDOM);
            for (int i = 0; i < 6 && row; i++)
                check(RANDOM, isa, &numbers, &want, i == 0);
            free(want.logits);
        }
        oct_model_close(model);
    }
}

/* ---- ranks ---- */

typedef struct rank_devices {
    pattern how;
    oct_cpu_numbers numbers[MAX_RANKS];
    oct_devices d[MAX_RANKS];
} rank_devices;

/* Every second rank has devices; all of them, and one process without, have the same bits. */
static void test_ranks_with_devices(void **state)
{
    (void)state;
    open_model("tiny-grok");
    job one = {.model = model,
               .params = {.n_threads = 1, .chunk = 16},
               .tokens = text,
               .B = 1,
               .T = 40,
               .n_ranks = 1};
    float *want = run_job(&one);
    size_t bytes = (size_t)(one.T * model->config.n_vocab) * sizeof *want;
    for (int ranks = 2; ranks <= 4; ranks *= 2)
        for (int by = 0; by < OCT_SHARD_LAYOUTS; by++)
            for (int how = 0; how < RANDOM; how++) {
                static rank_devices all;
                job many = one;
                many.n_ranks = ranks;
                many.params.shard = (oct_shard_layout)by;
                all.how = (pattern)how;
                for (int r = 1; r < ranks; r += 2) {
                    all.numbers[r] = (oct_cpu_numbers){.n_threads = 1, .n_domains = 1};
                    assert_null(oct_shard_make((oct_shard_layout)by, r, ranks,
                                               model->config.n_slices, model->config.n_experts,
                                               &all.numbers[r].shard));
                    assert_int_equal(
                        oct_kernels_choose(NULL, oct_isa_detect(), &all.numbers[r].k, NULL),
                        OCT_OK);
                    all.d[r] =
                        (oct_devices){.n = 2,
                                      .device = {{&poisoned_kind, &all.numbers[r], device_open},
                                                 {&poisoned_kind, &all.numbers[r], device_open}},
                                      .deal = deal,
                                      .ctx = &all.how};
                    many.devices[r] = &all.d[r];
                }
                float *got = run_job(&many);
                if (memcmp(want, got, bytes) != 0)
                    fail_msg("%d ranks by %s, %s: other bits", ranks,
                             oct_shard_name((oct_shard_layout)by), names[how]);
                free(got);
            }
    free(want);
    oct_model_close(model);
}

/* ---- what plans say ---- */

/* Any deal makes a plan in which nothing is read before it is there, copies go through the host,
 * and attention is where its keys are. */
static void test_random_plans(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_machine *machine;
    assert_int_equal(oct_machine_load(NULL, &machine, &err), OCT_OK);
    open_model("tiny-grok");
    const pattern how = RANDOM;
    oct_cpu_numbers numbers = {.k = oct_kernel_rows, .n_threads = 2, .n_domains = 1};
    assert_null(oct_shard_make(OCT_SHARD_SLICE, 0, 1, model->config.n_slices,
                               model->config.n_experts, &numbers.shard));
    oct_devices d = {.n = 2,
                     .device = {{&poisoned_kind, &numbers, device_open},
                                {&poisoned_kind, &numbers, device_open}},
                     .deal = deal,
                     .ctx = (void *)(uintptr_t)&how};
    for (int i = 0; i < 500; i++) {
        oct_session_plan s;
        const oct_session_params p = {.n_threads = 2, .chunk = 1 + i};
        assert_int_equal(oct_session_plan_make(model, &p, machine, &d, NULL, 0, &s, &err), OCT_OK);
        const oct_tensor *bad = reads_poison(&s.plan);
        if (bad)
            fail_msg("plan %d: '%s' is read where it is not", i, bad->name);
        int64_t kv_layers = 0;
        for (int q = 0; q < s.plan.n_places; q++)
            kv_layers += s.plan.need[q].kv_layers;
        assert_int_equal(kv_layers, model->config.n_layers);
        for (int k = 0, kv = 0; k < s.plan.n_steps; k++) {
            const oct_step *step = &s.plan.steps[k];
            if (!step->node)
                assert_true((step->from == OCT_HOST) != (step->place == OCT_HOST));
            else if (step->node->op == OCT_OP_ROPE_STORE)
                kv = step->place;
            else if (step->node->op == OCT_OP_ATTENTION)
                assert_int_equal(step->place, kv);
        }
        oct_session_plan_free(&s);
    }
    oct_model_close(model);
    oct_machine_free(machine);
}

int main(void)
{
    rng.state = rig_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_ranks_with_devices),
        cmocka_unit_test(test_random_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

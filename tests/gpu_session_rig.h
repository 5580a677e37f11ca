/* gpu_session_rig.h: what tests share that make sessions on the fake driver, with which they are
 * linked. To be included after cmocka.h. */
#ifndef OCT_TEST_GPU_SESSION_RIG_H
#define OCT_TEST_GPU_SESSION_RIG_H

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "convert.h"
#include "cuda.h"
#include "hparams.h"
#include "machine.h"
#include "rig.h"
#include "session_impl.h"

enum { TOKENS = 12, CHUNK = 8 };

/* The driver's, see fake_cuda.c. */
void fake_cuda_fail(long n, int code, int lasting);
int fake_cuda_left(char *words, size_t room);
long fake_cuda_calls(const char *name);

static oct_model *model;
static int32_t text[TOKENS];

/* A small model whose experts are most of it; returns the file's descriptor. */
static inline int open_made_up(int64_t n_experts, int64_t n_used)
{
    oct_error err = {0};
    char path[64];
    oct_grok_config c = oct_grok1_config(n_experts > 1 ? 2 : 6, 130);
    c.n_ctx = 64;
    c.d_model = 64;
    c.n_q_heads = 8;
    c.n_kv_heads = c.n_slices = c.attn_out_groups = c.down_groups = 4;
    c.n_experts = n_experts;
    c.head_dim = 16;
    c.d_ff = 256;
    c.n_used = n_used;
    const oct_synthetic_params p = {.config = &c, .seed = 1, .fd = memfd_create("model", 0)};
    if (oct_synthetic_write(&p, &err) != OCT_OK)
        fail_msg("%s", err.text);
    snprintf(path, sizeof path, "/proc/self/fd/%d", p.fd);
    if (oct_model_open(path, &model, &err) != OCT_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < TOKENS; i++)
        text[i] = 3 + 7 * i % 120;
    return p.fd;
}

/* The fake driver's, each with so much to be used. */
static inline oct_gpus gpus_of(uint64_t budget)
{
    oct_gpus g;
    oct_gpus_get(&g);
    assert_string_equal(g.why, "");
    assert_true(g.gpu[0].link > 0);
    for (int i = 0; i < g.n; i++)
        g.gpu[i].budget = budget;
    return g;
}

/* What is placed on the first of these GPUs by a rank. */
static inline oct_gpu_share share_of(const oct_session_params *like, int rank, int size,
                                     const oct_gpus *g)
{
    oct_error err = {0};
    static oct_machine *machine; /* asked for once: that takes long */
    oct_comm comm = {.rank = rank, .size = size};
    oct_session_params p = *like;
    oct_session_plan plan;
    p.comm = &comm;
    p.gpus = g;
    if (!machine)
        assert_int_equal(oct_machine_load(NULL, &machine, &err), OCT_OK);
    if (oct_session_plan_make(model, &p, machine, NULL, NULL, 0, &plan, &err) != OCT_OK)
        fail_msg("%s", err.text);
    const oct_gpu_share share = plan.gpus.n > 0 ? plan.gpus.share[0] : (oct_gpu_share){0};
    oct_session_plan_free(&plan);
    return share;
}

/* GPUs of which the first has room for a rank's attention and for streaming, but not for all
 * experts. */
static inline oct_gpus room_to_stream(const oct_session_params *p, int rank, int size)
{
    oct_gpus g = gpus_of(0);
    g.gpu[0].budget = 64 << 20;
    for (;; g.gpu[0].budget -= g.gpu[0].budget / 32) {
        const oct_gpu_share s = share_of(p, rank, size, &g);
        assert_true(g.gpu[0].budget > 1 << 16);
        if (s.streams && s.attention == model->config.n_layers)
            return g;
    }
}

#endif

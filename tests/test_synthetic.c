/* test_synthetic.c: model files with random weights are whole, repeatable, and run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "convert.h"
#include "hparams.h"
#include "octet.h"

/* Widths that are no multiples of a panel or a block, several scale groups, three slices. */
static oct_grok_config odd_config(void)
{
    oct_grok_config c = oct_grok1_config(2, 130);
    c.n_ctx = 64;
    c.d_model = 360;
    c.n_q_heads = 6;
    c.n_kv_heads = 3;
    c.head_dim = 20;
    c.d_ff = 408;
    c.n_experts = 5;
    c.n_slices = 3;
    c.attn_out_groups = 3;
    c.down_groups = 6;
    c.embedding_scale = sqrtf(360.0f);
    return c;
}

typedef struct file {
    int fd;
    char path[64];
} file;

/* experts: the type of their weights; NULL: q8. */
static file write_model(const oct_grok_config *config, const char *experts, uint64_t seed)
{
    oct_error err = {0};
    file f = {.fd = memfd_create("synthetic", MFD_CLOEXEC)};
    assert_true(f.fd >= 0);
    snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
    const oct_synthetic_params p = {.config = config, .experts = experts, .seed = seed, .fd = f.fd};
    if (oct_synthetic_write(&p, &err) != OCT_OK)
        fail_msg("%s", err.text);
    return f;
}

/* Tensors whose bytes do not have the checksum that the header tells. */
static int64_t damaged(const char *path)
{
    oct_gguf *g = NULL;
    oct_error err = {0};
    const void *sums = NULL;
    uint64_t n = 0;
    int64_t bad = 0;
    assert_int_equal(oct_gguf_open(path, &g, &err), OCT_OK);
    assert_int_equal(oct_gguf_get_array(g, OCT_GROK_KEY_TENSOR_SUMS, OCT_GGUF_U64, &sums, &n, &err),
                     OCT_OK);
    assert_int_equal(n, oct_gguf_n_tensors(g));
    for (uint64_t i = 0; i < n; i++) {
        const oct_gguf_tensor *t = oct_gguf_tensor_at(g, (int64_t)i);
        uint64_t sum;
        memcpy(&sum, (const char *)sums + 8 * i, sizeof sum);
        bad += XXH3_64bits(t->data, t->bytes) != sum;
    }
    oct_gguf_close(g);
    return bad;
}

static void test_checksums(void **state)
{
    (void)state;
    oct_grok_config c = odd_config();
    file f = write_model(&c, "q4g32", 1);
    assert_int_equal(damaged(f.path), 0);
    oct_gguf *g = NULL;
    oct_error err = {0};
    unsigned char byte;
    assert_int_equal(oct_gguf_open(f.path, &g, &err), OCT_OK);
    const oct_gguf_tensor *last = oct_gguf_tensor_at(g, oct_gguf_n_tensors(g) - 1);
    off_t at = (off_t)(last->offset + last->bytes - 1);
    oct_gguf_close(g);
    assert_int_equal(pread(f.fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(f.fd, &byte, 1, at), 1);
    assert_int_equal(damaged(f.path), 1);
    close(f.fd);
}

static uint64_t fingerprint(const oct_grok_config *c, uint64_t seed)
{
    oct_model *m = NULL;
    oct_error err = {0};
    file f = write_model(c, NULL, seed);
    if (oct_model_open(f.path, &m, &err) != OCT_OK)
        fail_msg("%s", err.text);
    uint64_t print = oct_model_get_info(m)->fingerprint;
    assert_int_equal(oct_model_get_info(m)->d_ff, c->d_ff);
    assert_false(oct_model_get_info(m)->has_tokenizer);
    oct_model_close(m);
    close(f.fd);
    return print;
}

/* The fingerprint covers the checksums of all tensors. */
static void test_seed(void **state)
{
    (void)state;
    oct_grok_config c = odd_config();
    assert_true(fingerprint(&c, 7) == fingerprint(&c, 7));
    assert_true(fingerprint(&c, 7) != fingerprint(&c, 8));
}

enum { N_TOKENS = 12, N_VOCAB = 130 };

static void logits_of(const oct_model *m, const char *isa, float out[N_TOKENS][N_VOCAB])
{
    int32_t token[N_TOKENS];
    uint8_t want[N_TOKENS];
    oct_error err = {0};
    oct_session *s = NULL;
    const oct_session_params p = {.n_ctx = 32, .n_threads = 2, .isa = isa};
    for (int i = 0; i < N_TOKENS; i++)
        token[i] = 3 + 7 * i;
    memset(want, 1, sizeof want);
    if (oct_session_new(m, &p, &s, &err) != OCT_OK)
        fail_msg("%s", err.text);
    const oct_batch b = {N_TOKENS, token, NULL, want};
    if (oct_eval(s, &b, out[0], &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_session_free(s);
}

/* Logits of a size that a model could have, different for every position, and the plain reference
 * row agrees. */
static void run_of(const char *experts)
{
    static float best[N_TOKENS][N_VOCAB], ref[N_TOKENS][N_VOCAB];
    oct_grok_config c = odd_config();
    oct_model *m = NULL;
    oct_error err = {0};
    file f = write_model(&c, experts, 3);
    assert_int_equal(oct_model_open(f.path, &m, &err), OCT_OK);
    logits_of(m, NULL, best);
    logits_of(m, "ref", ref);
    double square = 0, wrong = 0;
    for (int i = 0; i < N_TOKENS; i++) {
        for (int k = 0; k < N_VOCAB; k++) {
            double d = (double)best[i][k] - (double)ref[i][k];
            square += (double)ref[i][k] * (double)ref[i][k];
            wrong += d * d;
        }
        if (i > 0)
            assert_memory_not_equal(best[i], best[i - 1], sizeof best[i]);
    }
    double size = sqrt(square / (N_TOKENS * N_VOCAB));
    print_message("%s: logits: root mean square %.3f, difference %.2g of it\n", experts, size,
                  sqrt(wrong / square));
    assert_true(size > 0.1 && size < 10);
    assert_true(sqrt(wrong / square) < 1e-3);
    oct_model_close(m);
    close(f.fd);
}

static void test_run(void **state)
{
    (void)state;
    run_of("q8");
    run_of("q4g32");
    run_of("q4g16");
}

static void test_refused(void **state)
{
    (void)state;
    oct_error err = {0};
    volatile int cancel = 1;
    int fd = memfd_create("synthetic", MFD_CLOEXEC);
    oct_grok_config config = odd_config();
    oct_synthetic_params p = {.config = &config, .fd = fd};
    config.d_model = 0;
    assert_int_not_equal(oct_synthetic_write(&p, &err), OCT_OK);
    config = odd_config();
    p.cancel = &cancel;
    assert_int_equal(oct_synthetic_write(&p, &err), OCT_ERR_CANCELLED);
    close(fd);
    p.cancel = NULL;
    p.experts = "q9";
    assert_int_equal(oct_synthetic_write(&p, &err), OCT_ERR_ARG);
    p.experts = NULL;
    p.fd = -1;
    assert_int_equal(oct_synthetic_write(&p, &err), OCT_ERR_IO);
}

static void test_grok1(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_grok_config c = oct_grok1_config(64, 131072);
    assert_int_equal(oct_grok_config_check(&c, &err), OCT_OK);
    /* 314 billion parameters, the tied table once */
    double d = 6144, layer = d * 128 * (48 + 2 * 8) + d * 6144 + 8 * 3 * d * 32768;
    double all = 64 * layer + 131072 * d;
    assert_true(all > 313e9 && all < 317e9);
    assert_int_equal(c.d_model * c.d_ff * 3, 603979776);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksums), cmocka_unit_test(test_seed),  cmocka_unit_test(test_run),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_grok1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

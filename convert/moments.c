/* moments.c: second moments of experts' inputs: gathered by a run over a text, kept as a file.
 *
 * The file, little-endian: "OCTMOM01", u64 fingerprint of the model, u64 layers, experts, inputs of
 * gate and up, inputs of down, tokens; u64 tokens seen [layers][experts]; then for each layer,
 * expert, matrix (0, 1) and block of 256 inputs the rows of its lower triangle, f32; u64 XXH3 of
 * all before. */
#include "moments.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "session_impl.h"

enum { BLOCK = OCT_MOMENT_BLOCK, HEAD_WORDS = 7 };
static const char magic[9] = "OCTMOM01";

struct oct_moments {
    uint64_t fingerprint;
    int64_t n_layers, n_experts, n_in[2], n_tokens;
    int64_t *seen;      /* [layers][experts] */
    float *sum;         /* mapped: [layers][experts] { blocks of 0, blocks of 1 } */
    size_t expert_sums; /* floats of one expert */
};

/* Floats of the blocks of n inputs. */
static size_t floats_of(int64_t n)
{
    const size_t whole = (size_t)(n / BLOCK), rest = (size_t)(n % BLOCK);
    return whole * BLOCK * (BLOCK + 1) / 2 + rest * (rest + 1) / 2;
}

static size_t all_floats(const oct_moments *m)
{
    return (size_t)(m->n_layers * m->n_experts) * m->expert_sums;
}

static float *block_at(const oct_moments *m, int64_t layer, int64_t expert, int which,
                       int64_t block)
{
    return m->sum + (size_t)(layer * m->n_experts + expert) * m->expert_sums +
           (which ? floats_of(m->n_in[0]) : 0) + floats_of(block * BLOCK);
}

const float *oct_moments_block(const oct_moments *m, int64_t layer, int64_t expert, int which,
                               int64_t block)
{
    return block_at(m, layer, expert, which, block);
}

int64_t oct_moments_inputs(const oct_moments *m, int which)
{
    return m->n_in[which];
}

int64_t oct_moments_tokens(const oct_moments *m)
{
    return m->n_tokens;
}

int64_t oct_moments_seen(const oct_moments *m, int64_t layer, int64_t expert)
{
    if (layer < 0 || layer >= m->n_layers || expert < 0 || expert >= m->n_experts)
        return 0;
    return m->seen[layer * m->n_experts + expert];
}

void oct_moments_free(oct_moments *m)
{
    if (!m)
        return;
    if (m->sum)
        munmap(m->sum, all_floats(m) * sizeof *m->sum);
    free(m->seen);
    free(m);
}

static oct_status moments_new(const oct_model *of, oct_moments **out, oct_error *err)
{
    const oct_grok_config *c = &of->config;
    oct_moments *m = calloc(1, sizeof *m);
    if (!m)
        return oct_fail(err, OCT_ERR_MEMORY, "moments: out of memory");
    *m = (oct_moments){.fingerprint = of->info.fingerprint,
                       .n_layers = c->n_layers,
                       .n_experts = c->n_experts,
                       .n_in = {c->d_model, c->d_ff},
                       .expert_sums = floats_of(c->d_model) + floats_of(c->d_ff)};
    m->seen = calloc((size_t)(c->n_layers * c->n_experts), sizeof *m->seen);
    void *p = mmap(NULL, all_floats(m) * sizeof(float), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    m->sum = p == MAP_FAILED ? NULL : p;
    if (!m->seen || !m->sum) {
        const size_t bytes = all_floats(m) * sizeof(float);
        oct_moments_free(m);
        return oct_fail(err, OCT_ERR_MEMORY, "moments: no memory for %zu bytes of sums", bytes);
    }
    *out = m;
    return OCT_OK;
}

/* ---- gathering ------------------------------------------------------------------------------- */

/* sum[0..n-1] += x[..] * f for every row, ascending: one row of a block's triangle. */
static void add_rows(float *restrict sum, const float *const *row, int n_rows, int64_t first,
                     int64_t i)
{
    for (int r = 0; r < n_rows; r++) {
        const float *x = row[r] + first, f = x[i];
        for (int64_t j = 0; j <= i; j++)
            sum[j] += f * x[j];
    }
}

/* Threads share the rows of triangles, in turns. */
static void see(void *ctx, int thread, int n_threads, int64_t layer, int64_t expert, int which,
                const float *const *row, int n)
{
    oct_moments *m = ctx;
    if (thread == 0 && which == 0)
        m->seen[layer * m->n_experts + expert] += n;
    for (int64_t first = 0; first < m->n_in[which]; first += BLOCK) {
        const int64_t left = m->n_in[which] - first, size = left < BLOCK ? left : BLOCK;
        float *block = block_at(m, layer, expert, which, first / BLOCK);
        for (int64_t i = thread; i < size; i += n_threads)
            add_rows(block + i * (i + 1) / 2, row, n, first, i);
    }
}

/* All logits are wanted, since only rows whose logits are wanted go through the last layer. */
static oct_status run_windows(oct_moments *m, oct_session *s, const oct_text_params *p,
                              int64_t window, const uint8_t *want, float *logits, oct_error *err)
{
    for (int64_t at = 0; at < p->n; at += window) {
        const int64_t n = p->n - at < window ? p->n - at : window;
        oct_session_truncate(s, 0, 0);
        OCT_TRY(oct_eval(s, &(oct_batch){n, p->ids + at, NULL, want}, logits, err));
        m->n_tokens += n;
        if (p->progress)
            p->progress(p->progress_ctx, (uint64_t)(at + n), (uint64_t)p->n);
    }
    return OCT_OK;
}

oct_status oct_text_window(const oct_model *m, const oct_text_params *p, int64_t *window,
                           oct_error *err)
{
    const int64_t n_ctx = m->info.n_ctx;
    *window = p->window ? p->window : n_ctx < 512 ? n_ctx : 512;
    if (*window < 1 || *window > n_ctx)
        return oct_fail(err, OCT_ERR_ARG, "windows of %lld tokens, expected 1 to %lld, the context",
                        (long long)*window, (long long)n_ctx);
    return OCT_OK;
}

oct_status oct_moments_gather(const oct_model *of, const oct_text_params *p, oct_moments **out,
                              oct_error *err)
{
    int64_t window;
    oct_session_params sp = p->session ? *p->session : (oct_session_params){0};
    *out = NULL;
    if (p->n < 1 || sp.comm)
        return oct_fail(err, OCT_ERR_ARG, "moments: %lld tokens%s", (long long)p->n,
                        sp.comm ? "; ranks cannot gather them" : ", expected at least 1");
    OCT_TRY(oct_text_window(of, p, &window, err));
    sp.n_ctx = window;
    sp.n_seqs = 1;
    sp.cancel = p->cancel;
    oct_moments *m = NULL;
    oct_session *s = NULL;
    OCT_TRY(moments_new(of, &m, err));
    const oct_tap tap = {see, m};
    uint8_t *want = malloc((size_t)window);
    float *logits = calloc((size_t)window, (size_t)of->config.n_vocab * sizeof *logits);
    oct_status status = OCT_OK;
    if (!want || !logits)
        status = oct_fail(err, OCT_ERR_MEMORY, "moments: no memory for the logits of %lld tokens",
                          (long long)window);
    if (status == OCT_OK)
        status = oct_session_new(of, &sp, &s, err);
    if (status == OCT_OK) {
        memset(want, 1, (size_t)window);
        s->tap = &tap;
        status = run_windows(m, s, p, window, want, logits, err);
    }
    oct_session_free(s);
    free(logits);
    free(want);
    if (status == OCT_OK)
        *out = m;
    else
        oct_moments_free(m);
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void head_of(const oct_moments *m, uint64_t head[HEAD_WORDS])
{
    memcpy(head, magic, 8);
    head[1] = m->fingerprint;
    head[2] = (uint64_t)m->n_layers;
    head[3] = (uint64_t)m->n_experts;
    head[4] = (uint64_t)m->n_in[0];
    head[5] = (uint64_t)m->n_in[1];
    head[6] = (uint64_t)m->n_tokens;
}

/* One part of the file, in order. */
typedef struct moment_part {
    const void *data;
    size_t bytes;
} moment_part;

oct_status oct_moments_write(const oct_moments *m, const char *path, oct_error *err)
{
    uint64_t head[HEAD_WORDS], sum, at = 0;
    head_of(m, head);
    const moment_part part[] = {{head, sizeof head},
                                {m->seen, (size_t)(m->n_layers * m->n_experts) * sizeof *m->seen},
                                {m->sum, all_floats(m) * sizeof *m->sum},
                                {&sum, sizeof sum}};
    oct_output o = {.fd = -1};
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return oct_fail(err, OCT_ERR_MEMORY, "moments: no memory for a checksum");
    XXH3_64bits_reset(state);
    for (int i = 0; i < 3; i++) {
        XXH3_64bits_update(state, part[i].data, part[i].bytes);
        at += part[i].bytes;
    }
    sum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    oct_status s = oct_output_create(&o, path, at + sizeof sum, NULL, err);
    at = 0;
    for (int i = 0; i < 4 && s == OCT_OK; i++) {
        s = oct_output_write(&o, part[i].data, part[i].bytes, at, err);
        at += part[i].bytes;
    }
    if (s == OCT_OK)
        s = oct_output_sync(&o, err);
    if (s == OCT_OK)
        s = oct_output_publish(&o, err);
    oct_output_close(&o);
    return s;
}

/* Reads the parts behind the head and compares the checksum. */
static oct_status read_rest(oct_moments *m, FILE *f, const char *path,
                            const uint64_t head[HEAD_WORDS], oct_error *err)
{
    uint64_t sum = 0, found;
    const size_t n_seen = (size_t)(m->n_layers * m->n_experts), n_sums = all_floats(m);
    if (fread(m->seen, sizeof *m->seen, n_seen, f) != n_seen ||
        fread(m->sum, sizeof *m->sum, n_sums, f) != n_sums || fread(&sum, sizeof sum, 1, f) != 1 ||
        fgetc(f) != EOF)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: expected %zu bytes of moments, found another size", path,
                        HEAD_WORDS * 8 + n_seen * sizeof *m->seen + n_sums * sizeof *m->sum + 8);
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return oct_fail(err, OCT_ERR_MEMORY, "%s: no memory for a checksum", path);
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, head, HEAD_WORDS * 8);
    XXH3_64bits_update(state, m->seen, n_seen * sizeof *m->seen);
    XXH3_64bits_update(state, m->sum, n_sums * sizeof *m->sum);
    found = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    if (found != sum)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: checksum %016llx, expected %016llx: damaged",
                        path, (unsigned long long)found, (unsigned long long)sum);
    return OCT_OK;
}

oct_status oct_moments_read(const char *path, const oct_model *of, oct_moments **out,
                            oct_error *err)
{
    uint64_t head[HEAD_WORDS], want[HEAD_WORDS];
    oct_moments *m = NULL;
    *out = NULL;
    FILE *f = fopen(path, "rbe");
    if (!f)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    oct_status s = OCT_OK;
    if (fread(head, sizeof head, 1, f) != 1 || memcmp(head, magic, 8) != 0)
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: is no file of moments (expected '%s' at its start)",
                     path, magic);
    if (s == OCT_OK)
        s = moments_new(of, &m, err);
    if (s == OCT_OK) {
        m->n_tokens = (int64_t)(head[6] & INT64_MAX);
        head_of(m, want);
        if (memcmp(head, want, sizeof head - 8) != 0)
            s = oct_fail(err, OCT_ERR_ARG,
                         "%s: moments of another model (fingerprint %016llx, this one has %016llx)",
                         path, (unsigned long long)head[1], (unsigned long long)want[1]);
    }
    if (s == OCT_OK)
        s = read_rest(m, f, path, head, err);
    fclose(f);
    if (s == OCT_OK)
        *out = m;
    else
        oct_moments_free(m);
    return s;
}

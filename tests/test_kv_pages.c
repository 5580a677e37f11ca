/* test_kv_pages.c: page tables against a plain model, and the memory of pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv_cache.h"
#include "rig.h"

enum { SEQS = 5, CTX = 700, MAX_PAGES = 40, MAX_BATCH = 400 };

/* ---- the plain model: ids per sequence, and what a memory of pages would hold ---- */

typedef struct world {
    oct_kv_pages p;
    rig_rng rng;
    int32_t ids[SEQS][CTX]; /* what each sequence must hold */
    int64_t len[SEQS];
    uint64_t content[MAX_PAGES][OCT_KV_PAGE]; /* of a position: a hash of all ids up to it */
    uint64_t copied;
    int64_t full, reused, undone, orphans; /* how often it happened */
} world;

static uint64_t continue_hash(uint64_t hash, int32_t id)
{
    hash = (hash ^ (uint64_t)(uint32_t)id) * 0xff51afd7ed558ccdu;
    return hash ^ hash >> 32;
}

static uint64_t collide(uint64_t before, const int32_t *ids, int64_t n)
{
    (void)before;
    (void)ids;
    (void)n;
    return 7;
}

static void world_new(world *w, int64_t n_pages, oct_kv_hash_fn *hash, uint64_t seed)
{
    oct_error err = {0};
    memset(w, 0, sizeof *w);
    w->rng.state = seed;
    assert_int_equal(oct_kv_pages_init(&w->p, SEQS, CTX, n_pages, hash, &err), OCT_OK);
}

/* How many sequences hold each page, by the tables of those that must. */
static int64_t count_holders(const world *w, int *holders)
{
    int64_t used = 0;
    memset(holders, 0, MAX_PAGES * sizeof *holders);
    for (int64_t q = 0; q < SEQS; q++)
        for (int64_t pos = 0; pos < w->len[q]; pos += OCT_KV_PAGE)
            used += holders[oct_kv_page_at(&w->p, q, pos)]++ == 0;
    return used;
}

/* The list of the index: each page stands behind the one that it continues, and those are all
 * that can be found from the beginning; pages whose beginning was given up are not among them.
 * Returns how many. */
static int64_t check_list(const world *w)
{
    oct_error err = {0};
    oct_kv_listed *list;
    bool listed[MAX_PAGES] = {false};
    int64_t n, orphans = 0;
    assert_int_equal(oct_kv_pages_list(&w->p, &list, &n, &err), OCT_OK);
    for (int64_t i = 0; i < n; i++) {
        const oct_kv_page *page = &w->p.page[list[i].page];
        assert_true(page->serial > 0 && !listed[list[i].page] && list[i].parent < i);
        assert_true(page->parent ==
                    (list[i].parent < 0 ? 0 : w->p.page[list[list[i].parent].page].serial));
        listed[list[i].page] = true;
    }
    for (int64_t i = 0; i < w->p.n_pages; i++) {
        bool before = w->p.page[i].parent == 0;
        for (int64_t k = 0; k < w->p.n_pages && !before; k++)
            before = listed[k] && w->p.page[k].serial == w->p.page[i].parent;
        orphans += w->p.page[i].serial > 0 && !before;
        assert_int_equal(listed[i], w->p.page[i].serial > 0 && before);
    }
    free(list);
    return orphans;
}

static void check(world *w)
{
    int holders[MAX_PAGES];
    int64_t used = count_holders(w, holders), queued = 0, stacked = 0;
    for (int64_t q = 0; q < SEQS; q++) {
        uint64_t hash = 0;
        assert_int_equal(w->p.len[q], w->len[q]);
        for (int64_t pos = 0; pos < w->len[q]; pos++) {
            hash = continue_hash(hash, w->ids[q][pos]);
            int64_t page = oct_kv_page_at(&w->p, q, pos);
            assert_int_equal(w->p.ids[page][pos % OCT_KV_PAGE], w->ids[q][pos]);
            assert_true(w->content[page][pos % OCT_KV_PAGE] == hash);
        }
    }
    for (int64_t i = 0; i < w->p.n_pages; i++)
        assert_int_equal(w->p.page[i].refs, holders[i]);
    for (int32_t i = w->p.oldest; i >= 0; i = w->p.page[i].newer, queued++)
        assert_true(holders[i] == 0 && w->p.page[i].serial > 0);
    for (int32_t i = w->p.free; i >= 0; i = w->p.page[i].newer, stacked++)
        assert_true(holders[i] == 0 && w->p.page[i].serial == 0);
    assert_int_equal(queued, w->p.n_cached);
    assert_int_equal(stacked, w->p.n_free);
    assert_int_equal(used + queued + stacked + w->p.n_fresh, w->p.n_pages);
    assert_int_equal(w->p.n_copied, w->copied);
    w->orphans += check_list(w);
}

/* What a batch needs, counted from the tables: of m sequences of a batch on a page that r hold
 * all but one must copy it, or all if there are others. */
static int64_t count_needed(const world *w, const int32_t *seq, int64_t n)
{
    int holders[MAX_PAGES], appenders[MAX_PAGES] = {0};
    int64_t len[SEQS], need = 0;
    count_holders(w, holders);
    memcpy(len, w->len, sizeof len);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = len[seq[i]]++;
        if (at % OCT_KV_PAGE == 0)
            need++;
        else if (at == w->len[seq[i]])
            appenders[oct_kv_page_at(&w->p, seq[i], at)]++;
    }
    for (int i = 0; i < MAX_PAGES; i++)
        if (appenders[i])
            need += appenders[i] < holders[i] ? appenders[i] : holders[i] - 1;
    return need;
}

static void copy_pages(world *w, bool fails)
{
    for (int64_t i = 0; i < w->p.n_copies; i++) {
        const oct_kv_copy *c = &w->p.copies[i];
        int64_t n_pos = fails ? rig_int(&w->rng, 0, c->n_pos) : c->n_pos;
        memcpy(w->content[c->to], w->content[c->from], (size_t)n_pos * sizeof **w->content);
    }
}

/* Writes what the begun part of a batch computes, or nonsense if it fails in the middle. Copies
 * may be made before and after. */
static void compute(world *w, const int32_t *seq, const int32_t *pos, int64_t n, bool fails)
{
    bool late = rig_int(&w->rng, 0, 1);
    if (!late)
        copy_pages(w, fails);
    for (int64_t i = 0; i < n; i++) {
        int64_t page = oct_kv_page_at(&w->p, seq[i], pos[i]);
        uint64_t hash = 0;
        for (int32_t k = 0; k <= pos[i]; k++)
            hash = continue_hash(hash, w->ids[seq[i]][k]);
        w->content[page][pos[i] % OCT_KV_PAGE] = fails ? 1 : hash;
    }
    if (late)
        copy_pages(w, fails);
}

/* A batch in parts, mixed or one sequence after the other; may fail in any part. Ids are few, so
 * that equal beginnings are common. */
static void append(world *w)
{
    int32_t seq[MAX_BATCH], ids[MAX_BATCH], pos[MAX_BATCH];
    int64_t n = rig_int(&w->rng, 1, MAX_BATCH), part = rig_int(&w->rng, 1, n), first = 0;
    bool mixed = rig_int(&w->rng, 0, 1);
    for (int64_t i = 0; i < n; i++)
        seq[i] = (int32_t)(mixed || i % 100 == 0 ? rig_int(&w->rng, 0, SEQS - 1) : seq[i - 1]);
    oct_error err = {0};
    oct_status status = oct_kv_pages_check(&w->p, seq, n, &err);
    int64_t after[SEQS];
    bool past = false;
    memcpy(after, w->len, sizeof after);
    for (int64_t i = 0; i < n; i++)
        past |= ++after[seq[i]] > CTX;
    bool fits = count_needed(w, seq, n) <= w->p.n_fresh + w->p.n_free + w->p.n_cached;
    assert_int_equal(status, past ? OCT_ERR_ARG : fits ? OCT_OK : OCT_ERR_FULL);
    w->full += status == OCT_ERR_FULL;
    for (; status == OCT_OK && first < n; first += part) {
        int64_t rows = n - first < part ? n - first : part, was[SEQS];
        memcpy(was, w->len, sizeof was);
        for (int64_t i = first; i < first + rows; i++) {
            int64_t at = w->len[seq[i]]++;
            ids[i] = (int32_t)(rig_int(&w->rng, 0, 300) == 0 ? 1 : at / 200);
            w->ids[seq[i]][at] = ids[i];
        }
        oct_kv_pages_begin(&w->p, seq + first, ids + first, rows, pos);
        bool fails = rig_int(&w->rng, 0, 9) == 0;
        compute(w, seq + first, pos, rows, fails);
        w->copied += fails ? 0 : (uint64_t)w->p.n_copies;
        oct_kv_pages_end(&w->p, !fails);
        if (fails) {
            memcpy(w->len, was, sizeof was);
            w->undone++;
            break;
        }
    }
}

static void reuse(world *w)
{
    int32_t ids[CTX];
    int64_t q = rig_int(&w->rng, 0, SEQS - 1), from = rig_int(&w->rng, 0, SEQS - 1);
    int64_t n = rig_int(&w->rng, 1, CTX);
    oct_kv_pages_truncate(&w->p, q, 0);
    w->len[q] = 0;
    for (int64_t i = 0; i < n; i++) /* of another sequence, or the usual ids */
        ids[i] = i < w->len[from] ? w->ids[from][i] : (int32_t)(i / 200);
    int64_t held = oct_kv_pages_reuse(&w->p, q, ids, n), most = w->len[from];
    most = most < n ? most : n;
    assert_true(held >= most / OCT_KV_PAGE * OCT_KV_PAGE && held <= n && held % OCT_KV_PAGE == 0);
    memcpy(w->ids[q], ids, (size_t)held * sizeof *ids);
    w->len[q] = held;
    w->reused += held > most;
}

static void step(world *w)
{
    int64_t q = rig_int(&w->rng, 0, SEQS - 1), to = rig_int(&w->rng, 0, SEQS - 1);
    switch (rig_int(&w->rng, 0, 5)) {
    case 0:
    case 1: append(w); break;
    case 2:
        if (q == to)
            break;
        oct_kv_pages_truncate(&w->p, to, 0);
        oct_kv_pages_fork(&w->p, q, to);
        w->len[to] = w->len[q];
        memcpy(w->ids[to], w->ids[q], sizeof w->ids[q]);
        break;
    case 3:
        w->len[q] = rig_int(&w->rng, 0, w->len[q]);
        oct_kv_pages_truncate(&w->p, q, w->len[q]);
        break;
    case 4:
        w->len[q] = 0;
        oct_kv_pages_truncate(&w->p, q, 0);
        break;
    default: reuse(w); break;
    }
}

static void run_world(int64_t n_pages, oct_kv_hash_fn *hash, uint64_t seed, int steps)
{
    world *w = malloc(sizeof *w);
    world_new(w, n_pages, hash, seed);
    for (int i = 0; i < steps; i++) {
        step(w);
        check(w);
    }
    printf(
        "  %lld pages: %lld refused, %lld undone, %lld copies, %lld times found what nobody held\n",
        (long long)n_pages, (long long)w->full, (long long)w->undone, (long long)w->copied,
        (long long)w->reused);
    assert_true(w->copied > 0 && w->undone > 0 && w->reused > 0);
    assert_true(n_pages >= MAX_PAGES || w->full > 0);
    assert_true(n_pages >= MAX_PAGES || w->orphans > 0);
    for (int64_t q = 0; q < SEQS; q++) {
        oct_kv_pages_truncate(&w->p, q, 0);
        w->len[q] = 0;
    }
    check(w); /* nothing leaks */
    oct_kv_pages_free(&w->p);
    free(w);
}

static void test_random(void **state)
{
    (void)state;
    uint64_t seed = rig_seed();
    run_world(MAX_PAGES, NULL, seed, 3000);
    run_world(9, NULL, seed + 1, 3000);
    run_world(6, NULL, seed + 2, 3000);
}

/* With one hash for all the ids alone tell pages apart. */
static void test_collisions(void **state)
{
    (void)state;
    run_world(MAX_PAGES, collide, 1, 2000);
    run_world(9, collide, 2, 2000);
}

/* The same calls, the same tables. */
static void test_repeatable(void **state)
{
    (void)state;
    world *w[2];
    for (int k = 0; k < 2; k++) {
        w[k] = malloc(sizeof **w);
        world_new(w[k], 9, NULL, 5);
        for (int i = 0; i < 1000; i++)
            step(w[k]);
    }
    for (int64_t q = 0; q < SEQS; q++)
        for (int64_t pos = 0; pos < w[0]->len[q]; pos += OCT_KV_PAGE)
            assert_int_equal(oct_kv_page_at(&w[0]->p, q, pos), oct_kv_page_at(&w[1]->p, q, pos));
    for (int k = 0; k < 2; k++) {
        oct_kv_pages_free(&w[k]->p);
        free(w[k]);
    }
}

/* ---- single cases ---- */

/* n tokens of one id. */
static void put(oct_kv_pages *p, int32_t seq, int32_t id, int64_t n)
{
    int32_t seqs[CTX], ids[CTX], pos[CTX];
    oct_error err = {0};
    for (int64_t i = 0; i < n; i++) {
        seqs[i] = seq;
        ids[i] = id;
    }
    assert_int_equal(oct_kv_pages_check(p, seqs, n, &err), OCT_OK);
    oct_kv_pages_begin(p, seqs, ids, n, pos);
    oct_kv_pages_end(p, true);
}

static int64_t find_ids(oct_kv_pages *p, int32_t id, int64_t n)
{
    int32_t ids[CTX];
    for (int64_t i = 0; i < n; i++)
        ids[i] = id;
    int64_t held = oct_kv_pages_reuse(p, SEQS - 1, ids, n);
    oct_kv_pages_truncate(p, SEQS - 1, 0);
    return held;
}

/* Cached pages are given up in the order of their last use, a page before what it continues. */
static void test_order(void **state)
{
    (void)state;
    oct_kv_pages p;
    oct_error err = {0};
    assert_int_equal(oct_kv_pages_init(&p, SEQS, CTX, 6, NULL, &err), OCT_OK);
    for (int32_t id = 1; id <= 3; id++) { /* two pages each */
        put(&p, 0, id, 2 * OCT_KV_PAGE);
        oct_kv_pages_truncate(&p, 0, 0);
    }
    assert_int_equal(p.n_cached, 6);
    assert_int_equal(find_ids(&p, 1, CTX), 2 * OCT_KV_PAGE); /* now 2 is the oldest */
    put(&p, 0, 4, 1);
    assert_int_equal(find_ids(&p, 2, CTX), OCT_KV_PAGE);
    put(&p, 1, 5, OCT_KV_PAGE + 1); /* 3 is */
    assert_int_equal(find_ids(&p, 3, CTX), 0);
    assert_int_equal(find_ids(&p, 2, CTX), OCT_KV_PAGE);
    assert_int_equal(find_ids(&p, 1, CTX), 2 * OCT_KV_PAGE);
    oct_kv_pages_truncate(&p, 1, OCT_KV_PAGE + 1); /* the free page goes first */
    oct_kv_pages_truncate(&p, 1, OCT_KV_PAGE);
    put(&p, 2, 6, 1);
    assert_int_equal(p.n_cached, 3);
    assert_int_equal(find_ids(&p, 1, CTX), 2 * OCT_KV_PAGE);
    oct_kv_pages_free(&p);
}

/* Sequences that came to hold the same ids by themselves share their full pages. */
static void test_equal(void **state)
{
    (void)state;
    oct_kv_pages p;
    oct_error err = {0};
    assert_int_equal(oct_kv_pages_init(&p, SEQS, CTX, 8, NULL, &err), OCT_OK);
    put(&p, 0, 1, 300);
    put(&p, 1, 1, 300);
    assert_int_equal(oct_kv_page_at(&p, 0, 255), oct_kv_page_at(&p, 1, 255));
    assert_int_not_equal(oct_kv_page_at(&p, 0, 256), oct_kv_page_at(&p, 1, 256));
    assert_int_equal(p.n_fresh + p.n_free, 4);
    /* What one sequence writes into a page that it has to itself is nothing that others find. */
    oct_kv_pages_truncate(&p, 1, 0);
    oct_kv_pages_truncate(&p, 0, 200);
    put(&p, 0, 2, 20);
    assert_int_equal(find_ids(&p, 1, CTX), OCT_KV_PAGE);
    oct_kv_pages_free(&p);
}

static void test_forks(void **state)
{
    (void)state;
    oct_kv_pages p;
    oct_error err = {0};
    assert_int_equal(oct_kv_pages_init(&p, SEQS, CTX, 7, NULL, &err), OCT_OK);
    put(&p, 0, 1, 300);
    for (int i = 0; i < 1000; i++) {
        oct_kv_pages_fork(&p, 0, 1);
        put(&p, 1, i, 1);
        oct_kv_pages_truncate(&p, 1, 0);
    }
    assert_int_equal(p.n_copied, 1000); /* the last page each time */
    assert_int_equal(p.n_fresh + p.n_free, 4);
    assert_int_equal(p.n_cached, 0);
    /* Of three that share a page the last one to append has it to itself. */
    oct_kv_pages_fork(&p, 0, 1);
    oct_kv_pages_fork(&p, 0, 2);
    int64_t page = oct_kv_page_at(&p, 0, 299);
    put(&p, 1, 2, 1);
    put(&p, 0, 3, 1);
    put(&p, 2, 4, 1);
    assert_int_equal(p.n_copied, 1002);
    assert_int_equal(oct_kv_page_at(&p, 2, 299), page);
    oct_kv_pages_free(&p);
}

static void test_limits(void **state)
{
    (void)state;
    oct_kv_pages p;
    oct_error err = {0};
    const int64_t big = (int64_t)INT32_MAX + 1;
    assert_int_equal(oct_kv_pages_init(&p, 0, 1, 1, NULL, &err), OCT_ERR_ARG);
    assert_int_equal(oct_kv_pages_init(&p, 1, big, 1, NULL, &err), OCT_ERR_ARG);
    assert_int_equal(oct_kv_pages_init(&p, 1, 1, big, NULL, &err), OCT_ERR_ARG);
    assert_int_equal(oct_kv_pages_init(&p, INT32_MAX, INT32_MAX, 1, NULL, &err), OCT_ERR_MEMORY);
    oct_kv_pages_free(&p);
    int32_t *seq = calloc(CTX + 1, sizeof *seq);
    err = (oct_error){0};
    assert_int_equal(oct_kv_pages_init(&p, SEQS, CTX, 2, NULL, &err), OCT_OK);
    assert_int_equal(oct_kv_pages_check(&p, NULL, CTX + 1, &err), OCT_ERR_ARG);
    assert_string_equal(err.text,
                        "sequence 0: the batch reaches past the context of 700 positions");
    err = (oct_error){0};
    assert_int_equal(oct_kv_pages_check(&p, seq, CTX, &err), OCT_ERR_FULL);
    assert_string_equal(err.text,
                        "KV cache: the batch needs 6 more pages of 128 positions, 2 of 2 are left");
    assert_int_equal(oct_kv_pages_check(&p, seq, 2 * OCT_KV_PAGE, &err), OCT_OK);
    oct_kv_pages_free(&p);
    free(seq);
}

/* ---- memory ---- */

static oct_kv_cache small_cache(oct_kv_type type, int64_t n_domains)
{
    oct_error err = {0};
    oct_kv_cache kv = {.type = type,
                       .n_layers = 3,
                       .n_heads = 4,
                       .head_dim = 24,
                       .n_domains = n_domains,
                       .n_seqs = 2,
                       .n_ctx = 130};
    assert_int_equal(oct_kv_cache_plan(&kv, &err), OCT_OK);
    assert_int_equal(kv.n_pages, 4);
    assert_int_equal(kv.v_stride, 32);
    assert_int_equal(kv.bytes, 4 * 3 * 4 * 128 * (24 + 32) * kv.elem_bytes);
    oct_kv_pages *pages = calloc(1, sizeof *pages);
    assert_int_equal(oct_kv_pages_init(pages, kv.n_seqs, kv.n_ctx, kv.n_pages, NULL, &err), OCT_OK);
    assert_int_equal(oct_kv_cache_alloc(&kv, pages, &err), OCT_OK);
    put(pages, 0, 1, 130);
    put(pages, 1, 2, 130);
    return kv;
}

static void small_cache_free(oct_kv_cache *kv)
{
    oct_kv_pages *pages = (oct_kv_pages *)(uintptr_t)kv->pages;
    oct_kv_cache_free(kv);
    oct_kv_pages_free(pages);
    free(pages);
}

/* Every element of K and V is at a place of its own, and no domain's heads lie among another's. */
static void check_places(oct_kv_type type, int64_t n_domains)
{
    oct_kv_cache kv = small_cache(type, n_domains);
    const size_t e = kv.elem_bytes, group = (size_t)(16 * kv.head_dim) * e;
    size_t written = 0;
    for (int64_t layer = 0; layer < 3; layer++)
        for (int64_t head = 0; head < 4; head++)
            for (int64_t at = 0; at < 4 * OCT_KV_PAGE; at++) {
                int64_t page = at / OCT_KV_PAGE, seq = page / 2, pos = at % (2 * OCT_KV_PAGE);
                unsigned char *k = oct_kv_cache_k(&kv, layer, seq, head, pos);
                unsigned char *v = oct_kv_cache_v(&kv, layer, seq, head, pos);
                int64_t domain = head / (4 / n_domains);
                assert_true(k >= kv.data + kv.domain_stride * (size_t)domain);
                assert_true(v + 32 * e <= kv.data + kv.domain_stride * (size_t)(domain + 1));
                assert_int_equal((uintptr_t)k % 64, 0);
                for (size_t i = 0; i < 32 * e; i++, written++)
                    assert_int_equal(v[i]++, 0);
                for (size_t i = 0; pos % 16 == 0 && i < group; i++, written++)
                    assert_int_equal(k[i]++, 0);
            }
    assert_int_equal(written, kv.bytes);
    assert_true(n_domains == 1 || kv.domain_stride % (2 << 20) == 0);
    small_cache_free(&kv);
}

/* A copy is of n_pos positions, in one layer and head, and of not a byte more. */
static void check_copy(oct_kv_type type, int64_t n_pos)
{
    oct_kv_cache kv = small_cache(type, 2);
    const size_t e = kv.elem_bytes;
    for (size_t d = 0; d < 2; d++)
        for (size_t i = 0; i < kv.bytes / 2; i++)
            kv.data[d * kv.domain_stride + i] = (unsigned char)(i % 255);
    const oct_kv_copy c = {.from = 0, .to = 3, .n_pos = n_pos};
    assert_int_equal(oct_kv_page_at(kv.pages, 0, 0), c.from);
    assert_int_equal(oct_kv_page_at(kv.pages, 1, 128), c.to);
    unsigned char *from = oct_kv_cache_k(&kv, 1, 0, 2, 0), *to = oct_kv_cache_k(&kv, 1, 1, 2, 128);
    unsigned char *before = malloc(kv.map_bytes);
    const size_t all = (size_t)(kv.data - (unsigned char *)kv.map);
    memcpy(before, kv.data, kv.map_bytes - all);
    oct_kv_cache_copy(&kv, 1, 2, &c);
    for (size_t i = 0; i < kv.head_bytes; i++) {
        size_t element = i / e, k_size = 128 * 24;
        size_t pos =
            element < k_size ? element / (16 * 24) * 16 + element % 16 : (element - k_size) / 32;
        size_t at = (size_t)(to - kv.data) + i;
        assert_int_equal(to[i], pos < (size_t)n_pos ? from[i] : before[at]);
        before[at] = to[i];
    }
    assert_memory_equal(before, kv.data, kv.map_bytes - all);
    free(before);
    small_cache_free(&kv);
}

static void test_memory(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 15, 16, 17, 100, 127, 128};
    for (int type = OCT_KV_F16; type <= OCT_KV_F32; type++) {
        for (int64_t domains = 1; domains <= 4; domains *= 2)
            check_places((oct_kv_type)type, domains);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            check_copy((oct_kv_type)type, counts[i]);
    }
}

static void test_sizes(void **state)
{
    (void)state;
    oct_error err = {0};
    const oct_kv_cache shape = {
        .n_layers = 3, .n_heads = 4, .head_dim = 24, .n_domains = 2, .n_seqs = 2, .n_ctx = 130};
    const uint64_t page = 3 * 4 * 128 * (24 + 32) * 2;
    oct_kv_cache kv = shape;
    kv.pool_bytes = 3 * page - 1;
    assert_int_equal(oct_kv_cache_plan(&kv, &err), OCT_OK);
    assert_true(kv.n_pages == 2 && kv.page_bytes == page && kv.bytes == 2 * page);
    kv.pool_bytes = page - 1;
    assert_int_equal(oct_kv_cache_plan(&kv, &err), OCT_ERR_ARG);
    assert_non_null(strstr(err.text, "172031 bytes, expected at least the 172032 of a page"));
    kv.pool_bytes = UINT64_MAX;
    assert_int_equal(oct_kv_cache_plan(&kv, &err), OCT_ERR_MEMORY);
    static const int64_t wrong[][4] = {/* n_ctx, n_seqs, n_layers, n_heads */
                                       {INT64_MAX, 1, 3, 4},
                                       {INT64_MAX / 2, 4000, 3, 4},
                                       {1, INT64_MAX, 3, 4},
                                       {0, 1, 3, 4},
                                       {1, 0, 3, 4},
                                       {1, 1, INT64_MAX, 4},
                                       {1, 1, 3, INT64_MAX / 2 + 1},
                                       {1, 1, (int64_t)1 << 40, (int64_t)1 << 10}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kv = shape;
        kv.n_ctx = wrong[i][0];
        kv.n_seqs = wrong[i][1];
        kv.n_layers = wrong[i][2];
        kv.n_heads = wrong[i][3];
        assert_int_equal(oct_kv_cache_plan(&kv, &err), OCT_ERR_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random), cmocka_unit_test(test_collisions),
        cmocka_unit_test(test_order),  cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_equal),  cmocka_unit_test(test_forks),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

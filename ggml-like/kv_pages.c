#include "kv_pages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1, MAX_TABLE = 1 << 30 }; /* no page; entries of all tables */

uint64_t oct_kv_hash(uint64_t before, const int32_t *ids, int64_t n)
{
    uint64_t hash = before;
    for (int64_t i = 0; i < n; i++) {
        hash = (hash ^ (uint32_t)ids[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

oct_status oct_kv_pages_init(oct_kv_pages *p, int64_t n_seqs, int64_t n_ctx, int64_t n_pages,
                             oct_kv_hash_fn *hash, oct_error *err)
{
    const int64_t max = INT32_MAX; /* of sequences and pages, whose numbers are int32 */
    *p = (oct_kv_pages){.free = NONE, .oldest = NONE, .newest = NONE};
    if (n_seqs < 1 || n_seqs > max || n_ctx < 1 || n_ctx > max || n_pages < 1 || n_pages > max)
        return oct_fail(err, OCT_ERR_ARG,
                        "KV cache: %lld pages for %lld sequences of %lld positions, expected "
                        "1..%lld of each",
                        (long long)n_pages, (long long)n_seqs, (long long)n_ctx, (long long)max);
    if (n_seqs > MAX_TABLE / oct_kv_pages_of(n_ctx))
        return oct_fail(err, OCT_ERR_MEMORY,
                        "KV cache: %lld sequences of %lld positions cannot be held by any machine",
                        (long long)n_seqs, (long long)n_ctx);
    p->n_seqs = n_seqs;
    p->n_ctx = n_ctx;
    p->n_pages = p->n_fresh = n_pages;
    p->seq_pages = oct_kv_pages_of(n_ctx);
    p->hash = hash ? hash : oct_kv_hash;
    for (p->n_buckets = 1; p->n_buckets < n_pages;)
        p->n_buckets *= 2;
    p->len = calloc((size_t)n_seqs, sizeof *p->len);
    p->table = calloc((size_t)(n_seqs * p->seq_pages), sizeof *p->table);
    p->copies = calloc((size_t)n_seqs, sizeof *p->copies);
    p->page = calloc((size_t)n_pages, sizeof *p->page);
    p->ids = calloc((size_t)n_pages, sizeof *p->ids);
    p->bucket = malloc((size_t)p->n_buckets * sizeof *p->bucket);
    p->batch = calloc((size_t)n_seqs, sizeof *p->batch);
    p->added = calloc((size_t)n_seqs, sizeof *p->added);
    if (!p->len || !p->table || !p->copies || !p->page || !p->ids || !p->bucket || !p->batch ||
        !p->added)
        return oct_fail(err, OCT_ERR_MEMORY, "KV cache: out of memory for the tables of %lld pages",
                        (long long)n_pages);
    memset(p->bucket, 0xff, (size_t)p->n_buckets * sizeof *p->bucket); /* NONE */
    return OCT_OK;
}

void oct_kv_pages_free(oct_kv_pages *p)
{
    free(p->len);
    free(p->table);
    free(p->copies);
    free(p->page);
    free(p->ids);
    free(p->bucket);
    free(p->batch);
    free(p->added);
    memset(p, 0, sizeof *p);
}

/* ---- the index ---- */

static int32_t *bucket_of(const oct_kv_pages *p, uint64_t hash)
{
    return &p->bucket[(hash ^ hash >> 32) & (uint64_t)(p->n_buckets - 1)];
}

/* The page of the index that holds these ids behind the page with serial `parent`. */
static int32_t find(const oct_kv_pages *p, uint64_t parent, uint64_t hash, const int32_t *ids)
{
    int32_t i = *bucket_of(p, hash);
    while (i != NONE && (p->page[i].hash != hash || p->page[i].parent != parent ||
                         memcmp(p->ids[i], ids, sizeof *p->ids) != 0))
        i = p->page[i].chain;
    return i;
}

static void enter(oct_kv_pages *p, int32_t i, uint64_t parent, uint64_t hash)
{
    int32_t *bucket = bucket_of(p, hash);
    p->page[i].serial = ++p->last_serial;
    p->page[i].parent = parent;
    p->page[i].hash = hash;
    p->page[i].chain = *bucket;
    *bucket = i;
}

static void leave(oct_kv_pages *p, int32_t i)
{
    int32_t *link = bucket_of(p, p->page[i].hash);
    while (*link != i)
        link = &p->page[*link].chain;
    *link = p->page[i].chain;
    p->page[i].serial = 0;
}

/* ---- pages that nobody holds: free, or cached if they are in the index ---- */

static void unqueue(oct_kv_pages *p, int32_t i)
{
    oct_kv_page *page = &p->page[i];
    *(page->older == NONE ? &p->oldest : &p->page[page->older].newer) = page->newer;
    *(page->newer == NONE ? &p->newest : &p->page[page->newer].older) = page->older;
    p->n_cached--;
}

static void hold(oct_kv_pages *p, int32_t i)
{
    if (p->page[i].refs++ == 0 && p->page[i].serial)
        unqueue(p, i);
}

static void release(oct_kv_pages *p, int32_t i)
{
    oct_kv_page *page = &p->page[i];
    if (--page->refs > 0)
        return;
    if (!page->serial) {
        page->newer = p->free;
        p->free = i;
        p->n_free++;
        return;
    }
    page->older = p->newest;
    page->newer = NONE;
    *(p->newest == NONE ? &p->oldest : &p->page[p->newest].newer) = i;
    p->newest = i;
    p->n_cached++;
}

static int64_t available(const oct_kv_pages *p)
{
    return p->n_fresh + p->n_free + p->n_cached;
}

/* A page for one sequence, not in the index. */
static int32_t take(oct_kv_pages *p)
{
    int32_t i = p->free;
    assert(available(p) > 0); /* oct_kv_pages_check */
    if (i != NONE) {
        p->free = p->page[i].newer;
        p->n_free--;
    } else if (p->n_fresh > 0) {
        i = (int32_t)(p->n_pages - p->n_fresh--);
    } else {
        i = p->oldest;
        unqueue(p, i);
        leave(p, i);
    }
    p->page[i].refs = 1;
    return i;
}

/* ---- batches ---- */

static int32_t *table_of(const oct_kv_pages *p, int64_t seq)
{
    return p->table + seq * p->seq_pages;
}

/* Where the page is that a sequence appends to; NULL if its last page is full or it has none. */
static int32_t *unfinished(const oct_kv_pages *p, int64_t seq)
{
    int64_t n = p->len[seq];
    return n % OCT_KV_PAGE ? table_of(p, seq) + n / OCT_KV_PAGE : NULL;
}

/* What a batch adds to each of its sequences; forgotten by clear_batch. */
static void count_batch(oct_kv_pages *p, const int32_t *seq, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t q = seq ? seq[i] : 0;
        if (p->added[q]++ == 0)
            p->batch[p->n_batch++] = q;
    }
}

static void clear_batch(oct_kv_pages *p)
{
    for (int64_t i = 0; i < p->n_batch; i++)
        p->added[p->batch[i]] = 0;
    p->n_batch = 0;
}

/* Pages that the counted batch takes. Of the sequences that share an unfinished page each copies
 * it, but the last one that holds it does not. */
static int64_t pages_needed(oct_kv_pages *p)
{
    int64_t need = 0, n_held = 0;
    for (int64_t i = 0; i < p->n_batch; i++) {
        int32_t q = p->batch[i], *at = unfinished(p, q);
        need += oct_kv_pages_of(p->len[q] + p->added[q]) - oct_kv_pages_of(p->len[q]);
        if (at && p->page[*at].refs > 1) {
            p->page[*at].refs--;
            need++;
            p->copies[n_held++].from = *at;
        }
    }
    while (n_held-- > 0)
        p->page[p->copies[n_held].from].refs++;
    return need;
}

oct_status oct_kv_pages_check(oct_kv_pages *p, const int32_t *seq, int64_t n, oct_error *err)
{
    oct_status status = OCT_OK;
    count_batch(p, seq, n);
    for (int64_t i = 0; i < p->n_batch && status == OCT_OK; i++)
        if (p->added[p->batch[i]] > p->n_ctx - p->len[p->batch[i]])
            status = oct_fail(err, OCT_ERR_ARG,
                              "sequence %d: the batch reaches past the context of %lld positions",
                              p->batch[i], (long long)p->n_ctx);
    int64_t need = status == OCT_OK ? pages_needed(p) : 0;
    if (need > available(p))
        status =
            oct_fail(err, OCT_ERR_FULL,
                     "KV cache: the batch needs %lld more pages of %d positions, %lld of %lld "
                     "are left",
                     (long long)need, OCT_KV_PAGE, (long long)available(p), (long long)p->n_pages);
    clear_batch(p);
    return status;
}

static int by_n_pos(const void *a, const void *b)
{
    const oct_kv_copy *x = a, *y = b;
    return x->n_pos != y->n_pos ? (x->n_pos < y->n_pos ? -1 : 1) : (x->seq < y->seq ? -1 : 1);
}

/* Gives the batch's sequences unfinished pages of their own. Of sequences that share one the
 * shortest copies first: if one is left to write to the page itself, it writes behind all that the
 * others copy. */
static void unshare(oct_kv_pages *p)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->n_batch; i++) {
        int32_t q = p->batch[i], *at = unfinished(p, q);
        if (at && p->page[*at].refs > 1)
            p->copies[n++] = (oct_kv_copy){q, *at, NONE, p->len[q] % OCT_KV_PAGE};
    }
    qsort(p->copies, (size_t)n, sizeof *p->copies, by_n_pos);
    p->n_copies = 0;
    for (int64_t i = 0; i < n; i++) {
        oct_kv_copy c = p->copies[i];
        if (p->page[c.from].refs == 1)
            continue;
        c.to = take(p);
        memcpy(p->ids[c.to], p->ids[c.from], sizeof *p->ids);
        *unfinished(p, c.seq) = c.to;
        release(p, c.from);
        p->copies[p->n_copies++] = c;
    }
}

void oct_kv_pages_begin(oct_kv_pages *p, const int32_t *seq, const int32_t *ids, int64_t n,
                        int32_t *pos)
{
    count_batch(p, seq, n);
    unshare(p);
    for (int64_t i = 0; i < p->n_batch; i++) {
        int32_t *at = unfinished(p, p->batch[i]);
        if (at && p->page[*at].serial) /* it was truncated: its end is about to change */
            leave(p, *at);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t q = seq[i], at = p->len[q]++;
        if (at % OCT_KV_PAGE == 0)
            table_of(p, q)[at / OCT_KV_PAGE] = take(p);
        p->ids[oct_kv_page_at(p, q, at)][at % OCT_KV_PAGE] = ids[i];
        pos[i] = (int32_t)at;
    }
}

/* Page `block` of a sequence has become full: it enters the index, or, if that has an equal one, is
 * replaced by it. So all full pages of a sequence are in the index. */
static void finish_page(oct_kv_pages *p, int64_t seq, int64_t block)
{
    int32_t *at = table_of(p, seq) + block;
    const oct_kv_page *before = block > 0 ? &p->page[at[-1]] : NULL;
    uint64_t parent = before ? before->serial : 0;
    uint64_t hash = p->hash(before ? before->hash : 0, p->ids[*at], OCT_KV_PAGE);
    int32_t equal = find(p, parent, hash, p->ids[*at]);
    if (equal == NONE) {
        enter(p, *at, parent, hash);
        return;
    }
    hold(p, equal);
    release(p, *at);
    *at = equal;
}

static void undo_batch(oct_kv_pages *p)
{
    for (int64_t i = 0; i < p->n_batch; i++)
        oct_kv_pages_truncate(p, p->batch[i], p->len[p->batch[i]] - p->added[p->batch[i]]);
    for (int64_t i = p->n_copies - 1; i >= 0; i--) {
        const oct_kv_copy *c = &p->copies[i];
        *unfinished(p, c->seq) = c->from;
        hold(p, c->from);
        release(p, c->to);
    }
}

void oct_kv_pages_end(oct_kv_pages *p, bool done)
{
    if (!done)
        undo_batch(p);
    for (int64_t i = 0; i < p->n_batch && done; i++) {
        int64_t q = p->batch[i], end = p->len[q] / OCT_KV_PAGE;
        for (int64_t b = (p->len[q] - p->added[q]) / OCT_KV_PAGE; b < end; b++)
            finish_page(p, q, b);
    }
    p->n_copied += done ? (uint64_t)p->n_copies : 0;
    p->n_copies = 0;
    clear_batch(p);
}

/* ---- sequences ---- */

/* From the end: a page is always given up before those that it continues. */
void oct_kv_pages_truncate(oct_kv_pages *p, int64_t seq, int64_t n)
{
    for (int64_t b = oct_kv_pages_of(p->len[seq]); b-- > oct_kv_pages_of(n);)
        release(p, table_of(p, seq)[b]);
    p->len[seq] = n;
}

void oct_kv_pages_fork(oct_kv_pages *p, int64_t from, int64_t to)
{
    int64_t n = oct_kv_pages_of(p->len[from]);
    assert(p->len[to] == 0);
    for (int64_t b = 0; b < n; b++) {
        table_of(p, to)[b] = table_of(p, from)[b];
        hold(p, table_of(p, to)[b]);
    }
    p->len[to] = p->len[from];
}

int64_t oct_kv_pages_reuse(oct_kv_pages *p, int64_t seq, const int32_t *ids, int64_t n)
{
    uint64_t parent = 0, hash = 0;
    int64_t b = 0, end = (n < p->n_ctx ? n : p->n_ctx) / OCT_KV_PAGE;
    assert(p->len[seq] == 0);
    for (; b < end; b++) {
        hash = p->hash(hash, ids + b * OCT_KV_PAGE, OCT_KV_PAGE);
        int32_t i = find(p, parent, hash, ids + b * OCT_KV_PAGE);
        if (i == NONE)
            break;
        hold(p, i);
        table_of(p, seq)[b] = i;
        parent = p->page[i].serial;
    }
    return p->len[seq] = b * OCT_KV_PAGE;
}

/* ---- the index as a list ---- */

/* A page enters the index behind the one that it continues, so that has a smaller serial number. */
static int by_serial(const void *a, const void *b, void *pages)
{
    const oct_kv_page *p = pages;
    const uint64_t x = p[*(const int32_t *)a].serial, y = p[*(const int32_t *)b].serial;
    return (x > y) - (x < y);
}

/* The page of the index with this serial number, of n sorted by it. */
static int32_t page_of(const oct_kv_pages *p, const int32_t *sorted, int64_t n, uint64_t serial)
{
    int64_t first = 0, end = n;
    while (first < end) {
        const int64_t mid = first + (end - first) / 2;
        if (p->page[sorted[mid]].serial < serial)
            first = mid + 1;
        else
            end = mid;
    }
    return first < n && p->page[sorted[first]].serial == serial ? sorted[first] : NONE;
}

/* Adds a page, unless the one that it continues was given up: then nobody finds it any more. */
static void list_page(const oct_kv_pages *p, const int32_t *sorted, int64_t n_sorted, int32_t i,
                      int32_t *at, oct_kv_listed *out, int64_t *n)
{
    const uint64_t parent = p->page[i].parent;
    const int32_t before = parent ? page_of(p, sorted, n_sorted, parent) : NONE;
    if (parent && (before == NONE || at[before] == NONE))
        return;
    out[*n] = (oct_kv_listed){i, parent ? at[before] : NONE};
    at[i] = (int32_t)(*n)++;
}

oct_status oct_kv_pages_list(const oct_kv_pages *p, oct_kv_listed **out, int64_t *n, oct_error *err)
{
    const size_t pages = (size_t)p->n_pages;
    int32_t *sorted = malloc(pages * sizeof *sorted), *at = malloc(pages * sizeof *at);
    int64_t n_sorted = 0;
    *n = 0;
    *out = malloc(pages * sizeof **out);
    if (sorted && at && *out) {
        memset(at, 0xff, pages * sizeof *at); /* NONE */
        for (int32_t i = 0; i < p->n_pages - p->n_fresh; i++)
            if (p->page[i].serial)
                sorted[n_sorted++] = i;
        qsort_r(sorted, (size_t)n_sorted, sizeof *sorted, by_serial, p->page);
        for (int64_t i = 0; i < n_sorted; i++)
            if (p->page[sorted[i]].refs > 0)
                list_page(p, sorted, n_sorted, sorted[i], at, *out, n);
        for (int32_t i = p->newest; i != NONE; i = p->page[i].older)
            list_page(p, sorted, n_sorted, i, at, *out, n);
    } else {
        free(*out);
        *out = NULL;
    }
    free(sorted);
    free(at);
    return *out ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "KV cache: out of memory for a list");
}

void oct_kv_pages_put(oct_kv_pages *p, const int32_t ids[OCT_KV_PAGE], int64_t parent)
{
    const int32_t i = take(p);
    const oct_kv_page *before = parent == NONE ? NULL : &p->page[parent];
    assert(parent < i);
    memcpy(p->ids[i], ids, sizeof *p->ids);
    enter(p, i, before ? before->serial : 0, p->hash(before ? before->hash : 0, ids, OCT_KV_PAGE));
}

void oct_kv_pages_put_end(oct_kv_pages *p)
{
    for (int64_t i = p->n_pages - p->n_fresh; i-- > 0;)
        release(p, (int32_t)i);
}

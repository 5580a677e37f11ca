/* kv_pages.h: which page holds which positions of which sequence.
 *
 * A page is OCT_KV_PAGE positions in every layer and head of a rank. Sequences share pages and
 * count who holds each; a page that several hold is copied before one of them writes to it. A full
 * page enters an index under the ids that it and all pages before it hold, so that a later sequence
 * with the same beginning finds it. A page that nobody holds any more stays in the index as long as
 * the pool can spare it; the one unused for longest is given up first.
 *
 * This is the book-keeping alone: kv_cache.h has the memory. It depends on nothing but the calls
 * made, so ranks that make the same calls have the same pages. One thread at a time. */
#ifndef OCT_KV_PAGES_H
#define OCT_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

/* A block of attention: whatever pages a sequence has, sums are formed over the same positions. */
enum { OCT_KV_PAGE = 128 };

/* Continues the hash of all ids before with the n of a page. Only finds: ids are compared. */
typedef uint64_t oct_kv_hash_fn(uint64_t before, const int32_t *ids, int64_t n);
uint64_t oct_kv_hash(uint64_t before, const int32_t *ids, int64_t n); /* the default */

/* Page numbers, -1: none. What a page holds has a serial number while it is in the index: no other
 * content ever has the same, so `parent` means nothing wrong when the page before is given up. */
typedef struct oct_kv_page {
    int32_t refs;          /* sequences that hold it */
    int32_t older, newer;  /* in the queue of the cached; newer: in the stack of the free, too */
    int32_t chain;         /* in its bucket of the index */
    uint64_t serial;       /* 0: not in the index */
    uint64_t parent, hash; /* if in the index: serial of the page before (0: none); of all ids */
} oct_kv_page;

/* Positions [0, n_pos) of a page that must be copied before they are next read. */
typedef struct oct_kv_copy {
    int32_t seq, from, to;
    int64_t n_pos;
} oct_kv_copy;

typedef struct oct_kv_pages {
    int64_t n_seqs, n_ctx, n_pages;
    int64_t seq_pages;   /* of a sequence at most */
    int64_t *len;        /* [n_seqs] positions held */
    int32_t *table;      /* [n_seqs][seq_pages]; as many are valid as len needs */
    oct_kv_copy *copies; /* [n_copies] between begin and end */
    int64_t n_copies;
    uint64_t n_copied; /* pages, so far */
    /* the rest is kv_pages.c's */
    oct_kv_hash_fn *hash;
    oct_kv_page *page;           /* [n_pages] */
    int32_t (*ids)[OCT_KV_PAGE]; /* [n_pages] */
    int32_t *bucket;             /* [n_buckets] */
    int64_t n_buckets;           /* a power of two */
    int64_t n_fresh;             /* pages never used: the last ones */
    int32_t free;                /* top of a stack */
    int32_t oldest, newest;      /* of the cached */
    int64_t n_free, n_cached;
    uint64_t last_serial;
    int32_t *batch; /* [n_batch] the sequences of a batch */
    int64_t n_batch;
    int64_t *added; /* [n_seqs] by the batch */
} oct_kv_pages;

/* A pool of n_pages for n_seqs empty sequences of at most n_ctx positions. hash NULL: the default.
 * On errors, too, oct_kv_pages_free frees what was taken. */
OCT_MUST_CHECK oct_status oct_kv_pages_init(oct_kv_pages *p, int64_t n_seqs, int64_t n_ctx,
                                            int64_t n_pages, oct_kv_hash_fn *hash, oct_error *err);
void oct_kv_pages_free(oct_kv_pages *p);

/* Pages that n positions take. */
static inline int64_t oct_kv_pages_of(int64_t n)
{
    return (n + OCT_KV_PAGE - 1) / OCT_KV_PAGE;
}

/* The page of a position that the sequence holds. */
static inline int64_t oct_kv_page_at(const oct_kv_pages *p, int64_t seq, int64_t pos)
{
    return p->table[seq * p->seq_pages + pos / OCT_KV_PAGE];
}

/* Whether a batch that appends to seq[n] (NULL: all 0) fits: OCT_ERR_ARG past n_ctx, OCT_ERR_FULL
 * if the pool lacks pages, copies included. Then all its parts fit one after the other, as long as
 * nothing else is called between them. */
OCT_MUST_CHECK oct_status oct_kv_pages_check(oct_kv_pages *p, const int32_t *seq, int64_t n,
                                             oct_error *err);

/* Appends ids[n] to seq[n]: a batch, or a part of one, that was found to fit. pos[n] receives their
 * positions, p->copies what must be copied before anything is read; a copy may be made beside the
 * writing of the new positions. oct_kv_pages_end must follow before any other call: done says that
 * the new positions now hold keys and values; else they are given back and copies are undone. */
void oct_kv_pages_begin(oct_kv_pages *p, const int32_t *seq, const int32_t *ids, int64_t n,
                        int32_t *pos);
void oct_kv_pages_end(oct_kv_pages *p, bool done);

/* A sequence forgets all after its first n positions; 0: all. */
void oct_kv_pages_truncate(oct_kv_pages *p, int64_t seq, int64_t n);
/* `to`, which is empty, gets what `from` holds. Takes no pages. */
void oct_kv_pages_fork(oct_kv_pages *p, int64_t from, int64_t to);
/* seq, which is empty, gets the full pages of the index that hold the beginning of ids[n]. Returns
 * how many positions that are. */
int64_t oct_kv_pages_reuse(oct_kv_pages *p, int64_t seq, const int32_t *ids, int64_t n);

/* A page of the index in a list in which each stands behind the one that it continues. */
typedef struct oct_kv_listed {
    int32_t page;
    int32_t parent; /* its index in the list; -1: none */
} oct_kv_listed;
/* The pages of the index: those that sequences hold, then the others, the last used first. *out is
 * malloc'd. */
OCT_MUST_CHECK oct_status oct_kv_pages_list(const oct_kv_pages *p, oct_kv_listed **out, int64_t *n,
                                            oct_error *err);
/* Fills a pool that no page was ever taken of: page 0, then 1 and so on, holds ids behind those of
 * page `parent`, which was put before; -1: from the beginning on. oct_kv_pages_put_end must follow
 * before any other call: it is as if all had been used, the first one last. */
void oct_kv_pages_put(oct_kv_pages *p, const int32_t ids[OCT_KV_PAGE], int64_t parent);
void oct_kv_pages_put_end(oct_kv_pages *p);

#endif

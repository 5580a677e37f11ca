/* scheduler_texts.c: from the queue to a sequence, back when memory runs out, and to the end. */
#include <stdlib.h>
#include <string.h>

#include "scheduler_impl.h"

/* ---- lists ---------------------------------------------------------------------------------- */

static bool older(const oct_text *a, const oct_text *b)
{
    return a->of->id != b->of->id ? a->of->id < b->of->id : a->index < b->index;
}

void oct_text_enqueue(oct_scheduler *s, oct_text *t)
{
    oct_text **at = s->queue_end && older(s->queue_end, t) ? &s->queue_end->next : &s->queue;
    while (*at && older(*at, t))
        at = &(*at)->next;
    t->next = *at;
    *at = t;
    if (!t->next)
        s->queue_end = t;
    t->state = OCT_TEXT_QUEUED;
}

static void unqueue(oct_scheduler *s, const oct_text *t)
{
    oct_text **at = &s->queue, *before = NULL;
    for (; *at != t; at = &before->next)
        before = *at;
    *at = t->next;
    if (s->queue_end == t)
        s->queue_end = before;
}

static void start_running(oct_scheduler *s, oct_text *t, int32_t seq, int64_t n_held,
                          oct_text_state state)
{
    int64_t at = s->n_running++;
    for (; at > 0 && older(t, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = t;
    s->slots[seq].used = true;
    t->seq = seq;
    t->n_held = n_held;
    t->state = state;
    t->n_rows = 0;
    t->row = t->draw = -1;
}

static void stop_running(oct_scheduler *s, const oct_text *t)
{
    int64_t at = 0;
    while (s->running[at] != t)
        at++;
    s->n_running--;
    for (; at < s->n_running; at++)
        s->running[at] = s->running[at + 1];
    s->slots[t->seq].used = false;
}

/* ---- sequences ------------------------------------------------------------------------------ */

void oct_text_empty_slot(oct_scheduler *s, int32_t seq)
{
    free(s->slots[seq].kept);
    s->slots[seq].kept = NULL;
    oct_session_truncate(s->session, seq, 0);
}

/* The slot that has been kept for longest, -1: none is. */
static int32_t oldest_kept(const oct_scheduler *s)
{
    int32_t oldest = -1;
    for (int32_t i = 0; i < (int32_t)s->p.max_running; i++)
        if (s->slots[i].kept && (oldest < 0 || s->slots[i].since < s->slots[oldest].since))
            oldest = i;
    return oldest;
}

/* An empty sequence; -1: all are in use. */
static int32_t take_slot(oct_scheduler *s)
{
    for (int32_t i = 0; i < (int32_t)s->p.max_running; i++)
        if (!s->slots[i].used && !s->slots[i].kept)
            return i;
    int32_t seq = oldest_kept(s);
    if (seq >= 0)
        oct_text_empty_slot(s, seq);
    return seq;
}

/* The sequence that was kept with the longest beginning of a text, the last token excepted; -1:
 * none. */
static int32_t find_kept(const oct_scheduler *s, const oct_text *t)
{
    int32_t best = -1;
    for (int32_t i = 0; i < (int32_t)s->p.max_running; i++) {
        const oct_text_slot *k = &s->slots[i];
        if (k->kept && k->n_kept < t->n && (best < 0 || k->n_kept > s->slots[best].n_kept) &&
            memcmp(k->kept, t->ids, (size_t)k->n_kept * sizeof *t->ids) == 0)
            best = i;
    }
    return best;
}

/* The text no longer runs: its sequence is emptied, or kept with its ids. */
static void leave_slot(oct_scheduler *s, oct_text *t, bool keep)
{
    oct_text_slot *k = &s->slots[t->seq];
    stop_running(s, t);
    if (!keep || t->n_held == 0) {
        oct_text_empty_slot(s, t->seq);
        return;
    }
    k->kept = t->ids;
    k->n_kept = t->n_held;
    k->since = ++s->n_kept_ever;
    t->ids = NULL;
}

/* ---- events and ends ------------------------------------------------------------------------ */

static oct_event event_of(const oct_text *t, oct_event_kind kind)
{
    return (oct_event){.kind = kind,
                       .request = t->of->id,
                       .user = t->of->user,
                       .index = t->index,
                       .n_prompt = t->of->n_prompt,
                       .n_cached = t->n_cached,
                       .n_generated = t->n_generated};
}

static void tell(const oct_scheduler *s, const oct_event *e)
{
    if (s->p.event)
        s->p.event(s->p.ctx, e);
}

void oct_text_tell_progress(const oct_scheduler *s, oct_text *t)
{
    oct_event e = event_of(t, OCT_EVENT_PROGRESS);
    if (t->n_generated > 0 || t->n_held <= t->n_told) /* it came back */
        return;
    e.n_done = t->n_told = t->n_held;
    tell(s, &e);
}

void oct_text_tell_token(oct_scheduler *s, const oct_text *t, oct_event_kind kind,
                         const oct_draw *d)
{
    oct_event e = event_of(t, kind);
    e.token = d->id;
    e.bytes = oct_token_bytes(s->session->model, d->id, &e.n_bytes);
    e.logprob = d->logprob;
    e.top = d->top;
    e.n_top = d->n_found;
    tell(s, &e);
}

void oct_text_free_request(oct_text_request *r)
{
    for (int32_t i = 0; i < r->n; i++)
        free(r->texts[i].ids);
    free(r->bias);
    free(r);
}

static void forget_request(oct_scheduler *s, oct_text_request *r)
{
    pthread_mutex_lock(&s->lock);
    oct_text_request **at = &s->requests, *before = NULL;
    for (; *at != r; at = &before->next)
        before = *at;
    *at = r->next;
    if (s->last == r)
        s->last = before;
    s->n_pending--;
    if (!r->started)
        s->n_waiting--;
    pthread_mutex_unlock(&s->lock);
    oct_text_free_request(r);
}

void oct_text_end(oct_scheduler *s, oct_text *t, oct_end why, const oct_error *error)
{
    oct_text_request *r = t->of;
    if (t->state == OCT_TEXT_QUEUED) {
        unqueue(s, t);
    } else if (t->state != OCT_TEXT_SIBLING) {
        leave_slot(s, t, r->keep && why != OCT_END_ERROR);
        s->hold = false;
    }
    for (int32_t i = 1; t->index == 0 && i < r->n; i++)
        if (r->texts[i].state == OCT_TEXT_SIBLING)
            oct_text_end(s, &r->texts[i], why, error);
    s->stats.n_ended[why]++;
    oct_event e = event_of(t, OCT_EVENT_END);
    e.end = why;
    e.error = why == OCT_END_ERROR ? error : NULL;
    e.rng = t->sampler.rng;
    tell(s, &e);
    if (--r->n_left == 0)
        forget_request(s, r);
}

void oct_text_end_all(oct_scheduler *s, const oct_error *error)
{
    while (s->n_running > 0)
        oct_text_end(s, s->running[0], OCT_END_ERROR, error);
    while (s->queue)
        oct_text_end(s, s->queue, OCT_END_ERROR, error);
}

/* Pages that a text of which n_held tokens are in its sequence still takes for the others. */
static int64_t pages_due(const oct_kv_usage *kv, const oct_text *t, int64_t n_held)
{
    return (t->n + kv->page_positions - 1) / kv->page_positions -
           (n_held + kv->page_positions - 1) / kv->page_positions;
}

/* Whether there are pages for a text's prompt and for those that are on their way. */
static bool fits(const oct_scheduler *s, const oct_text *t, int64_t n_held)
{
    oct_kv_usage kv;
    oct_session_get_kv(s->session, &kv);
    int64_t due = pages_due(&kv, t, n_held);
    for (int64_t i = 0; i < s->n_running; i++)
        due += pages_due(&kv, s->running[i], s->running[i]->n_held);
    return due <= kv.pages - kv.used;
}

static void begin(oct_scheduler *s, oct_text *t, int32_t seq, int64_t n_held)
{
    free(s->slots[seq].kept);
    s->slots[seq].kept = NULL;
    unqueue(s, t);
    start_running(s, t, seq, n_held, OCT_TEXT_PROMPT);
    if (!t->of->started) {
        pthread_mutex_lock(&s->lock);
        t->of->started = true;
        s->n_waiting--;
        pthread_mutex_unlock(&s->lock);
    }
    if (t->n_told < 0) {
        t->n_cached = n_held;
        s->stats.n_cached += n_held;
    }
    oct_text_tell_progress(s, t);
}

void oct_text_admit(oct_scheduler *s)
{
    while (s->queue && s->n_running < s->p.max_running && !(s->hold && s->n_running > 0)) {
        oct_text *t = s->queue;
        oct_error ignored = {0}; /* of ranks: the next evaluation has it, too */
        const bool fresh = t->n_scored < oct_text_to_score(t); /* it wants logits from its start */
        int32_t kept = fresh ? -1 : find_kept(s, t), seq = kept >= 0 ? kept : take_slot(s);
        int64_t held = kept >= 0 ? s->slots[kept].n_kept : 0;
        if (!fresh && kept < 0 &&
            oct_session_reuse(s->session, seq, t->ids, t->n, &held, &ignored) != OCT_OK)
            held = 0;
        if (s->n_running == 0 || fits(s, t, held)) {
            begin(s, t, seq, held);
            continue;
        }
        if (kept < 0)
            oct_session_truncate(s->session, seq, 0);
        if (oldest_kept(s) >= 0)
            oct_text_empty_slot(s, oldest_kept(s));
        else
            s->hold = true;
    }
}

/* Memory is wanted: what is kept goes first, then what the youngest text holds, which returns to
 * the queue; the only one that runs can have no more. */
void oct_text_make_room(oct_scheduler *s, const oct_error *full)
{
    int32_t kept = oldest_kept(s);
    if (kept >= 0) {
        oct_text_empty_slot(s, kept);
    } else if (s->n_running == 1) {
        oct_text_end(s, s->running[0], OCT_END_ERROR, full);
    } else {
        oct_text *t = s->running[s->n_running - 1];
        leave_slot(s, t, false);
        oct_text_enqueue(s, t);
        s->hold = true;
        s->stats.n_evicted++;
    }
}

void oct_text_fork(oct_scheduler *s, oct_text *first)
{
    oct_error ignored = {0}; /* of ranks: the next evaluation has it, too */
    for (int32_t i = 1; first->index == 0 && i < first->of->n; i++) {
        oct_text *t = &first->of->texts[i];
        if (t->state != OCT_TEXT_SIBLING)
            continue;
        int32_t seq = s->n_running < s->p.max_running && !s->hold ? take_slot(s) : -1;
        if (seq >= 0 && oct_session_fork(s->session, first->seq, seq, &ignored) == OCT_OK) {
            start_running(s, t, seq, first->n_held, OCT_TEXT_PROMPT);
            t->row = first->row;
            t->n_cached = first->n_cached;
            t->n_told = t->n;
        } else {
            oct_text_enqueue(s, t);
        }
    }
}

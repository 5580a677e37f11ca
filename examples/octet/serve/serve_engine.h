/* serve_engine.h: the scheduler on a thread of its own, and what happens there as lists for the
 * loop. */
#ifndef OCT_SERVE_ENGINE_H
#define OCT_SERVE_ENGINE_H

#include <pthread.h>

#include <octet/scheduler.h>

/* An oct_event, copied; `bytes` are had from the model, top from the list's. */
typedef struct oct_serve_event {
    void *user;
    oct_event_kind kind;
    int32_t index, token;
    int64_t n_prompt, n_cached, n_generated, n_done;
    double logprob, time; /* time: when it happened, of oct_seconds */
    size_t top;           /* index of the first of n_top */
    int64_t n_top;
    oct_end end;
    oct_status status; /* of OCT_END_ERROR */
    char *error;       /* malloc'd; NULL: none */
} oct_serve_event;

typedef struct oct_serve_events {
    oct_serve_event *event; /* [n] */
    size_t n, room;
    oct_token_logprob *top; /* [n_top] */
    size_t n_top, room_top;
} oct_serve_events;

typedef enum oct_serve_state {
    OCT_SERVE_LOADING,
    OCT_SERVE_READY,
    OCT_SERVE_FAILED /* for good: there is no session to go on with */
} oct_serve_state;

/* What the engine shows to others. */
typedef struct oct_serve_figures {
    oct_scheduler_stats scheduler;
    oct_kv_usage kv;
    oct_session_stats session; /* without expert_rows */
    oct_comm_stats comm;
    double step_seconds, eval_seconds; /* all steps so far; the part inside oct_eval */
    double read_limit; /* bytes per second that the session's threads read at best; 0: unknown, or
                          GPUs read, too */
} oct_serve_figures;

typedef struct oct_serve_engine {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int notify;          /* an eventfd that is written to when there is something to collect */
    volatile int cancel; /* of the session: leave the step */
    /* Under lock. */
    oct_serve_state state;
    oct_error error; /* of OCT_SERVE_FAILED */
    bool stop;
    oct_serve_events events; /* published */
    oct_serve_figures figures;
    /* The engine's. */
    oct_scheduler *scheduler;
    oct_session *session;
    double read_limit; /* as in the figures; before oct_serve_engine_run */
    oct_serve_events filling;
    bool lost; /* memory was refused for an event: nothing can be trusted */
} oct_serve_engine;

void oct_serve_engine_init(oct_serve_engine *e, int notify);
void oct_serve_engine_free(oct_serve_engine *e);

/* On the main thread: steps with a session until it is told to stop, or fails. The scheduler is
 * made as p says, but for its events. */
void oct_serve_engine_run(oct_serve_engine *e, oct_session *s, const oct_scheduler_params *p);
/* No session could be made. */
void oct_serve_engine_fail(oct_serve_engine *e, const oct_error *err);

/* On the loop. */
OCT_MUST_CHECK oct_status oct_serve_engine_submit(oct_serve_engine *e, const oct_request *r,
                                                  uint64_t *id, oct_error *err);
void oct_serve_engine_cancel(oct_serve_engine *e, uint64_t id, int32_t index);
void oct_serve_engine_stop(oct_serve_engine *e);
/* Takes what happened since; to be emptied by oct_serve_events_clear. */
void oct_serve_engine_collect(oct_serve_engine *e, oct_serve_events *out);
void oct_serve_events_clear(oct_serve_events *l);
oct_serve_state oct_serve_engine_state(oct_serve_engine *e, oct_error *err);
void oct_serve_engine_figures(oct_serve_engine *e, oct_serve_figures *out);

#endif

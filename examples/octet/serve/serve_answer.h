/* serve_answer.h: a completion or chat from its body to its last byte. */
#ifndef OCT_SERVE_ANSWER_H
#define OCT_SERVE_ANSWER_H

#include "serve_ask.h"
#include "serve_server.h"
#include "serve_text.h"

/* A text for the client: what is in the scheduler may end later. */
typedef struct oct_serve_choice {
    oct_serve_text text;
    const char *finish; /* "stop", "length"; NULL: it goes on */
    bool open;          /* the scheduler has not ended it */
    int64_t n_generated;
    double last; /* when its last token was drawn */
    /* of the stream */
    bool opened, closed; /* the first and the last chunk are out */
    size_t n_sent;
    int64_t n_tokens_sent, n_chars_sent;
} oct_serve_choice;

/* A request that the worker answers alone: from its body to a reply. False: *f says why not. */
typedef bool oct_serve_errand(const oct_serve_config *c, const json_t *body, json_t **out,
                              oct_serve_fault *f);

/* A prompt: one request to the scheduler. */
typedef struct oct_serve_part {
    struct oct_serve_answer *answer;
    uint64_t id; /* 0: not submitted yet */
    int64_t n_cached, n_done;
    bool begun;
    oct_serve_text scores; /* with echo and logprobs: its tokens, the first without probability */
} oct_serve_part;

typedef struct oct_serve_answer {
    oct_serve_job job; /* first */
    struct oct_serve_answer *next;
    oct_serve_server *server;
    struct evhttp_request *req; /* NULL: nobody listens any more */
    oct_serve_conn *conn;
    char *body; /* until it is read */
    size_t n_body;
    oct_serve_ask ask;
    oct_serve_fault fault;
    oct_serve_errand *errand;    /* NULL: a completion or chat */
    json_t *out;                 /* of the errand */
    oct_serve_part *parts;       /* [ask.n_prompts] */
    oct_serve_choice *choices;   /* [ask.n_prompts][ask.n] */
    int64_t n_submitted, n_open; /* parts; texts in the scheduler */
    bool chat;
    bool reading;   /* the worker has it, and ask with it */
    bool streaming; /* headers are out */
    bool held;      /* the reader is slow: nothing is added until it has caught up */
    char id[48];
    int64_t created;
    double arrived, written; /* written: when the stream had its last bytes */
} oct_serve_answer;

/* Begins an answer to req, or refuses it. errand NULL: a chat, or a completion. */
void oct_serve_answer_begin(oct_serve_server *s, struct evhttp_request *req,
                            oct_serve_errand *errand, bool chat);
/* Its client has left. */
void oct_serve_answer_gone(oct_serve_answer *a);

/* Of all answers: what the engine did, time passing, a failure that all share, the end. */
void oct_serve_answers_hear(oct_serve_server *s, const oct_serve_events *events);
void oct_serve_answers_tick(oct_serve_server *s, double now);
void oct_serve_answers_fail(oct_serve_server *s, const oct_serve_fault *f);
void oct_serve_answers_free(oct_serve_server *s);

/* ---- serve_reply.c: answers as JSON --------------------------------------------------------- */

int64_t oct_serve_n_choices(const oct_serve_answer *a);
/* The whole answer; NULL: no memory. */
json_t *oct_serve_answer_json(const oct_serve_answer *a);
/* A chunk of a stream about choice i: what of the text is ready and not sent, which is counted as
 * sent. NULL: there is nothing to say, or no memory. */
json_t *oct_serve_chunk_next(oct_serve_answer *a, int64_t i);
json_t *oct_serve_chunk_usage(const oct_serve_answer *a);
json_t *oct_serve_chunk_progress(const oct_serve_answer *a, double now);

#endif

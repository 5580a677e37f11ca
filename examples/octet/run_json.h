/* run_json.h: the lines of `octet run --json`. Each returns false once nobody listens. */
#ifndef OCT_RUN_JSON_H
#define OCT_RUN_JSON_H

#include "generate.h"

typedef struct oct_run_piece {
    const char *text; /* valid UTF-8 */
    size_t n;
} oct_run_piece;

/* A token that was drawn; piece: the text that it completes, which is none while a character lacks
 * bytes. */
bool oct_run_json_token(const oct_model *m, int64_t prompt, const oct_event *e, oct_run_piece piece,
                        bool logprobs);
/* A text that has ended; rest: what came behind the last token. */
bool oct_run_json_end(int64_t prompt, const oct_gen_text *t, size_t n_prompt, oct_run_piece rest,
                      oct_run_piece all);
bool oct_run_json_work(const oct_scheduler_stats *work, uint64_t seed, bool drawn);

#endif

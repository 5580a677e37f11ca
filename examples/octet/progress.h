/* progress.h: how far a long piece of work is, on stderr: one line that is redrawn on a terminal, a
 * plain line now and then elsewhere. Not thread-safe; the caller serialises. */
#ifndef OCT_PROGRESS_H
#define OCT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct oct_convert_progress;

typedef struct oct_progress {
    const char *what; /* "writing"; borrowed */
    uint64_t total;   /* bytes or tokens; 0: unknown */
    bool tokens;
    double started, shown;
    bool terminal, drawn;
} oct_progress;

void oct_progress_start(oct_progress *p, const char *what, uint64_t total_bytes);
/* Counts tokens instead of bytes. */
void oct_progress_start_tokens(oct_progress *p, const char *what, uint64_t total_tokens);
/* Draws if it is time to. */
void oct_progress_update(oct_progress *p, uint64_t done);
/* For a file in the making: a line for each phase of it, which is the same pointer as long as it
 * lasts; NULL: the file is complete. temp: the unfinished file, which goes if the program is ended.
 * *p is zeroed before the first phase. */
void oct_progress_phase(oct_progress *p, const char *phase, uint64_t done, uint64_t total_bytes,
                        const char *temp);
/* The same as a callback of the functions of convert.h, which counts the unfinished file's phases:
 * ctx is the oct_progress. */
void oct_progress_tell(void *ctx, const struct oct_convert_progress *p);
/* The last line: bytes, time and rate if the work was finished; else the line is only ended. For
 * tokens the line disappears. */
void oct_progress_end(oct_progress *p, bool finished);

#endif

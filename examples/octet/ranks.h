/* ranks.h: one run of octet over the ranks of an MPI job. Rank 0 is the program that the user sees;
 * the others open the model that it names and do what its sessions ask for. */
#ifndef OCT_RANKS_H
#define OCT_RANKS_H

#include <limits.h>

#include <octet/job.h>

#include "cli_session.h"

/* Joins the job if a launcher (mpirun, srun) started this process as one of several; only then is
 * the MPI module loaded. Returns -1 to go on as the program, or the exit code: of a rank that has
 * served until the end, or after an error, one that was given other arguments than rank 0 for
 * instance. lasts: a rank that serves leaves a first signal to rank 0. */
int oct_ranks_start(int argc, char **argv, bool lasts);

oct_job *oct_ranks_job(void); /* NULL: one process */

/* The layout of the last session; otherwise, if there is one process. */
oct_shard_layout oct_ranks_layout(oct_shard_layout otherwise);

/* The name of this rank's file: in a job, the first "%r" becomes the rank. Returns pattern or
 * room. */
const char *oct_ranks_path(const char *pattern, char room[PATH_MAX]);

/* Puts the weights where --weights says and makes a session; in a job, see oct_job_session_new.
 * What does not fit together is listed on stderr, rank by rank. */
OCT_MUST_CHECK oct_status oct_ranks_session_new(const oct_cli_session *o, oct_model *m,
                                                const oct_session_params *p, oct_session **s,
                                                oct_error *err);

/* Rank 0: where the time of the last session went, on stderr; nothing if there is one process.
 * token_seconds: from one generated token to the next, 0: there were none. */
void oct_ranks_print(const oct_model *m, oct_session *s, double token_seconds);

/* Rank 0, at the end: lets the others end too. */
void oct_ranks_end(void);

/* Where oct_ranks_session_new has put the weights; NULL: they are used from the file. */
const oct_placement *oct_ranks_placement(void);

/* Closes a model, and frees that placement of it. No session may be left. */
void oct_ranks_close(oct_model *m);

#endif

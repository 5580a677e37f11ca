/* ranks_report.h: where the time of a job's session went, for people. */
#ifndef OCT_RANKS_REPORT_H
#define OCT_RANKS_REPORT_H

#include <octet/job.h>

/* Rank 0 of several: some lines on stderr. p: of the session. token_seconds: from one generated
 * token to the next, 0: there were none. */
void oct_rank_report_print(const oct_job *j, const oct_model *m, oct_session *s,
                           const oct_session_params *p, double token_seconds);

#endif

/* plan_job.h: what the files of `octet plan` share. */
#ifndef OCT_PLAN_JOB_H
#define OCT_PLAN_JOB_H

#include <octet/convert.h>
#include <octet/forecast.h>

#include "cli_session.h"

enum { OCT_PLAN_HOSTS = 8, OCT_PLAN_INSTEAD = 32 };

/* Something else that would be possible. */
typedef struct oct_plan_instead {
    const char *experts; /* weight type of the experts, static */
    int n_hosts;
    int64_t n_ctx;
    bool fits;
    oct_forecast forecast;
    uint64_t total; /* on the host that takes most */
} oct_plan_instead;

typedef struct oct_plan_job {
    /* Options. */
    oct_cli_session session;
    const char *what, *experts, *hosts_file, *nodes, *network_text, *gpu, *memory;
    double read, ops; /* GB/s, TOPS; 0: not given */
    int64_t n_seqs, n_prompt;
    bool json;

    oct_outline outline;
    char *name[OCT_PLAN_HOSTS]; /* malloc'd */
    oct_host host[OCT_PLAN_HOSTS];
    oct_machine *machine[OCT_PLAN_HOSTS]; /* of hosts whose cores are told */
    int n_hosts;
    bool here;     /* they are this machine, or as it is */
    bool measured; /* its rates are of now */
    oct_network network;
    bool network_given;
    oct_card card;
    oct_session_params params;

    oct_forecast_rank rank[OCT_PLAN_HOSTS];
    oct_forecast forecast;
    oct_plan_instead instead[OCT_PLAN_INSTEAD];
    int n_instead;
} oct_plan_job;

/* "96GiB", "24 GB", "1.5T" (powers of 1024 unless it ends in B without i) into bytes. */
bool oct_plan_size(const char *text, uint64_t *bytes);
/* Numbers separated by commas, all finite and not negative: how many, at most max; 0: anything
 * else. */
int oct_plan_numbers(const char *text, int max, double *v);

/* The hosts that the options describe; an exit code, -1 to go on. */
int oct_plan_hosts(oct_plan_job *j);
void oct_plan_hosts_free(oct_plan_job *j);

/* Prints everything, as text or as JSON; an exit code. */
int oct_plan_print(const oct_plan_job *j);
int oct_plan_print_json(const oct_plan_job *j);

#endif

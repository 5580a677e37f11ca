/* plan_hosts.c: hosts, networks and cards from the options and files of `octet plan`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan_job.h"

enum { FILE_BYTES_MAX = 1 << 20 };

bool oct_plan_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGTP";
    char *end;
    double x = strtod(text, &end), unit = 1;
    if (end == text || !(x >= 0) || *text == '-' || *text == '+')
        return false;
    while (*end == ' ')
        end++;
    const char *at = *end ? strchr(units, *end) : NULL;
    if (at) {
        const bool decimal = end[1] == 'B' && end[2] == 0;
        unit = pow(decimal ? 1000 : 1024, (double)(at - units + 1));
        end += strcmp(end + 1, "iB") == 0 ? 3 : decimal ? 2 : 1;
    }
    if (*end || x * unit >= 0x1p63)
        return false;
    *bytes = (uint64_t)(x * unit);
    return true;
}

int oct_plan_numbers(const char *text, int max, double *v)
{
    int n = 0;
    for (const char *p = text; n < max; p++) {
        char *end;
        v[n] = strtod(p, &end);
        if (end == p || !(v[n] >= 0 && v[n] < 1e12) || (*end && *end != ','))
            return 0;
        n++;
        p = end;
        if (!*end)
            return n;
    }
    return 0;
}

/* ---- a file of hosts ------------------------------------------------------------------------- */

/* One word of a line, "key=value". */
static bool host_word(oct_host *h, char *word, int *cores, int *nodes)
{
    double x[1];
    char *value = strchr(word, '=');
    *value++ = 0;
    if (strcmp(word, "memory") == 0)
        return oct_plan_size(value, &h->memory) && h->memory > 0;
    if (strcmp(word, "slots") == 0) /* of mpirun's file */
        return strcmp(value, "1") == 0;
    if (oct_plan_numbers(value, 1, x) != 1 || !(x[0] > 0))
        return false;
    if (strcmp(word, "read") == 0)
        h->read = (oct_bounds){x[0] * 1e9, x[0] * 1e9};
    else if (strcmp(word, "ops") == 0)
        h->ops = (oct_bounds){x[0] * 1e12, x[0] * 1e12};
    else if (strcmp(word, "cores") == 0 && x[0] == (int)x[0] && x[0] <= OCT_MAX_THREADS)
        *cores = (int)x[0];
    else if (strcmp(word, "numa") == 0 && x[0] == (int)x[0] && x[0] <= 64)
        *nodes = (int)x[0];
    else
        return false;
    return true;
}

static oct_status host_line(oct_plan_job *j, char *line, int number, oct_error *err)
{
    int cores = 0, nodes = 1;
    char *state, *word = strtok_r(line, " \t\r#", &state);
    const char *path = j->hosts_file;
    char topology[64];
    if (!word || strchr(word, '='))
        return word ? oct_fail(err, OCT_ERR_ARG, "%s:%d: a line begins with the host's name", path,
                               number)
                    : OCT_OK;
    if (j->n_hosts == OCT_PLAN_HOSTS)
        return oct_fail(err, OCT_ERR_ARG, "%s:%d: more than %d hosts", path, number,
                        OCT_PLAN_HOSTS);
    oct_host *h = &j->host[j->n_hosts];
    j->name[j->n_hosts] = strdup(word);
    while ((word = strtok_r(NULL, " \t\r#", &state))) {
        char shown[64];
        snprintf(shown, sizeof shown, "%s", word);
        if (strchr(word, '=') && !host_word(h, word, &cores, &nodes))
            return oct_fail(err, OCT_ERR_ARG,
                            "%s:%d: '%s', expected memory=SIZE, read=GB/s, ops=TOPS, cores=N, "
                            "numa=N, slots=1",
                            path, number, shown);
    }
    if (h->memory == 0)
        return oct_fail(err, OCT_ERR_ARG, "%s:%d: memory=SIZE is missing", path, number);
    if (cores > 0) {
        snprintf(topology, sizeof topology, "numa:%d core:%d pu:1", nodes,
                 cores / nodes > 0 ? cores / nodes : 1);
        OCT_TRY(oct_machine_load(topology, &j->machine[j->n_hosts], err));
        h->machine = j->machine[j->n_hosts];
    }
    j->n_hosts++;
    return j->name[j->n_hosts - 1] ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "out of memory");
}

/* Lines "NAME memory=384GiB read=400 cores=96": those of mpirun's file, with what it does not know
 * behind '#'. */
static oct_status read_hosts(oct_plan_job *j, oct_error *err)
{
    char *text;
    size_t n;
    OCT_TRY(oct_cli_read(j->hosts_file, FILE_BYTES_MAX, &text, &n, err));
    oct_status s = OCT_OK;
    int number = 0;
    for (char *line = text; line && s == OCT_OK;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = 0;
        number++;
        if (line[strspn(line, " \t\r")] != '#')
            s = host_line(j, line, number, err);
        line = end ? end + 1 : NULL;
    }
    free(text);
    if (s == OCT_OK && j->n_hosts == 0)
        s = oct_fail(err, OCT_ERR_ARG, "%s: names no host", j->hosts_file);
    return s;
}

/* ---- hosts as this one ----------------------------------------------------------------------- */

static oct_status this_host(oct_plan_job *j, oct_error *err)
{
    oct_host h = {.machine = j->params.machine};
    oct_memory have;
    j->here = true;
    j->measured = !(j->read > 0 && j->ops > 0);
    if (j->measured)
        OCT_TRY(oct_host_measure(&j->params, &h, err));
    oct_memory_get("", &have);
    h.memory = have.limit;
    for (int i = 0; i < j->n_hosts; i++) {
        char name[32];
        snprintf(name, sizeof name, i ? "as this (%d)" : "this machine", i + 1);
        j->host[i] = h;
        j->name[i] = strdup(name);
        if (!j->name[i])
            return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    }
    return OCT_OK;
}

/* What --memory, --read and --ops say of every host. */
static void override(oct_plan_job *j, uint64_t memory)
{
    for (int i = 0; i < j->n_hosts; i++) {
        oct_host *h = &j->host[i];
        h->memory = memory ? memory : h->memory;
        if (j->read > 0)
            h->read = (oct_bounds){j->read * 1e9, j->read * 1e9};
        if (j->ops > 0)
            h->ops = (oct_bounds){j->ops * 1e12, j->ops * 1e12};
    }
}

static bool parse_memory(const oct_plan_job *j, uint64_t *memory)
{
    *memory = 0;
    if (!j->memory || (oct_plan_size(j->memory, memory) && *memory > 0))
        return true;
    oct_cli_error("plan: --memory '%s', expected a size such as 384GiB", j->memory);
    return false;
}

/* 10 GbE unless something is said; --nodes says it for hosts that are all alike. */
static bool parse_network(oct_plan_job *j)
{
    double v[3] = {1, 25, 1.15};
    j->n_hosts = 1;
    if (j->nodes && (oct_plan_numbers(j->nodes, 3, v) != 3 || v[0] != (int)v[0] || v[0] < 1 ||
                     v[0] > OCT_PLAN_HOSTS || !(v[2] > 0))) {
        oct_cli_error("plan: --nodes '%s', expected N,LATENCY_US,GBYTE_PER_S with N of 1..%d",
                      j->nodes, OCT_PLAN_HOSTS);
        return false;
    }
    if (j->network_text && (oct_plan_numbers(j->network_text, 2, v + 1) != 2 || !(v[2] > 0))) {
        oct_cli_error("plan: --network '%s', expected LATENCY_US,GBYTE_PER_S", j->network_text);
        return false;
    }
    j->network_given = j->nodes || j->network_text;
    j->n_hosts = (int)v[0];
    j->network = (oct_network){v[1] * 1e-6, 1e-9 / v[2]};
    return true;
}

static bool parse_card(oct_plan_job *j)
{
    char size[64];
    double v[1];
    const char *comma = j->gpu ? strchr(j->gpu, ',') : NULL;
    if (!j->gpu)
        return true;
    if (comma && (size_t)(comma - j->gpu) < sizeof size) {
        memcpy(size, j->gpu, (size_t)(comma - j->gpu));
        size[comma - j->gpu] = 0;
        if (oct_plan_size(size, &j->card.memory) && oct_plan_numbers(comma + 1, 1, v) == 1 &&
            v[0] > 0) {
            j->card.read = v[0] * 1e9;
            return true;
        }
    }
    oct_cli_error("plan: --gpu '%s', expected SIZE,GBYTE_PER_S such as 24GiB,900", j->gpu);
    return false;
}

int oct_plan_hosts(oct_plan_job *j)
{
    oct_error err = {0};
    oct_status s;
    if (j->hosts_file && j->nodes) {
        oct_cli_error("plan: --hosts names the hosts and --nodes counts them: one of the two");
        return OCT_EXIT_USAGE;
    }
    uint64_t memory;
    if (!parse_network(j) || !parse_card(j) || !parse_memory(j, &memory))
        return OCT_EXIT_USAGE;
    if (j->hosts_file) {
        j->n_hosts = 0;
        s = read_hosts(j, &err);
    } else {
        s = this_host(j, &err);
    }
    if (s != OCT_OK)
        return s == OCT_ERR_ARG ? (oct_cli_error("%s", err.text), OCT_EXIT_USAGE)
                                : oct_cli_fail(&err);
    override(j, memory);
    return -1;
}

void oct_plan_hosts_free(oct_plan_job *j)
{
    for (int i = 0; i < OCT_PLAN_HOSTS; i++) {
        free(j->name[i]);
        oct_machine_free(j->machine[i]);
    }
}

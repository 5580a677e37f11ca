/* job_check.c: whether the ranks of a job fit together. */
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <xxhash.h>

#include "job_impl.h"
#include "machine.h"

/* ---- builds ---------------------------------------------------------------------------------- */

static bool holds_this_code(const struct dl_phdr_info *info)
{
    const uintptr_t here = (uintptr_t)&oct_rank_build_self;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type == PT_LOAD && here - (info->dlpi_addr + h->p_vaddr) < h->p_memsz)
            return true;
    }
    return false;
}

/* Writes the build id that a segment of notes holds, in hex. */
static void read_notes(const char *at, size_t left, char *out)
{
    ElfW(Nhdr) note;
    while (left >= sizeof note) {
        memcpy(&note, at, sizeof note);
        const size_t name = sizeof note, data = name + (note.n_namesz + 3ul) / 4 * 4,
                     next = data + (note.n_descsz + 3ul) / 4 * 4;
        if (data + note.n_descsz > left)
            return;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            memcmp(at + name, "GNU", 4) == 0)
            for (size_t k = 0; k < note.n_descsz && k < 20; k++)
                snprintf(out + 2 * k, 3, "%02x", (unsigned char)at[data + k]);
        if (next > left)
            return;
        at += next;
        left -= next;
    }
}

static void read_build_id(const struct dl_phdr_info *info, char *out)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type == PT_NOTE)
            read_notes((const char *)info->dlpi_addr + h->p_vaddr, h->p_memsz, out);
    }
}

/* Called for the program first, then for each library; for no more after it has returned 1. */
static int find_build_ids(struct dl_phdr_info *info, size_t size, void *ctx)
{
    oct_rank_build *b = ctx;
    (void)size;
    if (!b->program[0])
        read_build_id(info, b->program);
    if (!holds_this_code(info))
        return 0;
    read_build_id(info, b->build);
    return 1;
}

void oct_rank_build_self(oct_rank_build *b)
{
    memset(b, 0, sizeof *b);
    gethostname(b->host, sizeof b->host - 1);
    snprintf(b->version, sizeof b->version, "%s", oct_version());
    dl_iterate_phdr(find_build_ids, b);
}

int oct_rank_builds_differ(const oct_rank_build *b, int n, const oct_job_voice *v)
{
    int differ = 0;
    for (int i = 1; i < n; i++) {
        if (strcmp(b[i].version, b[0].version) != 0)
            oct_job_tell(v, OCT_JOB_ERROR, "rank %d on %s: octet %s, rank 0 on %s has %s", i,
                         b[i].host, b[i].version, b[0].host, b[0].version);
        else if (strcmp(b[i].build, b[0].build) != 0)
            oct_job_tell(v, OCT_JOB_ERROR,
                         "rank %d on %s: another build of octet (%.12s, rank 0 on %s has %.12s)", i,
                         b[i].host, b[i].build[0] ? b[i].build : "no build id", b[0].host,
                         b[0].build[0] ? b[0].build : "none");
        else
            continue;
        differ++;
    }
    return differ;
}

int oct_rank_programs_differ(const oct_rank_build *b, int n, const oct_job_voice *v)
{
    int differ = 0;
    for (int i = 1; i < n; i++) {
        if (strcmp(b[i].program, b[0].program) == 0)
            continue;
        oct_job_tell(v, OCT_JOB_ERROR,
                     "rank %d on %s: another build of the program (%.12s, rank 0 on %s has %.12s)",
                     i, b[i].host, b[i].program[0] ? b[i].program : "no build id", b[0].host,
                     b[0].program[0] ? b[0].program : "none");
        differ++;
    }
    return differ;
}

/* ---- what they were given -------------------------------------------------------------------- */

/* Words, each with its 0 behind it. */
typedef struct given {
    char host[64];
    uint64_t hash, bytes;
} given;

static char *join_words(int n_words, char *const *words, given *g)
{
    memset(g, 0, sizeof *g);
    gethostname(g->host, sizeof g->host - 1);
    for (int i = 0; i < n_words; i++)
        g->bytes += strlen(words[i]) + 1;
    char *text = calloc(1, g->bytes + 1), *at = text;
    for (int i = 0; i < n_words && text; i++)
        at = stpcpy(at, words[i]) + 1;
    g->hash = text ? XXH3_64bits(text, g->bytes) : 0;
    return text;
}

static bool same_words(const given *a, const given *b)
{
    return a->hash == b->hash && a->bytes == b->bytes;
}

/* A word, and what belongs to it: its option before it, or the option's value behind it. */
static void quote(const char *word, const char *before, const char *end, char out[200])
{
    const char *next = word < end ? word + strlen(word) + 1 : end;
    if (word == end)
        snprintf(out, 200, "no more");
    else if (word[0] != '-' && before[0] == '-')
        snprintf(out, 200, "%.90s %.90s", before, word);
    else
        snprintf(out, 200, "%.90s%s%.90s", word, next < end && next[0] != '-' ? " " : "",
                 next < end && next[0] != '-' ? next : "");
}

/* The first word of mine that is not rank 0's. */
static void name_difference(const char *mine, const given *g, const char *first, const given *f,
                            char out[OCT_ERROR_TEXT])
{
    const char *a = mine, *b = first, *before = "";
    const char *end = mine + g->bytes, *first_end = first + f->bytes;
    char own[200], other[200];
    while (a < end && b < first_end && strcmp(a, b) == 0) {
        before = a;
        a += strlen(a) + 1;
        b += strlen(b) + 1;
    }
    quote(a, before, end, own);
    quote(b, before, first_end, other);
    snprintf(out, OCT_ERROR_TEXT, "%s; rank 0 on %s has %s", own, f->host, other);
}

/* Rank 0's words reach all; each that has others says which. */
static oct_status tell_differences(oct_comm *c, const char *mine, const given *all,
                                   const oct_job_voice *v, oct_error *err)
{
    typedef char line[OCT_ERROR_TEXT];
    char *first = malloc(all[0].bytes + 1);
    line own = "", *lines = calloc((size_t)c->size, sizeof *lines);
    oct_status status = OCT_OK;
    if (!first || !lines) {
        c->broken = true; /* the others talk by now */
        status = oct_fail(err, OCT_ERR_MEMORY, "no memory for the arguments of %d ranks", c->size);
    } else if (c->rank == 0) {
        memcpy(first, mine, all[0].bytes);
    }
    if (status == OCT_OK)
        status = c->broadcast(c, first, all[0].bytes, err);
    if (status == OCT_OK && !same_words(&all[c->rank], &all[0]))
        name_difference(mine, &all[c->rank], first, &all[0], own);
    if (status == OCT_OK)
        status = c->gather(c, own, sizeof own, lines, err);
    for (int i = 1; i < c->size && status == OCT_OK; i++)
        if (lines[i][0])
            oct_job_tell(v, OCT_JOB_ERROR, "rank %d on %s: other arguments than rank 0: %s", i,
                         all[i].host, lines[i]);
    free(lines);
    free(first);
    return status;
}

oct_status oct_rank_words_differ(oct_comm *c, int n_words, char *const *words,
                                 const oct_job_voice *v, int *differ, oct_error *err)
{
    given mine, *all = calloc((size_t)c->size, sizeof *all);
    char *text = join_words(n_words, words, &mine);
    oct_status status = OCT_OK;
    *differ = 0;
    if (!all || !text) {
        c->broken = true; /* the others compare by now */
        status = oct_fail(err, OCT_ERR_MEMORY, "no memory to compare %d ranks", c->size);
    }
    if (status == OCT_OK)
        status = c->gather(c, &mine, sizeof mine, all, err);
    for (int i = 1; i < c->size && status == OCT_OK; i++)
        *differ += !same_words(&all[i], &all[0]);
    if (status == OCT_OK && *differ > 0)
        status = tell_differences(c, text, all, v, err);
    free(text);
    free(all);
    return status;
}

/* ---- one rank ------------------------------------------------------------------------------- */

/* What may still be mapped under ulimit -v. */
static uint64_t address_space_left(void)
{
    struct rlimit l;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &l) != 0 || l.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%llu", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    uint64_t used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return l.rlim_cur > used ? l.rlim_cur - used : 0;
}

static int32_t count_cpus(pid_t pid, cpu_set_t *set)
{
    CPU_ZERO(set);
    return sched_getaffinity(pid, sizeof *set, set) == 0 ? CPU_COUNT(set) : 0;
}

static void find_boot(char boot[40])
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f)
        return;
    if (fscanf(f, "%39s", boot) != 1)
        boot[0] = 0;
    fclose(f);
}

/* The row of this name, and those that are less preferred and that this CPU can run. */
static uint32_t kernels_up_to(const char *name)
{
    const oct_kernels *best = oct_kernels_find(name);
    uint32_t rows = 0;
    for (int i = 0; i < oct_n_kernel_rows; i++)
        if (oct_kernel_rows[i].preference <= best->preference &&
            oct_kernels_usable(&oct_kernel_rows[i]))
            rows |= UINT32_C(1) << i;
    return rows;
}

static bool has(const oct_rank_report *r, const oct_kernels *row)
{
    return r->kernels >> (row - oct_kernel_rows) & 1;
}

void oct_rank_report_self(const oct_model *m, const oct_session_params *p, const oct_error *opened,
                          bool resident, oct_rank_report *r)
{
    memset(r, 0, sizeof *r);
    gethostname(r->host, sizeof r->host - 1);
    find_boot(r->boot);
    cpu_set_t parent;
    r->n_cpus = count_cpus(0, &r->cpus);
    r->n_cpus_parent = count_cpus(getppid(), &parent);
    oct_error err = *opened;
    oct_session_need need = {0};
    r->status = (int32_t)err.status;
    if (m && err.status == OCT_OK)
        r->status = (int32_t)oct_session_estimate(m, p, &need, &err);
    memcpy(r->text, err.text, sizeof r->text);
    if (r->status != OCT_OK)
        return;
    oct_memory have;
    oct_memory_get("", &have);
    const oct_model_info *info = oct_model_get_info(m);
    r->fingerprint = info->fingerprint;
    r->weights = need.weights;
    r->mapped = resident ? 0 : need.weights;
    r->need = r->mapped + need.kv + need.buffers;
    r->have = r->host_has = have.limit;
    r->file = info->part_size ? UINT64_MAX : info->file_bytes;
    uint64_t space = address_space_left();
    if (space < UINT64_MAX - info->file_bytes && space + info->file_bytes < r->have)
        r->have = space + r->mapped; /* the file is mapped already */
    r->n_threads = need.n_threads;
    r->kernels = kernels_up_to(need.isa);
}

const oct_kernels *oct_rank_kernels(uint32_t rows)
{
    const oct_kernels *best = &oct_kernel_rows[OCT_KERNELS_REF];
    for (int i = 0; i < oct_n_kernel_rows; i++)
        if (rows >> i & 1 && oct_kernel_rows[i].preference > best->preference)
            best = &oct_kernel_rows[i];
    return best;
}

/* Hosts may have the same name, and containers on one of them other names. */
static bool same_machine(const oct_rank_report *a, const oct_rank_report *b)
{
    return a->boot[0] && b->boot[0] ? strcmp(a->boot, b->boot) == 0 : strcmp(a->host, b->host) == 0;
}

int oct_rank_on_machine(const oct_rank_report *r, int n, int rank, int *local)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (i == rank)
            *local = count;
        count += same_machine(&r[i], &r[rank]);
    }
    return count;
}

bool oct_rank_shares_cores(const oct_rank_report *r, int n, int rank)
{
    for (int i = 0; i < n; i++) {
        cpu_set_t both;
        CPU_AND(&both, &r[i].cpus, &r[rank].cpus);
        bool unknown = r[i].n_cpus == 0 || r[rank].n_cpus == 0;
        if (i != rank && same_machine(&r[i], &r[rank]) && (unknown || CPU_COUNT(&both) > 0))
            return true;
    }
    return false;
}

/* ---- memory of hosts ------------------------------------------------------------------------ */

static bool same_host(const oct_rank_report *a, const oct_rank_report *b)
{
    return strcmp(a->host, b->host) == 0 && same_machine(a, b);
}

bool oct_rank_host_fits(const oct_rank_report *r, int n, int i, uint64_t *need, uint64_t *have)
{
    uint64_t mapped = 0, own = 0;
    *have = UINT64_MAX;
    for (int k = 0; k < n; k++) {
        if (!same_host(&r[k], &r[i]))
            continue;
        mapped += r[k].mapped;
        own += r[k].need - r[k].mapped;
        *have = r[k].host_has < *have ? r[k].host_has : *have;
    }
    *need = own + (mapped < r[i].file ? mapped : r[i].file);
    return *need <= *have;
}

bool oct_rank_all_fit(const oct_rank_report *r, int n)
{
    uint64_t need, have;
    for (int i = 0; i < n; i++)
        if (r[i].need > r[i].have || !oct_rank_host_fits(r, n, i, &need, &have))
            return false;
    return true;
}

/* ---- all ranks ------------------------------------------------------------------------------ */

/* What is wrong with rank i, beside rank 0. */
static int compare_one(const oct_rank_report *r, int i, const oct_job_voice *v)
{
    int problems = 0;
    char a[24], b[24];
    if (r[i].status != OCT_OK) {
        problems++;
        oct_job_tell(v, OCT_JOB_ERROR, "rank %d on %s: %s", i, r[i].host, r[i].text);
    }
    if (r[i].status == OCT_OK && r[0].status == OCT_OK && r[i].fingerprint != r[0].fingerprint) {
        problems++;
        oct_job_tell(v, OCT_JOB_ERROR,
                     "rank %d on %s: another model file (%016llx, rank 0 on %s has %016llx)", i,
                     r[i].host, (unsigned long long)r[i].fingerprint, r[0].host,
                     (unsigned long long)r[0].fingerprint);
    }
    if (r[i].status == OCT_OK && r[i].need > r[i].have) {
        problems++;
        oct_job_tell(v, OCT_JOB_ERROR, "rank %d on %s: its part needs %s, but only %s is available",
                     i, r[i].host, oct_memory_text(r[i].need, a), oct_memory_text(r[i].have, b));
    }
    return problems;
}

/* Of the host that rank i is the first on. */
static int compare_host(const oct_rank_report *r, int n, int i, const oct_job_voice *v)
{
    int ranks = 0;
    uint64_t need, have;
    char a[24], b[24];
    for (int k = 0; k < n; k++) {
        if (!same_host(&r[k], &r[i]))
            continue;
        if (k < i || r[k].status != OCT_OK) /* what one that could not look needs is unknown */
            return 0;
        ranks++;
    }
    if (ranks == 1 || oct_rank_host_fits(r, n, i, &need, &have)) /* one has told already */
        return 0;
    oct_job_tell(v, OCT_JOB_ERROR,
                 "host %s: its %d ranks need %s together, but only %s is available", r[i].host,
                 ranks, oct_memory_text(need, a), oct_memory_text(have, b));
    return 1;
}

/* Launchers bind a rank to one core unless told otherwise. */
static void warn_of_binding(const oct_rank_report *r, int n, const oct_job_voice *v)
{
    int bound = 0, first = 0;
    for (int i = n - 1; i >= 0; i--) {
        int on_host = 0;
        for (int k = 0; k < n; k++)
            on_host += strcmp(r[k].host, r[i].host) == 0;
        if (r[i].n_cpus > 0 &&
            (r[i].n_cpus < r[i].n_threads || r[i].n_cpus * on_host < r[i].n_cpus_parent)) {
            bound++;
            first = i;
        }
    }
    char others[32] = "";
    if (bound > 1)
        snprintf(others, sizeof others, " and %d more", bound - 1);
    if (bound > 0)
        oct_job_tell(v, OCT_JOB_WARNING,
                     "rank %d on %s%s: bound to %d CPU%s, of %d that are there, for %d thread%s: "
                     "SLOW; mpirun --bind-to none, or --map-by slot:PE=n, gives more",
                     first, r[first].host, others, r[first].n_cpus, r[first].n_cpus == 1 ? "" : "s",
                     r[first].n_cpus_parent, r[first].n_threads,
                     r[first].n_threads == 1 ? "" : "s");
}

/* What is well, and what could be better. row: the kernels of all. */
static void describe(const oct_rank_report *r, int n, const oct_kernels *row,
                     const oct_job_voice *v)
{
    uint64_t largest = 0;
    char b[24];
    int without = -1, with = -1; /* a better row than all have */
    for (int i = n - 1; i >= 0; i--) {
        largest = r[i].weights > largest ? r[i].weights : largest;
        if (oct_rank_kernels(r[i].kernels) != row)
            with = i;
    }
    for (int i = n - 1; i >= 0 && with >= 0; i--)
        if (!has(&r[i], oct_rank_kernels(r[with].kernels)))
            without = i;
    oct_job_tell(v, OCT_JOB_NOTE, "%d ranks hold %s of weights each", n,
                 oct_memory_text(largest, b));
    if (with >= 0)
        oct_job_tell(v, OCT_JOB_WARNING,
                     "all ranks use the %s kernels: rank %d on %s has no %s, which rank %d on %s "
                     "has",
                     row->name, without, r[without].host, oct_rank_kernels(r[with].kernels)->name,
                     with, r[with].host);
    warn_of_binding(r, n, v);
    for (int i = 0; i < n; i++)
        if (oct_rank_shares_cores(r, n, i)) {
            oct_job_tell(v, OCT_JOB_NOTE,
                         "ranks share cores, rank %d on %s with others: their threads are not "
                         "bound",
                         i, r[i].host);
            break;
        }
}

int oct_rank_compare(const oct_rank_report *r, int n, const oct_job_voice *v,
                     const oct_kernels **kernels)
{
    int problems = 0;
    uint32_t common = UINT32_MAX;
    for (int i = 0; i < n; i++) {
        problems += compare_one(r, i, v) + compare_host(r, n, i, v);
        common &= r[i].kernels;
    }
    *kernels = oct_rank_kernels(common);
    if (problems == 0)
        describe(r, n, *kernels, v);
    return problems;
}

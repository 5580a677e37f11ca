/* octet slice: one rank's part of a model. */
#include <stdlib.h>
#include <string.h>

#include <octet/convert.h>
#include <octet/machine.h>

#include "cli.h"
#include "commands.h"
#include "cli_session.h"
#include "progress.h"

typedef struct slice_state {
    oct_slice_params params;
    const char *rank;
    int by_expert;
    bool replicate_attention;
    oct_progress progress;
} slice_state;

/* "3/8" */
static bool parse_rank(const char *text, int *rank, int *size)
{
    int n = 0;
    return strspn(text, "0123456789/") == strlen(text) && strlen(text) < 12 &&
           sscanf(text, "%d/%d%n", rank, size, &n) == 2 && text[n] == 0 && *rank < *size;
}

static int parse(slice_state *r, int argc, char **argv)
{
    oct_slice_params *p = &r->params;
    const oct_opt rows[] = {
        OCT_ROW_TEXT('m', "model", &p->model, "FILE",
                     "the whole model, made by `octet convert` (required)"),
        OCT_ROW_CHOICE(0, "shard", &r->by_expert, "slice|expert",
                       "what a rank holds, its slices of every matrix or whole\n"
                       "experts [slice]; as in `octet run`"),
        OCT_ROW_FLAG(0, "replicate-attention", &r->replicate_attention,
                     "and all of attention; as in `octet run`"),
        OCT_ROW_TEXT(0, "rank", &r->rank, "R/N", "which rank of how many, from 0/N (required)"),
        OCT_ROW_TEXT('o', "output", &p->out, "FILE",
                     "the file to make (required); replaced only when the new one\n"
                     "is complete"),
    };
    const oct_cli cli = {
        .name = "slice",
        .synopsis = "-m MODEL --rank R/N -o FILE [--shard slice|expert] [--replicate-attention]",
        .about =
            "Writes what one of N ranks needs of a model, for hosts that share no file system.\n"
            "The part has the fingerprint of the model; ranks can use whole files and parts\n"
            "side by side, but each part only for its own rank, number of ranks and division.\n"
            "Only what is copied is read; `octet info --verify` checks the whole model.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "example, for 8 hosts:\n"
                 "  octet slice -m grok-1.gguf --rank 3/8 -o part-3.gguf\n"
                 "  octet info --verify -m part-3.gguf\n"
                 "  mpirun -n 8 --hostfile hosts octet run -m '/models/part-%r.gguf' -p ...\n"
                 "%r is the rank; a name without it is the same on every host.",
    };
    int code = oct_cli_parse(&cli, argc, argv, NULL);
    if (code >= 0)
        return code;
    const char *missing = !p->model  ? "-m MODEL"
                          : !r->rank ? "--rank R/N"
                          : !p->out  ? "-o FILE"
                                     : NULL;
    if (missing) {
        oct_cli_error("slice: %s is missing (octet slice --help shows the usage)", missing);
        return OCT_EXIT_USAGE;
    }
    if (!parse_rank(r->rank, &p->rank, &p->size)) {
        oct_cli_error("slice: --rank '%s', expected a rank and the number of ranks, such as 0/8",
                      r->rank);
        return OCT_EXIT_USAGE;
    }
    p->by = oct_cli_shard(r->by_expert, r->replicate_attention);
    return -1;
}

int oct_cmd_slice(int argc, char **argv)
{
    slice_state r = {.params.progress = oct_progress_tell};
    oct_slice_report report = {0};
    oct_error err = {0};
    int code = parse(&r, argc, argv);
    if (code >= 0)
        return code;
    r.params.cancel = oct_cli_cancel_flag();
    r.params.progress_ctx = &r.progress;
    oct_status s = oct_slice(&r.params, &report, &err);
    oct_cli_temp_file(NULL);
    if (r.progress.what)
        oct_progress_end(&r.progress, s == OCT_OK);
    for (size_t i = 0; i < report.warnings.n; i++)
        oct_cli_warning("%s", report.warnings.line[i]);
    oct_lines_free(&report.warnings);
    if (s != OCT_OK)
        return oct_cli_fail(&err);
    char a[24], b[24];
    fprintf(stderr, "%s -> %s: rank %s by %s, %s of %s, verified\n", r.params.model, r.params.out,
            r.rank, oct_shard_name(r.params.by), oct_memory_text(report.bytes, a),
            oct_memory_text(report.whole_bytes, b));
    return OCT_EXIT_OK;
}

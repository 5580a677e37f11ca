/* octet export: from a model file to one for llama.cpp. */
#include <octet/convert.h>
#include <octet/machine.h>

#include "cli.h"
#include "commands.h"
#include "progress.h"

typedef struct export_state {
    oct_export_params params;
    bool q8_0;
    oct_progress progress;
} export_state;

static int parse(export_state *r, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_ROW_FLAG(0, "q8_0", &r->q8_0,
                     "matrices as type Q8_0 (required; the only type there is)"),
        OCT_ROW_TEXT('o', "output", &r->params.out, "FILE", "the GGUF file to write (required)"),
        OCT_ROW_FLAG(0, "lossy", &r->params.lossy,
                     "round scales that 16-bit floats do not hold, instead of\n"
                     "refusing"),
    };
    const oct_cli cli = {
        .name = "export",
        .synopsis = "--q8_0 MODEL -o OUT.gguf [--lossy]",
        .about =
            "Writes a model file as one that stock llama.cpp runs. Nothing is quantised again: "
            "the\n"
            "integers stay, and each block of 32 carries its scale as f16. Models whose scale "
            "groups\n"
            "are not multiples of 32 inputs are refused, and so are scales that f16 does not hold\n"
            "exactly, unless --lossy says that they may be rounded. The file appears under its "
            "name\n"
            "when it is complete.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "example:\n"
                 "  octet export --q8_0 grok-1.gguf -o grok-1-q8_0.gguf",
        .max_args = 1,
    };
    int first = argc;
    int code = oct_cli_parse(&cli, argc, argv, &first);
    if (code >= 0)
        return code;
    const char *missing = first == argc    ? "MODEL"
                          : !r->params.out ? "-o OUT.gguf"
                          : !r->q8_0       ? "--q8_0"
                                           : NULL;
    if (missing) {
        oct_cli_error("export: %s is missing (octet export --help shows the usage)", missing);
        return OCT_EXIT_USAGE;
    }
    r->params.model = argv[first];
    return -1;
}

int oct_cmd_export(int argc, char **argv)
{
    export_state r = {0};
    oct_export_report report = {0};
    oct_error err = {0};
    int code = parse(&r, argc, argv);
    if (code >= 0)
        return code;
    r.params.cancel = oct_cli_cancel_flag();
    r.params.progress = oct_progress_tell;
    r.params.progress_ctx = &r.progress;
    oct_status s = oct_export_q8_0(&r.params, &report, &err);
    oct_progress_made(&r.progress, s == OCT_OK, &report.warnings);
    if (s != OCT_OK)
        return oct_cli_fail(&err);
    char bytes[24];
    fprintf(stderr, "%s -> %s: %s, %lld scales, %lld of them rounded", r.params.model, r.params.out,
            oct_memory_text(report.bytes, bytes), (long long)report.n_scales,
            (long long)report.n_inexact);
    if (report.n_inexact)
        fprintf(stderr, " (%lld to zero, %lld to the largest; relative error of the others %.1e)",
                (long long)report.n_zeroed, (long long)report.n_capped, report.scale_error);
    fprintf(stderr, "\n");
    return OCT_EXIT_OK;
}

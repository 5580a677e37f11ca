/* octet export: a model file for other programs. */
#include <stdio.h>

#include "cli.h"
#include "commands.h"
#include "export.h"
#include "progress.h"

typedef struct export_state {
    const char *model, *out;
    bool q8_0;
    oct_export_options options;
    oct_progress progress;
    bool started;
} export_state;

static int parse(export_state *r, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_ROW_FLAG(0, "q8_0", &r->q8_0, "a GGUF of architecture grok, type Q8_0, for llama.cpp (required)"),
        OCT_ROW_TEXT('o', "output", &r->out, "FILE",
                     "the file to make (required); replaced only when the new one is complete"),
        OCT_ROW_FLAG(0, "lossy", &r->options.lossy,
                     "round scales that f16 does not hold, instead of refusing the model"),
    };
    const oct_cli cli = {
        .name = "export",
        .synopsis = "--q8_0 MODEL -o FILE [--lossy]",
        .about =
            "Writes a model file as one that stock llama.cpp runs. Nothing is quantised again: the\n"
            "integers stay, and each block of 32 carries its scale as f16. Models whose scale groups\n"
            "are not multiples of 32 inputs are refused, and so are scales that f16 does not hold\n"
            "exactly, unless --lossy says that they may be rounded.",
        .opts = rows, .n_opts = sizeof rows / sizeof *rows,
        .notes = "example:\n"
                 "  octet export --q8_0 model.gguf -o llama.gguf",
        .max_args = 1,
    };
    int first = argc;
    int code = oct_cli_parse(&cli, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first >= argc) {
        oct_cli_error("export: which model? Give its file");
        return OCT_EXIT_USAGE;
    }
    if (!r->q8_0 || !r->out) {
        oct_cli_error(r->q8_0 ? "export: which file shall be made? Use -o FILE"
                              : "export: in which format? There is --q8_0");
        return OCT_EXIT_USAGE;
    }
    r->model = argv[first];
    return -1;
}

static void on_progress(void *ctx, uint64_t done, uint64_t total, const char *temp)
{
    export_state *r = ctx;
    if (!r->started) {
        r->started = true;
        oct_cli_temp_file(temp);
        oct_progress_start(&r->progress, "writing", total);
    }
    oct_progress_update(&r->progress, done);
}

int oct_cmd_export(int argc, char **argv)
{
    export_state r = {.options.progress = on_progress};
    oct_export_report report = {0};
    oct_error err = {0};
    char bytes[24];
    int code = parse(&r, argc, argv);
    if (code >= 0)
        return code;
    oct_cli_signals();
    r.options.cancel = oct_cli_cancel_flag();
    r.options.ctx = &r;
    oct_status s = oct_export_q8_0(r.model, r.out, &r.options, &report, &err);
    oct_cli_temp_file(NULL);
    if (r.started)
        oct_progress_end(&r.progress, s == OCT_OK);
    for (size_t i = 0; i < report.warnings.n; i++)
        oct_cli_warning("%s", report.warnings.line[i]);
    oct_lines_free(&report.warnings);
    if (s != OCT_OK)
        return oct_cli_fail(&err);
    fprintf(stderr, "%s -> %s: %s, %lld scales, %lld of them rounded\n", r.model, r.out,
            oct_cli_bytes(report.bytes, bytes), (long long)report.n_scales,
            (long long)report.n_inexact);
    return OCT_EXIT_OK;
}

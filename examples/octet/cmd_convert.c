/* octet convert: from a checkpoint to a model file. */
#include <stdio.h>
#include <string.h>

#include <octet/convert.h>
#include <octet/machine.h>

#include "cli.h"
#include "commands.h"
#include "progress.h"

typedef struct convert_state {
    oct_convert_params params;
    int64_t threads;
    oct_progress progress;
} convert_state;

static int parse(convert_state *r, int argc, char **argv)
{
    oct_convert_params *p = &r->params;
    const oct_opt rows[] = {
        OCT_ROW_TEXT('o', "output", &p->out, "FILE",
                     "the model file to make (required); replaced only when the\n"
                     "new one is complete"),
        OCT_ROW_TEXT(0, "tokenizer", &p->tokenizer, "FILE",
                     "SentencePiece model [tokenizer.model in the checkpoint's\n"
                     "folder or above it]"),
        OCT_ROW_FLAG(0, "no-tokenizer", &p->no_tokenizer,
                     "make a file without tokenizer: it can only be used with\n"
                     "token ids"),
        OCT_ROW_TEXT(0, "config", &p->config, "FILE",
                     "numbers that shapes cannot tell [config.json in the\n"
                     "checkpoint's folder or above it; not needed for Grok-1]"),
        OCT_ROW_INT('t', "threads", &r->threads, 1, 64, "N",
                    "threads that pack and compare [all processors]"),
    };
    const oct_cli cli = {
        .name = "convert",
        .synopsis = "CHECKPOINT -o FILE [options]",
        .about =
            "Makes a model file from a checkpoint. CHECKPOINT is the folder that holds ckpt-0 as "
            "xAI\n"
            "released it, or ckpt-0 itself; or a folder of Grok-1 in safetensors from Hugging "
            "Face\n"
            "(bfloat16; a model's folder in the Hub's cache too).\n"
            "Integers and scales are kept bit for bit; from safetensors they are computed back, "
            "each\n"
            "weight compared, and what does not come back is named and quantised. The embedding "
            "is\n"
            "rounded from f32 to bfloat16, as the model does whenever it uses it; matrices that "
            "are\n"
            "plain f32 or bfloat16 in xAI's format are quantised and the error is printed.\n"
            "Everything is checked before the work starts; the new file is read back and compared\n"
            "with the checkpoint before it gets its name. Memory, mapped files included, stays "
            "below\n"
            "512 MiB.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  octet convert grok-1/checkpoints -o grok-1.gguf\n"
                 "  octet convert ckpt-0 -o model.gguf --config config.json --no-tokenizer\n"
                 "  octet convert ~/.cache/huggingface/hub/models--hpcai-tech--grok-1 \\\n"
                 "    -o grok-1.gguf --tokenizer tokenizer.model",
        .max_args = 1,
    };
    int first = argc;
    int code = oct_cli_parse(&cli, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first >= argc) {
        oct_cli_error("convert: which checkpoint? Give its folder");
        return OCT_EXIT_USAGE;
    }
    if (!p->out) {
        oct_cli_error("convert: which file shall be made? Use -o FILE");
        return OCT_EXIT_USAGE;
    }
    if (p->tokenizer && p->no_tokenizer) {
        oct_cli_error("convert: --tokenizer and --no-tokenizer exclude each other");
        return OCT_EXIT_USAGE;
    }
    p->checkpoint = argv[first];
    p->n_threads = (int)r->threads;
    return -1;
}

/* How int8 weights were found again in bf16 numbers. */
static void show_recovered(const oct_convert_recovered *r)
{
    const struct {
        int64_t n;
        const char *what;
    } rows[] = {{r->n_several, "with more than one scale that gives the file's numbers"},
                {r->n_zero, "all zero, which tells no scale"},
                {r->n_odd, "with numbers that are no multiples, see the warnings"},
                {r->n_quantised, "quantised: they were no int8 times a scale"}};
    if (!r->n)
        return;
    fprintf(stderr,
            "int8 found again in bf16: %lld of %lld scales are the only ones that give the file's "
            "numbers, to the bit\n",
            (long long)r->n_unique, (long long)r->n);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].n)
            fprintf(stderr, "  %lld %s\n", (long long)rows[i].n, rows[i].what);
    if (r->n_odd || r->n_quantised)
        fprintf(stderr, "  relative error of these %lld: %.3e, largest %.3e\n",
                (long long)(r->n_odd + r->n_quantised), r->error, r->error_largest);
}

static void show_report(const convert_state *r, const oct_convert_report *report)
{
    const oct_model_info *c = &report->model;
    char in[24], out[24];
    fprintf(stderr, "%s: %lld files, %s -> %s: %lld tensors, %s, verified\n",
            report->checkpoint_dir, (long long)report->n_files,
            oct_memory_text(report->in_bytes, in), r->params.out, (long long)report->n_tensors,
            oct_memory_text(report->out_bytes, out));
    fprintf(stderr,
            "%s: %lld layers, d %lld, %lld query and %lld KV heads of %lld, FFN %lld, "
            "%lld experts (%lld used), vocabulary %lld, context %lld, %lld slices\n",
            report->is_grok1 ? "Grok-1" : "model", (long long)c->n_layers, (long long)c->d_model,
            (long long)c->n_q_heads, (long long)c->n_kv_heads, (long long)c->head_dim,
            (long long)c->d_ff, (long long)c->n_experts, (long long)c->n_experts_used,
            (long long)c->n_vocab, (long long)c->n_ctx, (long long)c->n_slices);
    fprintf(stderr, "configuration: %s; tokenizer: %s\n",
            report->config_path ? report->config_path : "Grok-1's",
            report->tokenizer_path ? report->tokenizer_path : "none");
    if (report->n_quantised)
        fprintf(stderr, "quantised to int8: %lld tensors, relative error %.3e, largest %.3e\n",
                (long long)report->n_quantised, report->q8_error, report->q8_error_largest);
    show_recovered(&report->recovered);
}

int oct_cmd_convert(int argc, char **argv)
{
    convert_state r = {.params.progress = oct_progress_tell};
    oct_convert_report report = {0};
    oct_error err = {0};
    int code = parse(&r, argc, argv);
    if (code >= 0)
        return code;
    r.params.cancel = oct_cli_cancel_flag();
    r.params.progress_ctx = &r.progress;
    oct_status s = oct_convert(&r.params, &report, &err);
    oct_progress_made(&r.progress, s == OCT_OK, &report.warnings);
    if (report.problems.n > 1)
        for (size_t i = 0; i < report.problems.n; i++)
            fprintf(stderr, "%s\n", report.problems.line[i]);
    code = OCT_EXIT_OK;
    if (s == OCT_OK)
        show_report(&r, &report);
    else
        code = oct_cli_fail(&err);
    oct_convert_report_free(&report);
    return code;
}

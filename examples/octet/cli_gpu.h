/* cli_gpu.h: --gpu, and what it leads to. */
#ifndef OCT_CLI_GPU_H
#define OCT_CLI_GPU_H

#include <octet/gpu.h>
#include <octet/octet.h>

#define OCT_CLI_GPU_ROW(v)                                                \
    OCT_ROW_TEXT(0, "gpu", (v), "off|auto|SIZE[,SIZE...]",                \
                 "GPUs: none; what is free of their memory; or so much\n" \
                 "of each (12G, 800M). Changes speed, never the result\n" \
                 "[auto]")
#define OCT_CLI_GPU_STREAM_ROW(v)                                            \
    OCT_ROW_CHOICE(0, "gpu-stream", (v), "auto|off",                         \
                   "bring experts to GPUs where a chunk of a prompt is so\n" \
                   "long that this is faster [auto]")

/* Reads text (NULL: auto), and for a single process asks for the GPUs. False after a message: it
 * makes no sense, or sizes are given and there is no GPU. A driver that cannot be used is warned
 * of. */
bool oct_cli_gpu_parse(const char *text, const char *command);
/* What was read; zero before. */
const oct_gpu_use *oct_cli_gpu_use(void);
/* The GPUs with budgets as they were read; NULL: none is to be used, or ranks ask themselves. */
const oct_gpus *oct_cli_gpus(void);

/* A line for each share: what is placed, and what that takes of what is free. file: stdout or
 * stderr. */
void oct_cli_gpu_print(FILE *file, const oct_gpu_share *share, int n);

#endif

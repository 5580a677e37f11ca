#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_gpu.h"
#include "ranks.h"

static oct_gpu_use use;
static oct_gpus gpus;
static bool asked;

const oct_gpu_use *oct_cli_gpu_use(void)
{
    return &use;
}

const oct_gpus *oct_cli_gpus(void)
{
    return asked && !gpus.why[0] ? &gpus : NULL;
}

/* "12G": a number with k, M or G; NULL behind the last one. */
static bool parse_size(const char **at, uint64_t *bytes)
{
    static const char units[] = "kMG";
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    double n = strtod(*at, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    for (const char *u = units; unit && u <= unit; u++)
        n *= 1024;
    end += unit != NULL;
    if ((*end && *end != ',') || n >= 0x1p62)
        return false;
    *bytes = (uint64_t)n;
    *at = *end ? end + 1 : NULL;
    return true;
}

static bool parse(const char *text)
{
    use = (oct_gpu_use){.on = true};
    if (!text || strcmp(text, "auto") == 0)
        return true;
    if (strcmp(text, "off") == 0) {
        use.on = false;
        return true;
    }
    for (const char *p = text; p;)
        if (use.n == OCT_MAX_GPUS || !parse_size(&p, &use.bytes[use.n++]))
            return false;
    return true;
}

bool oct_cli_gpu_parse(const char *text, const char *command)
{
    if (!parse(text)) {
        oct_cli_error("%s: --gpu: expected off, auto or sizes such as 12G,800M for up to %d GPUs, "
                      "found '%s'",
                      command, OCT_MAX_GPUS, text);
        return false;
    }
    if (!use.on || oct_ranks_job())
        return true;
    oct_gpus_get(&gpus);
    asked = true;
    if (gpus.why[0] && use.n > 0) {
        oct_cli_error("%s: --gpu %s: %s", command, text, gpus.why);
        return false;
    }
    if (gpus.why[0] && !gpus.absent)
        oct_cli_warning("no GPU is used: %s", gpus.why);
    oct_gpus_limit(&gpus, &use);
    return true;
}

void oct_cli_gpu_print(FILE *file, const oct_gpu_share *share, int n)
{
    char line[OCT_GPU_LINE];
    for (int i = 0; i < n; i++)
        fprintf(file, "%s\n", oct_gpu_share_text(&gpus, &share[i], line));
}

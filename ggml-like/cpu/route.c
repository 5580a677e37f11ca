#include "route.h"

#include <stdbool.h>

#include "kernels.h"

void oct_route(const float *logits, int64_t n, int64_t k, int32_t *expert, float *gate)
{
    float max = logits[0], p[64], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += p[i] = oct_expf(logits[i] - max);
    for (int64_t i = 0; i < n; i++)
        p[i] /= sum;

    bool taken[64] = {false};
    for (int64_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || p[i] > p[best]))
                best = i;
        taken[best] = true;
        expert[j] = (int32_t)best;
        gate[j] = p[best];
    }
}

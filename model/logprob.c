#include <math.h>

#include "kernels.h"
#include "octet.h"
#include "select.h"

static double log_sum_exp(const oct_blocks *b)
{
    return b->has_nan ? NAN : (double)b->most + log(oct_exp_sum(b->x, b->n, b->most));
}

double oct_log_sum_exp(const float *logits, int64_t n)
{
    oct_blocks b;
    oct_blocks_init(&b, logits, n);
    return log_sum_exp(&b);
}

double oct_logprob(const float *logits, int64_t n, int32_t id)
{
    return id >= 0 && id < n ? logits[id] - oct_log_sum_exp(logits, n) : NAN;
}

int64_t oct_top_logprobs(const float *logits, int64_t n, int64_t n_top, oct_token_logprob *top)
{
    oct_blocks b;
    oct_blocks_init(&b, logits, n);
    if (b.has_nan || n_top < 1)
        return 0;
    float bound = oct_blocks_bound(&b, n_top < n ? n_top : n);
    int64_t found = 0;
    for (int64_t k = 0; k < b.n_blocks; k++) {
        if (b.max[k] < bound)
            continue;
        int64_t i = k * b.size, end = i + b.size < n ? i + b.size : n;
        for (; i < end; i++) {
            float x = logits[i];
            if (!(x > -INFINITY) || (found == n_top && !(x > logits[top[n_top - 1].id])))
                continue;
            int64_t at = found < n_top ? found++ : n_top - 1;
            for (; at > 0 && logits[top[at - 1].id] < x; at--)
                top[at].id = top[at - 1].id;
            top[at].id = (int32_t)i;
        }
    }
    double sum = log_sum_exp(&b);
    for (int64_t i = 0; i < found; i++)
        top[i].logprob = logits[top[i].id] - sum;
    return found;
}

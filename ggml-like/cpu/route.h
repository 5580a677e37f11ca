/* route.h: Grok-1's router for one token. */
#ifndef OCT_ROUTE_H
#define OCT_ROUTE_H

#include <stdint.h>

/* gate = softmax over all logits[n] (f32, sum in ascending order); the k largest gates in falling
 * order, the lower expert first on ties, not renormalised. 1 <= k <= n <= OCT_WEIGHT_MAX_EXPERTS.
 * With NaN among the logits the gates are NaN; experts are always in range and distinct. */
void oct_route(const float *logits, int64_t n, int64_t k, int32_t *expert, float *gate);

#endif

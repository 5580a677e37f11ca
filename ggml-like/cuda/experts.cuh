/* experts.cuh: the router, and who computes which row. */
#include "device.cuh"

/* A block for each row: half a warp for each expert's logit, then one thread chooses. */
OCT_ENTRY(route, route, 256, 4)
{
    float *logits = (float *)OCT_SHARED; /* [n_experts], then room for as many gates */
    const int64_t r = blockIdx.x;
    const int lane = threadIdx.x % 16;
    const float *x = a.x + r * a.n;
    for (int e0 = 0; e0 < a.n_experts; e0 += 16) {
        const int e = e0 + threadIdx.x / 16;
        const float *w = a.router + (e < a.n_experts ? e : 0) * a.n;
        float sum = 0.0f;
        OCT_UNROLL_BY(8)
        for (int64_t i = lane; i < a.n; i += 16)
            sum = oct_fma(x[i], w[i], sum);
        OCT_FOLD_16(sum);
        if (lane == 0 && e < a.n_experts)
            OCT_PUT(logits + e, sum);
    }
    OCT_BARRIER();
    if (threadIdx.x == 0) {
        int32_t *expert = (int32_t *)(a.routes + r * a.route_bytes);
        math_route(logits, a.n_experts, a.n_used, logits + a.n_experts, expert,
                   (float *)(expert + a.n_used));
    }
}

enum { SORT_WARPS = 32 };

/* The expert of a slot, -1: nobody's. */
OCT_DEVICE int sort_expert(const oct_cuda_sort_args &a, int slot)
{
    if (slot >= a.n_rows * a.n_used)
        return -1;
    if (!a.routes)
        return 0;
    return ((const int32_t *)(a.routes + slot / a.n_used * a.route_bytes))[slot % a.n_used];
}

/* Each warp has every 32nd expert, and passes through all slots twice: it counts, then, when all
 * counts are known, writes its expert's slots in their order. */
OCT_ENTRY(sort, sort, 1024, 1)
{
    int32_t *first = (int32_t *)OCT_SHARED; /* [n_experts + 1] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int n_slots = (int)(a.n_rows * a.n_used);
    for (int e = warp; e < a.n_experts; e += SORT_WARPS) {
        int count = 0;
        for (int i = 0; i < n_slots && e >= a.first_expert && e < a.end_expert; i += 32)
            count += OCT_POPULATION(OCT_BALLOT(sort_expert(a, i + lane) == e));
        if (lane == 0)
            OCT_PUT(first + e + 1, count);
    }
    OCT_BARRIER();
    if (threadIdx.x == 0) {
        int at = 0, tile = 0;
        OCT_PUT(first, 0);
        for (int e = 0; e < a.n_experts; e++) {
            const int n = OCT_GET(first + e + 1);
            for (int i = 0; i < n && tile < a.n_tiles; i += a.tile_rows)
                a.tiles[tile++] = {e, at + i, n - i < a.tile_rows ? n - i : a.tile_rows};
            at += n;
            OCT_PUT(first + e + 1, at);
        }
        while (tile < a.n_tiles)
            a.tiles[tile++] = {0, 0, 0};
        *a.n_sorted = at;
    }
    OCT_BARRIER();
    for (int e = warp; e < a.n_experts; e += SORT_WARPS) {
        int at = OCT_GET(first + e);
        for (int i = 0; i < n_slots && e >= a.first_expert && e < a.end_expert; i += 32) {
            const bool mine = sort_expert(a, i + lane) == e;
            const uint32_t all = OCT_BALLOT(mine);
            if (mine) {
                const int to = at + OCT_POPULATION(all & ((1u << lane) - 1u));
                a.order[to] = i + lane;
                a.x_row[to] = (i + lane) / a.n_used;
            }
            at += OCT_POPULATION(all);
        }
    }
}

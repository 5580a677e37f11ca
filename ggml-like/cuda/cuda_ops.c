/* cuda_ops.c: from a node to the launches of its kernels, in the order of kernels_cuda.h. What has
 * temporary memory takes its rows in pieces, so that this does not grow with them. */
#include <string.h>

#include "cuda_impl.h"

static int64_t rows_of(const oct_cuda_run *c, const oct_tensor *t)
{
    return t->selected ? c->run->n_out : c->run->n_rows;
}

void *oct_cuda_data(const oct_cuda_run *c, const oct_tensor *t)
{
    return c->buffer + oct_plan_offset(c->plan, c->place, t);
}

static float *row_of(const oct_cuda_run *c, const oct_tensor *t, int64_t row)
{
    return (float *)oct_cuda_data(c, t) + row * t->cols;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- temporary memory ------------------------------------------------------------------------ */

oct_act_layout oct_cuda_act(const oct_node *n, int which)
{
    oct_act_layout act;
    const oct_weight_layout *l = &n->w[which]->layout;
    oct_act_layout_init(&act, l->n_in, l->n_groups, n->digits);
    return act;
}

int64_t oct_cuda_parts(const oct_shard *s, const oct_weight *w)
{
    return w->layout.split == OCT_SPLIT_IN ? oct_shard_n_slices(s, w->kind) : 1;
}

/* Offsets. */
typedef struct linear_temp {
    size_t x; /* [rows] activations */
    size_t parts;
    size_t bytes;
} linear_temp;

static linear_temp linear_temp_of(const oct_shard *s, const oct_node *n, int64_t rows)
{
    linear_temp t = {0};
    int64_t parts = oct_cuda_parts(s, n->w[0]);
    rows = least(rows, OCT_CUDA_PIECE);
    t.x = oct_cuda_take(&t.bytes, (size_t)rows * oct_cuda_act(n, 0).bytes);
    if (parts > 1)
        t.parts =
            oct_cuda_take(&t.bytes, (size_t)(parts * rows * n->w[0]->layout.n_out) * sizeof(float));
    return t;
}

typedef struct experts_temp {
    size_t x, order, x_row, n_sorted, tiles; /* [rows] activations; see oct_cuda_sort_args */
    size_t h, hq;                            /* [slots][F], as f32 and as activations */
    size_t parts;
    size_t bytes;
} experts_temp;

static experts_temp experts_temp_of(const oct_shard *s, const oct_node *n, int64_t rows)
{
    experts_temp t = {0};
    const oct_weight_layout *down = &n->w[1]->layout;
    rows = least(rows, OCT_CUDA_PIECE);
    size_t slots = (size_t)(rows * n->n_used), parts = (size_t)oct_cuda_parts(s, n->w[1]);
    t.x = oct_cuda_take(&t.bytes, (size_t)rows * oct_cuda_act(n, 0).bytes);
    t.order = oct_cuda_take(&t.bytes, slots * sizeof(int32_t));
    t.x_row = oct_cuda_take(&t.bytes, slots * sizeof(int32_t));
    t.n_sorted = oct_cuda_take(&t.bytes, sizeof(int32_t));
    t.tiles = oct_cuda_take(&t.bytes, (slots + (size_t)down->n_experts) * sizeof(oct_cuda_tile));
    t.h = oct_cuda_take(&t.bytes, slots * (size_t)down->n_in * sizeof(float));
    t.hq = oct_cuda_take(&t.bytes, slots * oct_cuda_act(n, 1).bytes);
    if (parts > 1)
        t.parts = oct_cuda_take(&t.bytes, parts * slots * (size_t)down->n_out * sizeof(float));
    return t;
}

static size_t attention_temp(const oct_cuda_numbers *c, const oct_node *n, int64_t rows)
{
    const oct_attn_shape *a = n->attn;
    int64_t v_stride = oct_kv_v_stride(a->head_dim), blocks = oct_kv_pages_of(a->n_ctx), most = 0;
    int64_t heads =
        oct_shard_n_slices(&c->shard, OCT_SHARD_OF_ATTENTION) * (a->n_kv_heads / a->n_slices);
    for (int64_t r = 1; r <= least(rows, OCT_CUDA_ROW_TILE); r++)
        if (oct_cuda_attention_splits(r, heads, c->n_sms))
            most = r;
    return (size_t)oct_cuda_attention_sums(most, a->n_q_heads, blocks, v_stride) * sizeof(float);
}

static void vocabulary(const oct_shard *s, const oct_table *t, int64_t *first, int64_t *end)
{
    *first = least(s->slices[OCT_SHARD_OF_VOCABULARY].first * t->slice_rows, t->n_rows);
    *end = least(s->slices[OCT_SHARD_OF_VOCABULARY].end * t->slice_rows, t->n_rows);
}

typedef struct head_temp {
    size_t y, parts; /* [rows] logits; [3][rows] parts of what cuBLAS multiplies */
    size_t bytes;
} head_temp;

static head_temp head_temp_of(int64_t rows, int64_t cols, int64_t n_logits, bool blas)
{
    head_temp t = {0};
    rows = least(rows, OCT_CUDA_HEAD_ROWS);
    t.y = oct_cuda_take(&t.bytes, (size_t)(rows * n_logits) * sizeof(float));
    if (blas)
        t.parts = oct_cuda_take(&t.bytes, (size_t)(3 * rows * cols) * sizeof(uint16_t));
    return t;
}

size_t oct_cuda_temp_bytes(const void *numbers, const oct_node *n, int64_t rows)
{
    const oct_cuda_numbers *c = numbers;
    int64_t first, end;
    switch (n->op) {
    case OCT_OP_LINEAR: return linear_temp_of(&c->shard, n, rows).bytes;
    case OCT_OP_EXPERTS: return experts_temp_of(&c->shard, n, rows).bytes;
    case OCT_OP_ATTENTION: return attention_temp(c, n, rows);
    case OCT_OP_HEAD:
        vocabulary(&c->shard, n->table, &first, &end);
        return head_temp_of(rows, n->table->cols, end - first, c->blas).bytes;
    default: return 0;
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static oct_status op_embed(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_node *n = s->node;
    oct_cuda_embed_args a = {.table = s->at[0],
                             .cols = n->out->cols,
                             .slice_rows = n->table->slice_rows,
                             .slice_rows_pad = n->table->slice_rows_pad,
                             .token = oct_cuda_input(c->cuda, c->cuda->at.token),
                             .out = oct_cuda_data(c, n->out),
                             .n_rows = rows_of(c, n->out),
                             .scale = n->scale};
    vocabulary(&c->cuda->n.shard, n->table, &a.first, &a.end);
    const oct_cuda_launch l = oct_cuda_embed_launch(&a);
    return oct_cuda_launch_kernel(c, &l, &a, err);
}

/* NORM and ADD_NORM */
static oct_status op_norm(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_node *n = s->node;
    const oct_cuda_norm_args a = {.x = oct_cuda_data(c, n->in[0]),
                                  .gamma = s->at[0],
                                  .y = oct_cuda_data(c, n->out),
                                  .n = n->out->cols,
                                  .n_rows = rows_of(c, n->out),
                                  .n_parts = 1,
                                  .add = n->op == OCT_OP_ADD_NORM,
                                  .eps = n->eps};
    const oct_cuda_launch l = oct_cuda_norm_launch(&a);
    return oct_cuda_launch_kernel(c, &l, &a, err);
}

static oct_status op_route(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_node *n = s->node;
    const oct_cuda_route_args a = {.x = oct_cuda_data(c, n->in[0]),
                                   .router = s->at[0],
                                   .routes = oct_cuda_data(c, n->out),
                                   .n = n->plain->cols,
                                   .n_rows = rows_of(c, n->out),
                                   .route_bytes = (int64_t)n->out->row_bytes,
                                   .n_experts = (int32_t)n->plain->rows,
                                   .n_used = (int32_t)n->n_used};
    const oct_cuda_launch l = oct_cuda_route_launch(&a);
    return oct_cuda_launch_kernel(c, &l, &a, err);
}

/* Slots of a layer that was divided: the host's lie in temporary memory, and each side has zeros
 * where the other computed. */
static void join_slots(const oct_cuda_run *c, const oct_step *s, oct_cuda_combine_args *a)
{
    const float *host = (const float *)(const void *)(c->buffer + s->temp_offset);
    if (c->run->elsewhere == 0) {
        a->slots = host;
    } else if (!c->run->all_elsewhere) {
        a->part_stride = host - a->slots;
        a->n_parts = 2;
    }
}

static oct_status op_combine(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_node *n = s->node;
    oct_cuda_combine_args a = {.slots = oct_cuda_data(c, n->in[0]),
                               .routes = oct_cuda_data(c, n->in[1]),
                               .out = oct_cuda_data(c, n->out),
                               .route_bytes = (int64_t)n->in[1]->row_bytes,
                               .n = n->out->cols,
                               .n_rows = rows_of(c, n->out),
                               .n_parts = 1,
                               .n_used = (int32_t)n->n_used};
    if (s->joined)
        join_slots(c, s, &a);
    const oct_cuda_launch l = oct_cuda_combine_launch(&a);
    return oct_cuda_launch_kernel(c, &l, &a, err);
}

static oct_status op_select(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_node *n = s->node;
    const oct_cuda_select_args a = {.x = oct_cuda_data(c, n->in[0]),
                                    .out_row = oct_cuda_input(c->cuda, c->cuda->at.out_row),
                                    .out = oct_cuda_data(c, n->out),
                                    .n = n->out->cols,
                                    .n_rows = c->run->n_out};
    const oct_cuda_launch l = oct_cuda_select_launch(&a);
    return oct_cuda_launch_kernel(c, &l, &a, err);
}

/* ---- matrices -------------------------------------------------------------------------------- */

oct_status oct_cuda_quantise(oct_cuda_run *c, const float *x, unsigned char *to,
                             const oct_act_layout *act, int64_t rows, const int32_t *n_used,
                             oct_error *err)
{
    const oct_cuda_quantise_args a = {
        .x = x, .to = to, .act = *act, .n_rows = rows, .n_used = n_used};
    const oct_cuda_launch l = oct_cuda_quantise_launch(&a);
    return oct_cuda_launch_kernel(c, &l, &a, err);
}

oct_cuda_linear_args oct_cuda_linear(const oct_cuda_run *c, const oct_step *s, int which)
{
    const oct_weight *w = s->node->w[which];
    const oct_shard_range slices = c->cuda->n.shard.slices[w->kind];
    oct_cuda_linear_args a = /* packed: see oct_array */
        oct_cuda_linear_of(&w->layout, slices.first, slices.end, s->node->digits);
    a.weights = s->at[2 * which];
    a.scales = s->at[2 * which + 1];
    return a;
}

static oct_status linear_piece(oct_cuda_run *c, const oct_step *s, int64_t first, int64_t rows,
                               oct_error *err)
{
    const oct_node *n = s->node;
    const linear_temp t = linear_temp_of(&c->cuda->n.shard, n, c->plan->graph->rows);
    unsigned char *temp = c->buffer + s->temp_offset;
    int64_t parts = oct_cuda_parts(&c->cuda->n.shard, n->w[0]), n_out = n->w[0]->layout.n_out;
    oct_cuda_linear_args a = oct_cuda_linear(c, s, 0);
    a.x = temp + t.x;
    a.y = parts > 1 ? (float *)(void *)(temp + t.parts) : row_of(c, n->out, first);
    a.y_cols = n_out;
    a.part_stride = rows * n_out;
    a.n_rows = rows;
    a.tile_rows = oct_cuda_tile_rows(rows, 1, rows, 0);
    OCT_TRY(oct_cuda_quantise(c, row_of(c, n->in[0], first), temp + t.x, &a.act, rows, NULL, err));
    oct_cuda_launch l = oct_cuda_linear_launch(&a);
    OCT_TRY(oct_cuda_launch_kernel(c, &l, &a, err));
    if (parts == 1)
        return OCT_OK;
    const oct_cuda_fold_args f = {.parts = a.y,
                                  .out = row_of(c, n->out, first),
                                  .part_stride = a.part_stride,
                                  .n = n_out,
                                  .n_rows = rows,
                                  .n_parts = (int32_t)parts};
    l = oct_cuda_fold_launch(&f);
    return oct_cuda_launch_kernel(c, &l, &f, err);
}

static oct_status op_linear(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_weight *w = s->node->w[0];
    int64_t all = rows_of(c, s->node->in[0]);
    for (int64_t r = 0; r < all; r += OCT_CUDA_PIECE)
        OCT_TRY(linear_piece(c, s, r, least(all - r, OCT_CUDA_PIECE), err));
    c->run->bytes_read += oct_shard_read_bytes(&c->cuda->n.shard, w);
    return OCT_OK;
}

/* Rows of a piece sorted by expert, in tiles. */
static oct_cuda_sort_args sort_args(const oct_cuda_run *c, const oct_step *s, int64_t first,
                                    int64_t rows, unsigned char *temp, const experts_temp *t)
{
    const oct_node *n = s->node;
    const oct_weight_layout *l = &n->w[0]->layout;
    const oct_shard_range mine = c->cuda->n.shard.experts;
    oct_cuda_sort_args a = {.n_rows = rows,
                            .n_used = (int32_t)n->n_used,
                            .n_experts = (int32_t)l->n_experts,
                            .first_expert = (int32_t)mine.first,
                            .end_expert = (int32_t)mine.end,
                            .order = (int32_t *)(void *)(temp + t->order),
                            .x_row = (int32_t *)(void *)(temp + t->x_row),
                            .n_sorted = (int32_t *)(void *)(temp + t->n_sorted),
                            .tiles = (oct_cuda_tile *)(void *)(temp + t->tiles)};
    if (n->in[1]) {
        a.route_bytes = (int64_t)n->in[1]->row_bytes;
        a.routes = (const unsigned char *)oct_cuda_data(c, n->in[1]) + first * a.route_bytes;
    }
    a.tile_rows = oct_cuda_tile_rows(rows * n->n_used, l->n_experts, rows, l->unit_groups > 1);
    a.n_tiles = oct_cuda_tiles(rows * n->n_used, l->n_experts, a.tile_rows);
    return a;
}

void oct_cuda_link_experts(oct_cuda_linear_args *up, oct_cuda_linear_args *down,
                           const oct_cuda_sort_args *sort, int64_t n_rows)
{
    up->x_row = sort->x_row;
    up->gelu = 1;
    down->y_row = sort->order;
    up->tiles = down->tiles = sort->tiles;
    up->n_rows = down->n_rows = n_rows;
    up->n_tiles = down->n_tiles = sort->n_tiles;
    up->tile_rows = down->tile_rows = sort->tile_rows;
}

static oct_status experts_piece(oct_cuda_run *c, const oct_step *s, int64_t first, int64_t rows,
                                oct_error *err)
{
    const oct_node *n = s->node;
    const oct_shard *shard = &c->cuda->n.shard;
    const experts_temp t = experts_temp_of(shard, n, c->plan->graph->rows);
    unsigned char *temp = c->buffer + s->temp_offset;
    const oct_cuda_sort_args sort = sort_args(c, s, first, rows, temp, &t);
    int64_t parts = oct_cuda_parts(shard, n->w[1]), slots = rows * n->n_used, D = n->out->cols;
    float *h = (float *)(void *)(temp + t.h), *out = row_of(c, n->out, first * n->n_used);
    oct_cuda_linear_args up = oct_cuda_linear(c, s, 0), down = oct_cuda_linear(c, s, 1);
    up.x = temp + t.x;
    up.y = h;
    up.y_cols = n->w[1]->layout.n_in;
    down.x = temp + t.hq;
    down.y = parts > 1 ? (float *)(void *)(temp + t.parts) : out;
    down.y_cols = D;
    down.part_stride = slots * D;
    oct_cuda_link_experts(&up, &down, &sort, slots);
    oct_cuda_launch l = oct_cuda_sort_launch(&sort);
    OCT_TRY(oct_cuda_launch_kernel(c, &l, &sort, err));
    OCT_TRY(oct_cuda_quantise(c, row_of(c, n->in[0], first), temp + t.x, &up.act, rows, NULL, err));
    l = oct_cuda_linear_launch(&up);
    OCT_TRY(oct_cuda_launch_kernel(c, &l, &up, err));
    OCT_TRY(oct_cuda_quantise(c, h, temp + t.hq, &down.act, slots, sort.n_sorted, err));
    l = oct_cuda_linear_launch(&down);
    OCT_TRY(oct_cuda_launch_kernel(c, &l, &down, err));
    if (parts == 1 && sort.first_expert == 0 && sort.end_expert == sort.n_experts)
        return OCT_OK;
    const oct_cuda_fold_args f = {.parts = down.y,
                                  .out = out,
                                  .part_stride = down.part_stride,
                                  .n = D,
                                  .n_rows = slots,
                                  .routes = sort.routes,
                                  .route_bytes = sort.route_bytes,
                                  .n_parts = (int32_t)parts,
                                  .n_used = sort.n_used,
                                  .first_expert = sort.first_expert,
                                  .end_expert = sort.end_expert};
    l = oct_cuda_fold_launch(&f);
    return oct_cuda_launch_kernel(c, &l, &f, err);
}

static oct_status op_experts(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    int64_t all = rows_of(c, s->node->in[0]);
    for (int64_t r = 0; r < all; r += OCT_CUDA_PIECE)
        OCT_TRY(experts_piece(c, s, r, least(all - r, OCT_CUDA_PIECE), err));
    return OCT_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

static oct_cuda_kv kv_of(const oct_cuda_run *c)
{
    const oct_kv_cache *kv = &c->run->kv[c->place];
    return (oct_cuda_kv){.data = kv->data,
                         .table = oct_cuda_input(c->cuda, c->cuda->at.table),
                         .seq_pages = kv->pages->seq_pages,
                         .n_pages = kv->n_pages,
                         .n_heads = kv->n_heads,
                         .head_dim = kv->head_dim,
                         .v_stride = kv->v_stride,
                         .head_bytes = kv->head_bytes,
                         .type = (int32_t)kv->type,
                         .elem_bytes = (int32_t)kv->elem_bytes};
}

static oct_cuda_heads heads_of(const oct_cuda_run *c, const oct_attn_shape *a)
{
    const oct_shard_range mine = c->cuda->n.shard.slices[OCT_SHARD_OF_ATTENTION];
    return (oct_cuda_heads){.n_q_heads = a->n_q_heads,
                            .n_kv_heads = a->n_kv_heads,
                            .n_slices = a->n_slices,
                            .first_head = mine.first * (a->n_kv_heads / a->n_slices)};
}

static oct_status op_rope_store(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_node *n = s->node;
    const oct_cuda *cuda = c->cuda;
    oct_cuda_launch l;
    const oct_cuda_kv_copy_args copy = {.kv = kv_of(c),
                                        .copies = oct_cuda_input(cuda, cuda->at.copies),
                                        .n_copies = c->run->kv[c->place].pages->n_copies,
                                        .layer = s->kv_layer};
    if (copy.n_copies > 0) {
        l = oct_cuda_kv_copy_launch(&copy);
        OCT_TRY(oct_cuda_launch_kernel(c, &l, &copy, err));
    }
    const oct_cuda_rope_args a = {.kv = copy.kv,
                                  .heads = heads_of(c, n->attn),
                                  .qkv = oct_cuda_data(c, n->out),
                                  .rope = s->at[0],
                                  .pos = oct_cuda_input(cuda, cuda->at.pos),
                                  .seq = oct_cuda_input(cuda, cuda->at.seq),
                                  .saturated = oct_cuda_saturated(cuda),
                                  .n_rows = rows_of(c, n->out),
                                  .n_ctx = n->attn->n_ctx,
                                  .layer = s->kv_layer};
    l = oct_cuda_rope_launch(&a);
    return oct_cuda_launch_kernel(c, &l, &a, err);
}

static oct_status op_attention(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_node *n = s->node;
    const oct_cuda *cuda = c->cuda;
    const bool selected = n->in[0]->selected;
    int64_t most = 1, positions = 0, rows = rows_of(c, n->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        int64_t held = c->run->pos[selected ? c->run->out_row[r] : r] + 1;
        most = held > most ? held : most;
        positions += held;
    }
    oct_cuda_attention_args a = {.kv = kv_of(c),
                                 .heads = heads_of(c, n->attn),
                                 .qkv = oct_cuda_data(c, n->in[0]),
                                 .pos = oct_cuda_input(cuda, cuda->at.pos),
                                 .seq = oct_cuda_input(cuda, cuda->at.seq),
                                 .out_row =
                                     selected ? oct_cuda_input(cuda, cuda->at.out_row) : NULL,
                                 .out = oct_cuda_data(c, n->out),
                                 .n_rows = rows,
                                 .max_blocks = oct_kv_pages_of(most),
                                 .layer = s->kv_layer,
                                 .factor = 2.0f * n->attn->scale / n->attn->cap,
                                 .cap = n->attn->cap};
    c->run->kv_read += (uint64_t)(positions * a.kv.n_heads * a.kv.head_dim * 2 * a.kv.elem_bytes);
    if (oct_cuda_attention_splits(rows, a.kv.n_heads, cuda->n.n_sms))
        a.sums = (float *)(void *)(c->buffer + s->temp_offset);
    oct_cuda_launch l = oct_cuda_attention_launch(&a);
    OCT_TRY(oct_cuda_launch_kernel(c, &l, &a, err));
    if (!a.sums)
        return OCT_OK;
    a.fold = 1;
    l = oct_cuda_attention_launch(&a);
    return oct_cuda_launch_kernel(c, &l, &a, err);
}

/* ---- the head -------------------------------------------------------------------------------- */

static oct_status bring_logits(const oct_cuda_run *c, const oct_cuda_head_args *a, int64_t first,
                               oct_error *err)
{
    const oct_cuda *cuda = c->cuda;
    const oct_run *r = c->run;
    int64_t n = a->end - a->first, rows = a->n_rows;
    float *to = r->logits + first * r->logits_stride + a->first - r->first_logit;
    if (r->logits_stride == n) { /* in one go */
        n *= rows;
        rows = 1;
    }
    for (int64_t i = 0; i < rows; i++)
        OCT_TRY(oct_cuda_check(cuda,
                               cuda->api->download(to + i * r->logits_stride,
                                                   (oct_cuda_address)(uintptr_t)(a->y + i * n),
                                                   (size_t)n * sizeof *to, cuda->stream),
                               "logits", err));
    return OCT_OK;
}

/* The rows as three parts, each times the rows of each slice of the table. */
static oct_status head_blas(oct_cuda_run *c, const oct_cuda_head_args *a, uint16_t *parts,
                            oct_error *err)
{
    const oct_cuda_split_args split = {.x = a->x, .out = parts, .n = a->cols, .n_rows = a->n_rows};
    const oct_cuda_launch l = oct_cuda_split_launch(&split);
    oct_error e = {0};
    OCT_TRY(oct_cuda_launch_kernel(c, &l, &split, err));
    for (int64_t v = a->first, end; v < a->end; v = end) {
        end = least((v / a->slice_rows + 1) * a->slice_rows, a->end);
        for (int p = 0; p < 3; p++) {
            const oct_cuda_blas_args b = {
                .w = a->table +
                     (v / a->slice_rows * a->slice_rows_pad + v % a->slice_rows) * a->cols,
                .x = parts + p * a->n_rows * a->cols,
                .y = a->y + v - a->first,
                .m = (int)(end - v),
                .n = (int)a->n_rows,
                .k = (int)a->cols,
                .y_stride = (int)a->y_stride,
                .add = p > 0,
                .scale = a->scale};
            const oct_status status = oct_cuda_blas_bf16(c->cuda->blas, &b, &e);
            if (status != OCT_OK)
                return oct_fail(err, status, "GPU %d: %s", c->cuda->n.device, e.text);
        }
    }
    return OCT_OK;
}

static oct_status op_head(oct_cuda_run *c, const oct_step *s, oct_error *err)
{
    const oct_node *n = s->node;
    const oct_table *table = n->table;
    unsigned char *temp = c->buffer + s->temp_offset;
    oct_cuda_head_args a = {.table = s->at[0],
                            .cols = table->cols,
                            .slice_rows = table->slice_rows,
                            .slice_rows_pad = table->slice_rows_pad,
                            .scale = n->scale};
    vocabulary(&c->cuda->n.shard, table, &a.first, &a.end);
    a.y_stride = a.end - a.first;
    const head_temp t = head_temp_of(c->plan->graph->rows, a.cols, a.y_stride, c->cuda->n.blas);
    a.y = (float *)(void *)(temp + t.y);
    for (int64_t r = 0; r < c->run->n_out && a.y_stride > 0; r += OCT_CUDA_HEAD_ROWS) {
        a.x = row_of(c, n->in[0], r);
        a.n_rows = least(c->run->n_out - r, OCT_CUDA_HEAD_ROWS);
        const oct_cuda_launch l = oct_cuda_head_launch(&a);
        if (c->cuda->blas && c->run->n_out >= OCT_CUDA_BLAS_ROWS)
            OCT_TRY(head_blas(c, &a, (uint16_t *)(void *)(temp + t.parts), err));
        else
            OCT_TRY(oct_cuda_launch_kernel(c, &l, &a, err));
        OCT_TRY(bring_logits(c, &a, r, err));
    }
    c->run->bytes_read += (uint64_t)(a.y_stride * a.cols) * sizeof(uint16_t);
    return OCT_OK;
}

oct_cuda_op_fn *const oct_cuda_ops[OCT_OP_COUNT] = {
    [OCT_OP_EMBED] = op_embed,
    [OCT_OP_NORM] = op_norm,
    [OCT_OP_ADD_NORM] = op_norm,
    [OCT_OP_LINEAR] = op_linear,
    [OCT_OP_ROPE_STORE] = op_rope_store,
    [OCT_OP_ATTENTION] = op_attention,
    [OCT_OP_ROUTE] = op_route,
    [OCT_OP_EXPERTS] = op_experts,
    [OCT_OP_COMBINE] = op_combine,
    [OCT_OP_SELECT] = op_select,
    [OCT_OP_HEAD] = op_head,
};

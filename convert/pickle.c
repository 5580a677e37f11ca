#include "pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sniff.h"

/* A file of a checkpoint takes about 110 opcodes, 40 memo entries and a stack of 15. */
enum { MAX_OPS = 1024, MAX_STACK = 64, MAX_MEMO = 256, MAX_ITEMS = 256, MAX_OBJECTS = 8 };

typedef enum kind {
    K_NONE,
    K_BOOL,
    K_INT,
    K_TEXT,
    K_BYTES,
    K_GLOBAL,
    K_TUPLE,
    K_MARK,
    K_DICT,
    K_DTYPE,
    K_ARRAY,
    K_QUANTISED /* these four are objects */
} kind;

static const char *const kind_names[] = {
    "None",    "a bool", "an integer", "a string", "bytes",    "a global",
    "a tuple", "a mark", "a dict",     "a dtype",  "an array", "a QuantizedWeight8bit"};

typedef struct value {
    kind kind;
    int64_t number; /* K_BOOL, K_INT; K_GLOBAL: enum global_id; objects: index */
    size_t at, len; /* K_TEXT, K_BYTES: bytes of the file; K_TUPLE: items */
} value;

typedef struct object {
    bool built;             /* BUILD has given it its state */
    oct_pickle_array array; /* K_ARRAY; K_DTYPE: array.dtype */
    int weight, scales;     /* K_DICT, K_QUANTISED: objects; -1: absent */
} object;

typedef struct parser {
    const char *name;
    const uint8_t *data;
    size_t n, pos, op_at;
    size_t frame_end; /* 0: not inside a frame */
    uint8_t op;
    bool started, stopped;
    value stack[MAX_STACK], memo[MAX_MEMO], items[MAX_ITEMS];
    object objects[MAX_OBJECTS];
    int n_stack, n_memo, n_items, n_objects;
    oct_error *err;
} parser;

enum op {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_REDUCE = 'R',
    OP_BUILD = 'b',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_BINGET = 'h',
    OP_TUPLE = 't',
    OP_EMPTY_TUPLE = ')',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINBYTES8 = 0x8e,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95
};

/* Names for messages, of opcodes that are refused too. */
static const char *const op_names[256] = {[OP_MARK] = "MARK",
                                          [OP_STOP] = "STOP",
                                          [OP_BININT] = "BININT",
                                          [OP_BININT1] = "BININT1",
                                          [OP_BININT2] = "BININT2",
                                          [OP_NONE] = "NONE",
                                          [OP_REDUCE] = "REDUCE",
                                          [OP_BUILD] = "BUILD",
                                          [OP_BINBYTES] = "BINBYTES",
                                          [OP_SHORT_BINBYTES] = "SHORT_BINBYTES",
                                          [OP_BINGET] = "BINGET",
                                          [OP_TUPLE] = "TUPLE",
                                          [OP_EMPTY_TUPLE] = "EMPTY_TUPLE",
                                          [OP_SETITEMS] = "SETITEMS",
                                          [OP_EMPTY_DICT] = "EMPTY_DICT",
                                          [OP_PROTO] = "PROTO",
                                          [OP_NEWOBJ] = "NEWOBJ",
                                          [OP_TUPLE1] = "TUPLE1",
                                          [OP_TUPLE2] = "TUPLE2",
                                          [OP_TUPLE3] = "TUPLE3",
                                          [OP_NEWTRUE] = "NEWTRUE",
                                          [OP_NEWFALSE] = "NEWFALSE",
                                          [OP_SHORT_BINUNICODE] = "SHORT_BINUNICODE",
                                          [OP_BINBYTES8] = "BINBYTES8",
                                          [OP_STACK_GLOBAL] = "STACK_GLOBAL",
                                          [OP_MEMOIZE] = "MEMOIZE",
                                          [OP_FRAME] = "FRAME",
                                          ['c'] = "GLOBAL",
                                          ['i'] = "INST",
                                          ['o'] = "OBJ",
                                          ['0'] = "POP",
                                          ['1'] = "POP_MARK",
                                          ['2'] = "DUP",
                                          ['F'] = "FLOAT",
                                          ['G'] = "BINFLOAT",
                                          ['I'] = "INT",
                                          ['L'] = "LONG",
                                          ['P'] = "PERSID",
                                          ['Q'] = "BINPERSID",
                                          ['S'] = "STRING",
                                          ['T'] = "BINSTRING",
                                          ['U'] = "SHORT_BINSTRING",
                                          ['V'] = "UNICODE",
                                          ['X'] = "BINUNICODE",
                                          ['a'] = "APPEND",
                                          ['d'] = "DICT",
                                          ['e'] = "APPENDS",
                                          ['g'] = "GET",
                                          ['j'] = "LONG_BINGET",
                                          ['l'] = "LIST",
                                          [']'] = "EMPTY_LIST",
                                          ['p'] = "PUT",
                                          ['q'] = "BINPUT",
                                          ['r'] = "LONG_BINPUT",
                                          ['s'] = "SETITEM",
                                          [0x82] = "EXT1",
                                          [0x83] = "EXT2",
                                          [0x84] = "EXT4",
                                          [0x8a] = "LONG1",
                                          [0x8b] = "LONG4",
                                          [0x8d] = "BINUNICODE8",
                                          [0x8f] = "EMPTY_SET",
                                          [0x90] = "ADDITEMS",
                                          [0x91] = "FROZENSET",
                                          [0x92] = "NEWOBJ_EX",
                                          [0x96] = "BYTEARRAY8",
                                          [0x97] = "NEXT_BUFFER",
                                          [0x98] = "READONLY_BUFFER"};

enum global_id { G_RECONSTRUCT, G_NDARRAY, G_DTYPE, G_BFLOAT16, G_QUANTISED };

/* The only globals that may be named; numpy 2 moved one of them. */
static const struct {
    const char *module, *name;
    enum global_id id;
} globals[] = {{"numpy.core.multiarray", "_reconstruct", G_RECONSTRUCT},
               {"numpy._core.multiarray", "_reconstruct", G_RECONSTRUCT},
               {"numpy", "ndarray", G_NDARRAY},
               {"numpy", "dtype", G_DTYPE},
               {"ml_dtypes", "bfloat16", G_BFLOAT16},
               {"__main__", "QuantizedWeight8bit", G_QUANTISED}};

size_t oct_pickle_dtype_bytes(oct_pickle_dtype t)
{
    return t == OCT_PICKLE_I8 ? 1 : t == OCT_PICKLE_BF16 ? 2 : 4;
}

const char *oct_pickle_dtype_name(oct_pickle_dtype t)
{
    return t == OCT_PICKLE_I8 ? "int8" : t == OCT_PICKLE_BF16 ? "bf16" : "f32";
}

/* Every refusal: file, offset of the opcode, its name, what is wrong. */
OCT_PRINTF(2, 3)
static oct_status refuse(parser *p, const char *fmt, ...)
{
    char what[320], op[16];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    snprintf(op, sizeof op, "0x%02x", p->op);
    return oct_fail(p->err, OCT_ERR_FORMAT, "%s: offset %zu, opcode %s: %s", p->name, p->op_at,
                    op_names[p->op] ? op_names[p->op] : op, what);
}

static uint64_t le(const uint8_t *b, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint64_t)b[i] << (8 * i);
    return v;
}

/* The next n bytes: inside the file, and inside the frame if there is one. */
static oct_status take(parser *p, uint64_t n, const char *what, size_t *at)
{
    if (n > p->n - p->pos)
        return refuse(p, "%s of %llu bytes at %zu, but the file ends at %zu: it is short", what,
                      (unsigned long long)n, p->pos, p->n);
    if (p->frame_end && n > p->frame_end - p->pos)
        return refuse(p, "%s of %llu bytes at %zu crosses the frame's end at %zu", what,
                      (unsigned long long)n, p->pos, p->frame_end);
    *at = p->pos;
    p->pos += (size_t)n;
    return OCT_OK;
}

static oct_status take_number(parser *p, int n, uint64_t *v)
{
    size_t at = 0;
    OCT_TRY(take(p, (uint64_t)n, "an argument", &at));
    *v = le(p->data + at, n);
    return OCT_OK;
}

static oct_status push(parser *p, value v)
{
    if (p->n_stack == MAX_STACK)
        return refuse(p, "more than %d values on the stack", MAX_STACK);
    p->stack[p->n_stack++] = v;
    return OCT_OK;
}

static oct_status pop(parser *p, value *v)
{
    if (p->n_stack == 0 || p->stack[p->n_stack - 1].kind == K_MARK)
        return refuse(p, "nothing on the stack to take");
    *v = p->stack[--p->n_stack];
    return OCT_OK;
}

static oct_status pop_kind(parser *p, kind k, value *v)
{
    OCT_TRY(pop(p, v));
    if (v->kind != k)
        return refuse(p, "expected %s, found %s", kind_names[k], kind_names[v->kind]);
    return OCT_OK;
}

static oct_status push_object(parser *p, kind k, oct_pickle_dtype dtype)
{
    if (p->n_objects == MAX_OBJECTS)
        return refuse(p, "more than %d arrays and types", MAX_OBJECTS);
    p->objects[p->n_objects] = (object){.array.dtype = dtype, .weight = -1, .scales = -1};
    return push(p, (value){.kind = k, .number = p->n_objects++});
}

static bool text_is(const parser *p, const value *v, const char *s)
{
    return v->len == strlen(s) && memcmp(p->data + v->at, s, v->len) == 0;
}

/* Item i of a tuple; the caller has checked its length. */
static const value *item(const parser *p, const value *tuple, size_t i)
{
    return &p->items[tuple->at + i];
}

static bool item_is(const parser *p, const value *tuple, size_t i, kind k)
{
    return item(p, tuple, i)->kind == k;
}

/* The k top values become a tuple. */
static oct_status make_tuple(parser *p, int k)
{
    if (p->n_stack < k)
        return refuse(p, "a tuple of %d, but %d values are on the stack", k, p->n_stack);
    if (k > MAX_ITEMS - p->n_items)
        return refuse(p, "more than %d tuple items", MAX_ITEMS);
    value t = {.kind = K_TUPLE, .at = (size_t)p->n_items, .len = (size_t)k};
    for (int i = p->n_stack - k; i < p->n_stack; i++) {
        if (p->stack[i].kind == K_MARK)
            return refuse(p, "a mark inside a tuple");
        p->items[p->n_items++] = p->stack[i];
    }
    p->n_stack -= k;
    return push(p, t);
}

/* Number of values above the topmost mark. */
static oct_status above_mark(parser *p, int *k)
{
    int i = p->n_stack;
    while (i > 0 && p->stack[i - 1].kind != K_MARK)
        i--;
    if (i == 0)
        return refuse(p, "no mark on the stack");
    *k = p->n_stack - i;
    return OCT_OK;
}

static oct_status op_tuple(parser *p)
{
    int k = 0;
    OCT_TRY(above_mark(p, &k));
    OCT_TRY(make_tuple(p, k));
    p->n_stack--; /* the tuple takes the place of the mark */
    p->stack[p->n_stack - 1] = p->stack[p->n_stack];
    return OCT_OK;
}

static oct_status op_stack_global(parser *p)
{
    value name = {0}, module = {0};
    OCT_TRY(pop_kind(p, K_TEXT, &name));
    OCT_TRY(pop_kind(p, K_TEXT, &module));
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (text_is(p, &module, globals[i].module) && text_is(p, &name, globals[i].name))
            return push(p, (value){.kind = K_GLOBAL, .number = globals[i].id});
    return refuse(p, "global %.*s.%.*s is not one that an array needs; it was not run",
                  (int)module.len, (const char *)p->data + module.at, (int)name.len,
                  (const char *)p->data + name.at);
}

/* The opcode of old protocols, "c module \n name \n": only to name the global. */
static oct_status refuse_global(parser *p)
{
    int len[2] = {0, 0};
    size_t at = p->pos, start[2];
    for (int i = 0; i < 2; i++) {
        start[i] = at;
        while (at < p->n && p->data[at] != '\n' && len[i] < 64)
            at++, len[i]++;
        at += at < p->n;
    }
    return refuse(p, "global %.*s.%.*s is not one that an array needs; it was not run", len[0],
                  (const char *)p->data + start[0], len[1], (const char *)p->data + start[1]);
}

/* dtype(what, False, True): "i1", "f4" or the class bfloat16. */
static oct_status reduce_dtype(parser *p, const value *args)
{
    if (args->len != 3 || !item_is(p, args, 1, K_BOOL) || !item_is(p, args, 2, K_BOOL))
        return refuse(p, "dtype takes (type, bool, bool)");
    const value *t = item(p, args, 0);
    if (t->kind == K_GLOBAL && t->number == G_BFLOAT16)
        return push_object(p, K_DTYPE, OCT_PICKLE_BF16);
    if (t->kind != K_TEXT)
        return refuse(p, "dtype takes a name, found %s", kind_names[t->kind]);
    if (text_is(p, t, "i1"))
        return push_object(p, K_DTYPE, OCT_PICKLE_I8);
    if (text_is(p, t, "f4"))
        return push_object(p, K_DTYPE, OCT_PICKLE_F32);
    return refuse(p, "element type %.*s; expected i1 (int8), f4 (float32) or bfloat16",
                  (int)(t->len < 32 ? t->len : 32), (const char *)p->data + t->at);
}

static oct_status op_reduce(parser *p)
{
    value args = {0}, f = {0};
    OCT_TRY(pop_kind(p, K_TUPLE, &args));
    OCT_TRY(pop_kind(p, K_GLOBAL, &f));
    if (f.number == G_DTYPE)
        return reduce_dtype(p, &args);
    if (f.number != G_RECONSTRUCT)
        return refuse(p, "only _reconstruct and dtype may stand before REDUCE");
    const value *class = args.len == 3 ? item(p, &args, 0) : NULL;
    if (!class || class->kind != K_GLOBAL || class->number != G_NDARRAY ||
        !item_is(p, &args, 1, K_TUPLE) || !item_is(p, &args, 2, K_BYTES))
        return refuse(p, "_reconstruct takes (ndarray, tuple, bytes)");
    return push_object(p, K_ARRAY, OCT_PICKLE_F32);
}

static oct_status op_newobj(parser *p)
{
    value args = {0}, class = {0};
    OCT_TRY(pop_kind(p, K_TUPLE, &args));
    OCT_TRY(pop_kind(p, K_GLOBAL, &class));
    if (class.number != G_QUANTISED || args.len != 0)
        return refuse(p, "only QuantizedWeight8bit() may be made by NEWOBJ");
    return push_object(p, K_QUANTISED, OCT_PICKLE_I8);
}

/* (3, byte order, None, None, None, element size, alignment, flags) */
static oct_status build_dtype(parser *p, object *o, const value *state)
{
    if (state->kind != K_TUPLE || state->len != 8 || !item_is(p, state, 0, K_INT) ||
        item(p, state, 0)->number != 3 || !item_is(p, state, 1, K_TEXT) ||
        !item_is(p, state, 5, K_INT))
        return refuse(p, "a dtype's state of a kind that is not known");
    for (size_t i = 2; i < 5; i++)
        if (!item_is(p, state, i, K_NONE))
            return refuse(p, "a structured dtype");
    const value *order = item(p, state, 1);
    bool plain = o->array.dtype == OCT_PICKLE_I8;
    if (!text_is(p, order, "<") && !(plain && text_is(p, order, "|")))
        return refuse(p, "byte order '%.*s'; expected little-endian", (int)(order->len ? 1 : 0),
                      (const char *)p->data + order->at);
    int64_t size = item(p, state, 5)->number;
    if (size != -1 && size != (int64_t)oct_pickle_dtype_bytes(o->array.dtype))
        return refuse(p, "element size %lld of a %s", (long long)size,
                      oct_pickle_dtype_name(o->array.dtype));
    return OCT_OK;
}

/* (1, shape, dtype, Fortran order, payload) */
static oct_status build_array(parser *p, object *o, const value *state)
{
    if (state->kind != K_TUPLE || state->len != 5 || !item_is(p, state, 0, K_INT) ||
        item(p, state, 0)->number != 1 || !item_is(p, state, 1, K_TUPLE) ||
        !item_is(p, state, 2, K_DTYPE) || !item_is(p, state, 3, K_BOOL) ||
        !item_is(p, state, 4, K_BYTES))
        return refuse(p, "an array's state must be (1, shape, dtype, bool, bytes)");
    if (item(p, state, 3)->number)
        return refuse(p, "the array is in Fortran order; expected C order");
    const object *dtype = &p->objects[item(p, state, 2)->number];
    const value *shape = item(p, state, 1), *payload = item(p, state, 4);
    if (!dtype->built)
        return refuse(p, "the array's dtype has no state");
    if (shape->len < 1 || shape->len > OCT_PICKLE_MAX_RANK)
        return refuse(p, "%zu dimensions; expected 1 to %d", shape->len, OCT_PICKLE_MAX_RANK);
    oct_pickle_array *a = &o->array;
    *a = (oct_pickle_array){.dtype = dtype->array.dtype,
                            .rank = (int)shape->len,
                            .n = 1,
                            .at = payload->at,
                            .bytes = payload->len};
    for (size_t i = 0; i < shape->len; i++) {
        const value *d = item(p, shape, i);
        if (d->kind != K_INT || d->number < 1)
            return refuse(p, "dimension %zu is not a positive integer", i);
        a->shape[i] = d->number;
        if (__builtin_mul_overflow(a->n, d->number, &a->n))
            return refuse(p, "the shape has too many elements");
    }
    int64_t bytes = 0;
    if (__builtin_mul_overflow(a->n, (int64_t)oct_pickle_dtype_bytes(a->dtype), &bytes) ||
        (uint64_t)bytes != payload->len)
        return refuse(p, "the shape has %lld elements of %s, the payload %zu bytes",
                      (long long)a->n, oct_pickle_dtype_name(a->dtype), payload->len);
    return OCT_OK;
}

static oct_status build_quantised(parser *p, object *o, const value *state)
{
    if (state->kind != K_DICT)
        return refuse(p, "QuantizedWeight8bit takes a dict, found %s", kind_names[state->kind]);
    const object *d = &p->objects[state->number];
    if (d->weight < 0 || d->scales < 0)
        return refuse(p, "QuantizedWeight8bit without %s", d->weight < 0 ? "weight" : "scales");
    o->weight = d->weight;
    o->scales = d->scales;
    return OCT_OK;
}

static oct_status op_build(parser *p)
{
    value state = {0};
    OCT_TRY(pop(p, &state));
    if (p->n_stack == 0)
        return refuse(p, "no object to give a state to");
    const value *target = &p->stack[p->n_stack - 1];
    if (target->kind != K_DTYPE && target->kind != K_ARRAY && target->kind != K_QUANTISED)
        return refuse(p, "%s takes no state", kind_names[target->kind]);
    object *o = &p->objects[target->number];
    if (o->built)
        return refuse(p, "%s is given its state twice", kind_names[target->kind]);
    if (target->kind == K_DTYPE)
        OCT_TRY(build_dtype(p, o, &state));
    else if (target->kind == K_ARRAY)
        OCT_TRY(build_array(p, o, &state));
    else
        OCT_TRY(build_quantised(p, o, &state));
    o->built = true;
    return OCT_OK;
}

static oct_status op_setitems(parser *p)
{
    int k = 0;
    OCT_TRY(above_mark(p, &k));
    int first = p->n_stack - k;
    if (first < 2 || p->stack[first - 2].kind != K_DICT)
        return refuse(p, "no dict below the mark");
    if (k % 2)
        return refuse(p, "a key without a value");
    object *d = &p->objects[p->stack[first - 2].number];
    for (int i = first; i < p->n_stack; i += 2) {
        const value *key = &p->stack[i], *v = &p->stack[i + 1];
        bool weight = key->kind == K_TEXT && text_is(p, key, "weight");
        bool scales = key->kind == K_TEXT && text_is(p, key, "scales");
        if (!weight && !scales)
            return refuse(p, "a key other than weight and scales");
        if (v->kind != K_ARRAY || !p->objects[v->number].built)
            return refuse(p, "%s is %s; expected an array with its state",
                          weight ? "weight" : "scales", kind_names[v->kind]);
        int *slot = weight ? &d->weight : &d->scales;
        if (*slot >= 0)
            return refuse(p, "%s is set twice", weight ? "weight" : "scales");
        *slot = (int)v->number;
    }
    p->n_stack = first - 1;
    return OCT_OK;
}

static oct_status op_string(parser *p, kind k, int length_bytes)
{
    uint64_t len = 0;
    size_t at = 0;
    OCT_TRY(take_number(p, length_bytes, &len));
    OCT_TRY(take(p, len, k == K_TEXT ? "a string" : "a payload", &at));
    return push(p, (value){.kind = k, .at = at, .len = (size_t)len});
}

static oct_status op_integer(parser *p, int bytes)
{
    uint64_t v = 0;
    OCT_TRY(take_number(p, bytes, &v));
    return push(p,
                (value){.kind = K_INT, .number = bytes == 4 ? (int32_t)(uint32_t)v : (int64_t)v});
}

static oct_status op_memoize(parser *p)
{
    if (p->n_stack == 0 || p->stack[p->n_stack - 1].kind == K_MARK)
        return refuse(p, "nothing to remember");
    if (p->n_memo == MAX_MEMO)
        return refuse(p, "more than %d memo entries", MAX_MEMO);
    p->memo[p->n_memo++] = p->stack[p->n_stack - 1];
    return OCT_OK;
}

static oct_status op_binget(parser *p)
{
    uint64_t i = 0;
    OCT_TRY(take_number(p, 1, &i));
    if (i >= (uint64_t)p->n_memo)
        return refuse(p, "memo entry %llu of %d", (unsigned long long)i, p->n_memo);
    return push(p, p->memo[i]);
}

static oct_status op_frame(parser *p)
{
    uint64_t len = 0;
    if (p->frame_end)
        return refuse(p, "a frame inside a frame that ends at %zu", p->frame_end);
    OCT_TRY(take_number(p, 8, &len));
    if (len == 0)
        return refuse(p, "an empty frame");
    if (len > p->n - p->pos)
        return refuse(p, "a frame of %llu bytes at %zu, but the file ends at %zu: it is short",
                      (unsigned long long)len, p->pos, p->n);
    p->frame_end = p->pos + (size_t)len;
    return OCT_OK;
}

static oct_status op_proto(parser *p)
{
    uint64_t v = 0;
    OCT_TRY(take_number(p, 1, &v));
    if (p->started)
        return refuse(p, "a second protocol header");
    if (v != 4)
        return refuse(p, "pickle protocol %llu; expected 4", (unsigned long long)v);
    p->started = true;
    return OCT_OK;
}

static oct_status step(parser *p)
{
    switch (p->op) {
    case OP_PROTO: return op_proto(p);
    case OP_FRAME: return op_frame(p);
    case OP_STOP: p->stopped = true; return OCT_OK;
    case OP_MARK: return push(p, (value){.kind = K_MARK});
    case OP_NONE: return push(p, (value){.kind = K_NONE});
    case OP_NEWTRUE: return push(p, (value){.kind = K_BOOL, .number = 1});
    case OP_NEWFALSE: return push(p, (value){.kind = K_BOOL, .number = 0});
    case OP_BININT: return op_integer(p, 4);
    case OP_BININT1: return op_integer(p, 1);
    case OP_BININT2: return op_integer(p, 2);
    case OP_SHORT_BINUNICODE: return op_string(p, K_TEXT, 1);
    case OP_SHORT_BINBYTES: return op_string(p, K_BYTES, 1);
    case OP_BINBYTES: return op_string(p, K_BYTES, 4); /* unsigned: up to 4 GiB */
    case OP_BINBYTES8: return op_string(p, K_BYTES, 8);
    case OP_MEMOIZE: return op_memoize(p);
    case OP_BINGET: return op_binget(p);
    case OP_EMPTY_TUPLE: return make_tuple(p, 0);
    case OP_TUPLE1: return make_tuple(p, 1);
    case OP_TUPLE2: return make_tuple(p, 2);
    case OP_TUPLE3: return make_tuple(p, 3);
    case OP_TUPLE: return op_tuple(p);
    case OP_EMPTY_DICT: return push_object(p, K_DICT, OCT_PICKLE_I8);
    case OP_SETITEMS: return op_setitems(p);
    case OP_STACK_GLOBAL: return op_stack_global(p);
    case OP_REDUCE: return op_reduce(p);
    case OP_NEWOBJ: return op_newobj(p);
    case OP_BUILD: return op_build(p);
    case 'c': return refuse_global(p);
    default: return refuse(p, "not allowed here: no array needs it");
    }
}

static oct_status finish(parser *p, oct_pickle *out)
{
    if (p->frame_end)
        return refuse(p, "the frame goes on to %zu", p->frame_end);
    if (p->pos != p->n)
        return refuse(p, "%zu bytes follow the end", p->n - p->pos);
    if (p->n_stack != 1)
        return refuse(p, "%d values are left; expected one", p->n_stack);
    const value *v = &p->stack[0];
    if ((v->kind != K_ARRAY && v->kind != K_QUANTISED) || !p->objects[v->number].built)
        return refuse(p, "the file holds %s; expected an array or a QuantizedWeight8bit",
                      kind_names[v->kind]);
    const object *o = &p->objects[v->number];
    *out = (oct_pickle){.quantised = v->kind == K_QUANTISED, .weight = o->array};
    if (out->quantised) {
        out->weight = p->objects[o->weight].array;
        out->scales = p->objects[o->scales].array;
    }
    return OCT_OK;
}

oct_status oct_pickle_read(const char *name, const void *data, size_t n, oct_pickle *out,
                           oct_error *err)
{
    parser p = {.name = name, .data = data, .n = n, .err = err};
    if (n == 0)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: the file is empty", name);
    if (p.data[0] != OP_PROTO) {
        const char *what = oct_sniff(data, n);
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: not a pickle of protocol 4 (first byte 0x%02x)%s%s", name, p.data[0],
                        what ? ": " : "", what ? what : "");
    }
    for (int ops = 0; !p.stopped; ops++) {
        if (p.pos == p.frame_end)
            p.frame_end = 0;
        p.op_at = p.pos;
        if (p.pos == n)
            return oct_fail(err, OCT_ERR_FORMAT,
                            "%s: the file ends at %zu without STOP: it is short", name, n);
        p.op = p.data[p.pos++];
        if (ops == MAX_OPS)
            return refuse(&p, "more than %d opcodes; an array needs about 100", MAX_OPS);
        OCT_TRY(step(&p));
    }
    if (p.pos == p.frame_end)
        p.frame_end = 0;
    return finish(&p, out);
}

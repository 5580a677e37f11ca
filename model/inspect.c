#include "inspect.h"

#include "model_impl.h"

static const char *dtype_name(uint32_t dtype)
{
    switch (dtype) {
    case OCT_GGUF_T_F32: return "f32";
    case OCT_GGUF_T_F16: return "f16";
    case OCT_GGUF_T_Q8_0: return "q8_0";
    case OCT_GGUF_T_I8: return "i8";
    case OCT_GGUF_T_BF16: return "bf16";
    default: return "?";
    }
}

bool oct_model_get_tensor(const oct_model *m, int64_t i, oct_tensor_info *out)
{
    if (i < 0 || i >= oct_gguf_n_tensors(m->file))
        return false;
    const oct_gguf_tensor *t = oct_gguf_tensor_at(m->file, i);
    *out = (oct_tensor_info){.name = t->name,
                             .type = dtype_name(t->dtype),
                             .rank = (int)t->rank,
                             .offset = t->offset,
                             .bytes = t->bytes};
    for (int d = 0; d < out->rank; d++)
        out->shape[d] = t->ne[out->rank - 1 - d];
    return true;
}

bool oct_model_get_key(const oct_model *m, int64_t i, oct_key_info *out)
{
    static const char *const types[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    uint32_t type = 0, elem = 0;
    uint64_t n = 0;
    if (i < 0 || i >= oct_gguf_n_kv(m->file))
        return false;
    *out = (oct_key_info){.key = oct_gguf_key_at(m->file, i, &type, &elem, &n),
                          .value = OCT_KEY_OTHER};
    out->type = type < sizeof types / sizeof *types ? types[type] : "?";
    if (type == OCT_GGUF_ARRAY) {
        out->value = OCT_KEY_ARRAY;
        out->u64 = n;
    } else if (oct_gguf_get_f32(m->file, out->key, &out->f32, NULL) == OCT_OK) {
        out->value = OCT_KEY_REAL;
    } else if (oct_gguf_get_str(m->file, out->key, &out->text, NULL) == OCT_OK) {
        out->value = OCT_KEY_TEXT;
    } else if (oct_gguf_get_u64(m->file, out->key, &out->u64, NULL) == OCT_OK) {
        out->value = OCT_KEY_INTEGER;
    }
    return true;
}

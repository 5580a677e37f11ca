/* safetensors.c: headers of safetensors files, see safetensors.h. */
#include "safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_map.h"
#include "sniff.h"

enum {
    LENGTH = 8,      /* bytes in front of the JSON */
    DEPTH = 3,       /* of the JSON: object, tensor, its lists */
    MAX_VALUES = 10, /* commas for each tensor: three keys and lists of four and two */
    NAME_SHOWN = 120
};

/* ---- JSON ----------------------------------------------------------------------------------- */

bool oct_json_is_tame(const char *json, size_t n, int depth, int64_t max_values)
{
    int level = 0;
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        const char c = json[i];
        if (text) {
            i += c == '\\';
            text = c != '"';
            continue;
        }
        text = c == '"';
        level += (c == '{' || c == '[') - (c == '}' || c == ']');
        max_values -= c == ',';
        if (level > depth || max_values < 0)
            return false;
    }
    return true;
}

/* A name as it may be shown: it came from the file. */
static const char *shown(const char *name, char text[NAME_SHOWN])
{
    snprintf(text, NAME_SHOWN, "%.*s%s", NAME_SHOWN - 5, name,
             strlen(name) > NAME_SHOWN - 5 ? "..." : "");
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return text;
}

static const struct {
    const char *name;
    oct_st_dtype dtype;
    int bits;
} dtypes[] = {
    {"BF16", OCT_ST_BF16, 16},    {"F16", OCT_ST_F16, 16},      {"F32", OCT_ST_F32, 32},
    {"BOOL", OCT_ST_OTHER, 8},    {"U8", OCT_ST_OTHER, 8},      {"I8", OCT_ST_OTHER, 8},
    {"F8_E5M2", OCT_ST_OTHER, 8}, {"F8_E4M3", OCT_ST_OTHER, 8}, {"I16", OCT_ST_OTHER, 16},
    {"U16", OCT_ST_OTHER, 16},    {"I32", OCT_ST_OTHER, 32},    {"U32", OCT_ST_OTHER, 32},
    {"F64", OCT_ST_OTHER, 64},    {"I64", OCT_ST_OTHER, 64},    {"U64", OCT_ST_OTHER, 64}};

enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

/* ---- one tensor ----------------------------------------------------------------------------- */

/* A list of n_min to n_max whole numbers that are not negative. */
static bool numbers(const json_t *list, size_t n_min, size_t n_max, int64_t *out)
{
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n < n_min || n > n_max)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return false;
        out[i] = json_integer_value(v);
    }
    return true;
}

static oct_status bad(const char *file, const char *tensor, oct_error *err, const char *expected,
                      const json_t *found)
{
    char name[NAME_SHOWN], value[NAME_SHOWN];
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    oct_status s = oct_fail(err, OCT_ERR_FORMAT, "%s: tensor \"%s\": expected %s, found %s", file,
                            shown(tensor, name), expected, text ? shown(text, value) : "none");
    free(text);
    return s;
}

static oct_status parse_tensor(const char *file, const char *name, const json_t *v, uint64_t data,
                               oct_st_tensor *t, oct_error *err)
{
    const json_t *type = json_object_get(v, "dtype"), *shape = json_object_get(v, "shape");
    const json_t *offsets = json_object_get(v, "data_offsets");
    char text[NAME_SHOWN];
    int64_t place[2];
    int k = 0;
    if (!json_is_object(v) || json_object_size(v) != 3 || !type || !shape || !offsets)
        return bad(file, name, err, "an object of dtype, shape and data_offsets", v);
    while (k < N_DTYPES &&
           (!json_is_string(type) || strcmp(json_string_value(type), dtypes[k].name)))
        k++;
    if (k == N_DTYPES)
        return bad(file, name, err, "a dtype such as \"BF16\"", type);
    t->dtype = dtypes[k].dtype;
    snprintf(t->type, sizeof t->type, "%s", dtypes[k].name);
    if (!numbers(shape, 0, OCT_SAFETENSORS_MAX_RANK, t->shape))
        return bad(file, name, err, "a shape of at most 4 whole numbers", shape);
    t->rank = (int)json_array_size(shape);
    if (!numbers(offsets, 2, 2, place) || place[1] < place[0])
        return bad(file, name, err, "data_offsets of two whole numbers in order", offsets);
    int64_t bytes = dtypes[k].bits / 8;
    bool over = false; /* also where a dimension is 0: what comes behind it counts nothing */
    for (int i = 0; i < t->rank; i++)
        over = __builtin_mul_overflow(bytes, t->shape[i], &bytes) || over;
    if (over || bytes != place[1] - place[0])
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: tensor \"%s\": data_offsets tell %" PRId64
                        " bytes, dtype and shape %s",
                        file, shown(name, text), place[1] - place[0],
                        over ? "more than there can be" : "another number");
    if ((uint64_t)place[1] > data)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: tensor \"%s\" ends at byte %" PRId64
                        " of the data, the file has %" PRIu64 ": an unfinished download?",
                        file, shown(name, text), place[1], data);
    t->at = (uint64_t)place[0];
    t->bytes = (uint64_t)bytes;
    t->name = strdup(name);
    return t->name ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "out of memory");
}

/* ---- all of them ---------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const oct_st_tensor *)a)->name, ((const oct_st_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const oct_st_tensor *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Sorts by place. Each tensor begins where the one before ends, and the last ends the file. */
static oct_status check_places(const char *file, oct_safetensors *s, uint64_t data, oct_error *err)
{
    char a[NAME_SHOWN], b[NAME_SHOWN];
    uint64_t end = 0;
    qsort(s->tensor, (size_t)s->n, sizeof *s->tensor, by_place);
    for (int64_t i = 0; i < s->n; end = s->tensor[i].at + s->tensor[i].bytes, i++)
        if (s->tensor[i].at != end)
            return oct_fail(err, OCT_ERR_FORMAT,
                            "%s: tensor \"%s\" begins at byte %" PRIu64
                            " of the data, %s at %" PRIu64
                            "%s%s%s: expected no holes and no overlaps",
                            file, shown(s->tensor[i].name, a), s->tensor[i].at,
                            i ? "the one before it ends" : "expected", end, i ? " (\"" : "",
                            i ? shown(s->tensor[i - 1].name, b) : "", i ? "\")" : "");
    if (end != data)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: its tensors end at byte %" PRIu64
                        " of the data, the file has %" PRIu64,
                        file, end, data);
    return OCT_OK;
}

static oct_status parse_object(const char *file, const json_t *root, uint64_t data, uint64_t first,
                               oct_safetensors *out, oct_error *err)
{
    const char *name;
    json_t *v;
    const size_t n = json_object_size(root);
    if (n > OCT_SAFETENSORS_MAX_TENSORS)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "%s: %zu tensors; expected at most %d", file, n,
                        OCT_SAFETENSORS_MAX_TENSORS);
    out->tensor = calloc(n + 1, sizeof *out->tensor);
    if (!out->tensor)
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    json_object_foreach((json_t *)(uintptr_t)root, name, v)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        OCT_TRY(parse_tensor(file, name, v, data, &out->tensor[out->n], err));
        out->n++;
    }
    OCT_TRY(check_places(file, out, data, err));
    for (int64_t i = 0; i < out->n; i++)
        out->tensor[i].at += first;
    qsort(out->tensor, (size_t)out->n, sizeof *out->tensor, by_name);
    return OCT_OK;
}

oct_status oct_safetensors_parse(const char *file, const char *json, size_t n, uint64_t file_bytes,
                                 oct_safetensors *out, oct_error *err)
{
    const uint64_t first = LENGTH + (uint64_t)n;
    json_error_t e;
    *out = (oct_safetensors){0};
    if (n > OCT_SAFETENSORS_MAX_HEADER || first > file_bytes)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: a header of %zu bytes; expected at most %d and less than the file's "
                        "%" PRIu64,
                        file, n, OCT_SAFETENSORS_MAX_HEADER, file_bytes);
    if (!oct_json_is_tame(json, n, DEPTH, (int64_t)MAX_VALUES * OCT_SAFETENSORS_MAX_TENSORS))
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: the header nests deeper than %d or has more than %d tensors", file,
                        DEPTH, OCT_SAFETENSORS_MAX_TENSORS);
    json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: the header is not JSON: byte %d: %s", file,
                        e.position, e.text);
    oct_status s = json_is_object(root)
                       ? parse_object(file, root, file_bytes - first, first, out, err)
                       : oct_fail(err, OCT_ERR_FORMAT, "%s: the header is not a JSON object", file);
    json_decref(root);
    if (s != OCT_OK)
        oct_safetensors_free(out);
    return s;
}

oct_status oct_safetensors_read(const char *file, int fd, uint64_t file_bytes, oct_safetensors *out,
                                oct_error *err)
{
    uint8_t start[64];
    uint64_t n = 0;
    *out = (oct_safetensors){0};
    const int64_t got = oct_file_read(fd, start, sizeof start, 0);
    if (got < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", file, strerror(errno));
    for (int i = 0; i < LENGTH && got >= LENGTH; i++)
        n |= (uint64_t)start[i] << (8 * i);
    const char *what = oct_sniff(start, (size_t)got);
    if (got <= LENGTH || start[LENGTH] != '{')
        return oct_fail(err, OCT_ERR_FORMAT, "%s: no safetensors file: %s", file,
                        !got   ? "it is empty"
                        : what ? what
                               : "expected a length of 8 bytes and a '{'");
    if (n > OCT_SAFETENSORS_MAX_HEADER || n > file_bytes - LENGTH)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: a header of %" PRIu64 " bytes; expected at most %d and less than the "
                        "file's %" PRIu64,
                        file, n, OCT_SAFETENSORS_MAX_HEADER, file_bytes);
    char *json = malloc((size_t)n + 1);
    if (!json)
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    oct_status s = oct_file_read_all(fd, file, json, (size_t)n, LENGTH, err);
    if (s == OCT_OK)
        s = oct_safetensors_parse(file, json, (size_t)n, file_bytes, out, err);
    free(json);
    return s;
}

void oct_safetensors_free(oct_safetensors *s)
{
    for (int64_t i = 0; i < s->n; i++)
        free(s->tensor[i].name);
    free(s->tensor);
    *s = (oct_safetensors){0};
}

const oct_st_tensor *oct_safetensors_find(const oct_safetensors *s, const char *name)
{
    oct_st_tensor key = {.name = (char *)(uintptr_t)name};
    return s->n ? bsearch(&key, s->tensor, (size_t)s->n, sizeof key, by_name) : NULL;
}

void oct_st_shape_text(const oct_st_tensor *t, char text[120])
{
    size_t n = (size_t)snprintf(text, 120, "%s [", t->type);
    for (int i = 0; i < t->rank; i++)
        n += (size_t)snprintf(text + n, 120 - n, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    snprintf(text + n, 120 - n, "]");
}

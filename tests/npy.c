#include "npy.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    return -1;
}

/* The header is a Python dictionary in text: finds the value of a key. */
static const char *value_of(const char *header, const char *key)
{
    const char *p = strstr(header, key);
    if (p)
        p = strchr(p, ':');
    if (!p)
        return NULL;
    p++;
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

static const char *parse_header(const char *header, oct_npy *out)
{
    const char *descr = value_of(header, "'descr'");
    const char *order = value_of(header, "'fortran_order'");
    const char *shape = value_of(header, "'shape'");
    if (!descr || !order || !shape)
        return "descr, fortran_order or shape is missing";
    if (descr[0] != '\'' || !strchr("<|", descr[1]) || !descr[2] || !strchr("fiub", descr[2]))
        return "type is not a little-endian number";
    out->kind = descr[2];
    out->size = atoi(descr + 3);
    if (out->size != 1 && out->size != 2 && out->size != 4 && out->size != 8)
        return "odd element size";
    if (strncmp(order, "False", 5) != 0)
        return "not in C order";
    if (*shape != '(')
        return "shape is not a tuple";
    out->n = 1;
    for (int i = 0; i < OCT_NPY_MAX_DIM; i++)
        out->shape[i] = 1;
    for (const char *p = shape + 1; *p && *p != ')';) {
        char *end;
        long long v = strtoll(p, &end, 10);
        if (end == p || v < 0 || out->ndim == OCT_NPY_MAX_DIM)
            return "bad shape";
        out->shape[out->ndim++] = v;
        out->n *= v;
        p = end;
        while (*p == ',' || *p == ' ')
            p++;
    }
    return NULL;
}

static const char *read_file(FILE *f, oct_npy *out)
{
    unsigned char pre[12];
    if (fread(pre, 1, 10, f) != 10 || memcmp(pre, "\x93NUMPY", 6) != 0)
        return "not a .npy file";
    size_t header_bytes = pre[8] | (size_t)pre[9] << 8;
    if (pre[6] >= 2) {
        if (fread(pre + 10, 1, 2, f) != 2)
            return "header cut short";
        header_bytes |= (size_t)pre[10] << 16 | (size_t)pre[11] << 24;
    }
    if (header_bytes > 1 << 20)
        return "header too long";
    char *header = calloc(1, header_bytes + 1);
    if (!header)
        return "no memory";
    const char *wrong = "header cut short";
    if (fread(header, 1, header_bytes, f) == header_bytes)
        wrong = parse_header(header, out);
    free(header);
    if (wrong)
        return wrong;
    size_t bytes = (size_t)out->n * (size_t)out->size;
    out->data = malloc(bytes + 1);
    if (!out->data)
        return "no memory";
    if (fread(out->data, 1, bytes, f) != bytes || fgetc(f) != EOF)
        return "data and shape differ in size";
    return NULL;
}

int oct_npy_load(const char *path, oct_npy *out)
{
    memset(out, 0, sizeof *out);
    FILE *f = fopen(path, "rb");
    if (!f)
        return fail(path, "cannot be opened");
    const char *wrong = read_file(f, out);
    fclose(f);
    if (!wrong)
        return 0;
    oct_npy_free(out);
    return fail(path, wrong);
}

int oct_npy_load_as(const char *dir, const char *name, char kind, int size, oct_npy *out)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.npy", dir, name);
    if (oct_npy_load(path, out) != 0)
        return -1;
    if (out->kind == kind && out->size == size)
        return 0;
    oct_npy_free(out);
    return fail(path, "elements are of another type");
}

void oct_npy_free(oct_npy *a)
{
    free(a->data);
    memset(a, 0, sizeof *a);
}

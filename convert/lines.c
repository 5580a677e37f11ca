#include "lines.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void oct_lines_add(oct_lines *l, const char *fmt, ...)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        char **p = cap > SIZE_MAX / sizeof *p ? NULL : realloc(l->line, cap * sizeof *p);
        if (!p) {
            l->failed = true;
            return;
        }
        l->line = p;
        l->cap = cap;
    }
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n < 0) {
        l->failed = true;
        return;
    }
    for (char *c = s; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    l->line[l->n++] = s;
}

void oct_lines_free(oct_lines *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->line[i]);
    free(l->line);
    *l = (oct_lines){0};
}

#include "ids.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *oct_ids_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

void oct_ids_free(oct_ids *ids)
{
    free(ids->token);
    free(ids->seq);
    *ids = (oct_ids){0};
}

static oct_status push(oct_ids *r, int32_t id, oct_error *err)
{
    if (r->n == r->room) {
        int64_t more = r->room ? 2 * r->room : 1024;
        int32_t *token = realloc(r->token, (size_t)more * sizeof *token);
        if (token)
            r->token = token;
        int32_t *seq = token ? realloc(r->seq, (size_t)more * sizeof *seq) : NULL;
        if (!seq)
            return oct_fail(err, OCT_ERR_MEMORY, "no memory for %lld ids", (long long)more);
        r->seq = seq;
        r->room = more;
    }
    r->token[r->n] = id;
    r->seq[r->n++] = (int32_t)r->n_seqs;
    return OCT_OK;
}

oct_status oct_ids_parse(const char *name, const char *text, size_t n, int64_t n_vocab, oct_ids *r,
                         oct_error *err)
{
    int64_t line = 1, start = 0;
    *r = (oct_ids){0};
    for (size_t i = 0; i <= n; i++) {
        char c = text[i]; /* the text ends with a NUL */
        if (i == n || c == '\n') {
            int64_t len = r->n - start;
            r->n_longest = len > r->n_longest ? len : r->n_longest;
            r->n_seqs += len > 0;
            start = r->n;
            line++;
        } else if (isdigit((unsigned char)c)) {
            int64_t id = 0;
            while (isdigit((unsigned char)text[i])) {
                id = id > INT32_MAX ? id : id * 10 + (text[i] - '0');
                i++;
            }
            i--;
            if (id >= n_vocab)
                return oct_fail(err, OCT_ERR_ARG,
                                "%s: line %lld: expected ids from 0 to %lld, "
                                "found %s%lld",
                                name, (long long)line, (long long)n_vocab - 1,
                                id > INT32_MAX ? "at least " : "", (long long)id);
            OCT_TRY(push(r, (int32_t)id, err));
        } else if (!strchr(" \t\r,", c) || c == 0) {
            return oct_fail(err, OCT_ERR_ARG, "%s: line %lld: expected token ids, found '%c'", name,
                            (long long)line, isprint((unsigned char)c) ? c : '?');
        }
    }
    if (r->n == 0)
        return oct_fail(err, OCT_ERR_ARG, "%s: holds no token ids", name);
    return OCT_OK;
}

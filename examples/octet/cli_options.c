/* cli_options.c: from option rows to values, --help and error messages. getopt_long does the
 * scanning; what a value may be is decided here, once for all commands. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTS = 64, LONG_BASE = 256, HELP_LONG = 1000, HELP_COLUMN = 28, MAX_WORD = 40 };

static bool has_value(const oct_opt *o)
{
    return o->kind != OCT_OPT_FLAG;
}

/* ---- help ----------------------------------------------------------------------------------- */

static void print_option(const oct_opt *o)
{
    char left[96];
    int n = 0;
    if (o->letter && o->name)
        n = snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name);
    else if (o->letter)
        n = snprintf(left, sizeof left, "  -%c", o->letter);
    else
        n = snprintf(left, sizeof left, "      --%s", o->name);
    if (has_value(o))
        n += snprintf(left + n, sizeof left - (size_t)n, " %s", o->arg);
    oct_cli_outf("%-*s", HELP_COLUMN, left);
    if (n >= HELP_COLUMN - 1)
        oct_cli_outf("\n%*s", HELP_COLUMN, "");
    for (const char *p = o->help; p;) {
        const char *end = strchr(p, '\n');
        oct_cli_outf("%.*s\n", end ? (int)(end - p) : (int)strlen(p), p);
        if (end)
            oct_cli_outf("%*s", HELP_COLUMN, "");
        p = end ? end + 1 : NULL;
    }
}

static int print_help(const oct_cli *cli)
{
    oct_cli_outf("usage: octet %s %s\n\n%s\n\noptions:\n", cli->name, cli->synopsis, cli->about);
    for (int i = 0; i < cli->n_opts; i++)
        print_option(&cli->opts[i]);
    oct_cli_outf("%-*sprint this help\n", HELP_COLUMN, "  -h, --help");
    if (cli->notes)
        oct_cli_outf("\n%s\n", cli->notes);
    return oct_cli_out_end();
}

/* ---- near names ----------------------------------------------------------------------------- */

/* Edits (insert, delete, replace, swap neighbours) between two short words. */
static int distance(const char *a, const char *b)
{
    int na = (int)strlen(a), nb = (int)strlen(b);
    int d[MAX_WORD + 1][MAX_WORD + 1];
    if (na > MAX_WORD || nb > MAX_WORD)
        return MAX_WORD;
    for (int i = 0; i <= na; i++) {
        for (int j = 0; j <= nb; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[na][nb];
}

const char *oct_cli_nearest(const char *word, const char *const *names, int n)
{
    const char *best = NULL;
    int best_d = 3;
    for (int i = 0; i < n; i++) {
        if (!names[i])
            continue;
        int d = distance(word, names[i]);
        /* A word that shares nothing with the name is not "near", however short both are. */
        if (d < best_d && d < (int)strlen(names[i])) {
            best = names[i];
            best_d = d;
        }
    }
    return best;
}

/* ---- values --------------------------------------------------------------------------------- */

static bool parse_int(const char *s, double lo, double hi, int64_t *v)
{
    char *end;
    errno = 0;
    long long x = strtoll(s, &end, 10);
    if (end == s || *end || errno || strchr(" \t\n\r\f\v", *s) || (double)x < lo || (double)x > hi)
        return false;
    *v = x;
    return true;
}

static bool parse_u64(const char *s, uint64_t *v)
{
    char *end;
    errno = 0;
    unsigned long long x = strtoull(s, &end, 10); /* not 0: 010 is ten */
    if (end == s || *end || errno || *s < '0' || *s > '9')
        return false;
    *v = x;
    return true;
}

static bool parse_real(const char *s, double lo, double hi, double *v)
{
    char *end;
    double x = strtod(s, &end);
    if (end == s || *end || strchr(" \t\n\r\f\v", *s) || isnan(x) || x < lo || x > hi)
        return false;
    *v = x;
    return true;
}

/* Index of s in "a|b|c", or -1. */
static int parse_choice(const char *s, const char *choices)
{
    size_t n = strlen(s);
    int index = 0;
    for (const char *p = choices; p; index++) {
        const char *end = strchr(p, '|');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        if (len == n && memcmp(p, s, n) == 0)
            return index;
        p = end ? end + 1 : NULL;
    }
    return -1;
}

static const char *spelling(const oct_opt *o, bool by_letter, char buf[64])
{
    if (by_letter || !o->name)
        snprintf(buf, 64, "-%c", o->letter);
    else
        snprintf(buf, 64, "--%s", o->name);
    return buf;
}

/* Stores one value; false after a message that names option, expected and found. */
static bool store(const oct_cli *cli, const oct_opt *o, bool by_letter, const char *text)
{
    char buf[64];
    const char *opt = spelling(o, by_letter, buf);
    bool ok = true;
    switch (o->kind) {
    case OCT_OPT_FLAG: *(bool *)o->value = true; break;
    case OCT_OPT_INT:
        ok = parse_int(text, o->lo, o->hi, o->value);
        if (!ok)
            oct_cli_error("%s: %s: expected a whole number from %.0f to %.0f, found '%s'",
                          cli->name, opt, o->lo, o->hi, text);
        break;
    case OCT_OPT_REAL:
        ok = parse_real(text, o->lo, o->hi, o->value);
        if (!ok)
            oct_cli_error("%s: %s: expected a number from %g to %g, found '%s'", cli->name, opt,
                          o->lo, o->hi, text);
        break;
    case OCT_OPT_U64:
        ok = parse_u64(text, o->value);
        if (!ok)
            oct_cli_error("%s: %s: expected a whole number from 0 to 18446744073709551615, "
                          "found '%s'",
                          cli->name, opt, text);
        break;
    case OCT_OPT_TEXT: *(const char **)o->value = text; break;
    case OCT_OPT_CHOICE:
        *(int *)o->value = parse_choice(text, o->arg);
        ok = *(int *)o->value >= 0;
        if (!ok)
            oct_cli_error("%s: %s: expected one of %s, found '%s'", cli->name, opt, o->arg, text);
        break;
    }
    if (ok && o->given)
        *o->given = true;
    return ok;
}

/* ---- scanning ------------------------------------------------------------------------------- */

static const oct_opt *find_letter(const oct_cli *cli, int letter)
{
    for (int i = 0; i < cli->n_opts; i++)
        if (cli->opts[i].letter && cli->opts[i].letter == letter)
            return &cli->opts[i];
    return NULL;
}

/* What getopt_long calls '?': unknown or ambiguous, or a flag that was given a value. */
static void unknown_option(const oct_cli *cli, const char *word)
{
    const char *names[MAX_OPTS + 1];
    for (int i = 0; i < cli->n_opts; i++)
        names[i] = cli->opts[i].name;
    names[cli->n_opts] = "help";
    const char *near = NULL;
    if (strncmp(word, "--", 2) == 0)
        near = oct_cli_nearest(word + 2, names, cli->n_opts + 1);
    if (near)
        oct_cli_error("%s: unknown option %s; did you mean --%s?", cli->name, word, near);
    else
        oct_cli_error("%s: unknown option %s (octet %s --help lists them)", cli->name, word,
                      cli->name);
}

static int scan(const oct_cli *cli, int argc, char **argv, const char *letters,
                const struct option *longs)
{
    opterr = 0;
    optind = 0; /* glibc: start afresh */
    for (;;) {
        int at = optind ? optind : 1;
        int c = getopt_long(argc, argv, letters, longs, NULL);
        if (c == -1)
            return -1;
        if (c == 'h' || c == HELP_LONG)
            return print_help(cli);
        if (c == '?' || c == ':') {
            char letter[3] = {'-', (char)optopt, 0};
            const oct_opt *o = optopt >= LONG_BASE && optopt < LONG_BASE + cli->n_opts
                                   ? &cli->opts[optopt - LONG_BASE]
                                   : find_letter(cli, optopt);
            char buf[64];
            if (c == ':' && o)
                oct_cli_error("%s: %s: a value is missing (%s)", cli->name,
                              spelling(o, optopt < LONG_BASE, buf), o->arg);
            else if (o && optopt >= LONG_BASE)
                oct_cli_error("%s: --%s takes no value", cli->name, o->name);
            else
                unknown_option(cli, optopt && optopt < LONG_BASE ? letter
                                    : optind > 1                 ? argv[optind - 1]
                                                                 : argv[at]);
            return OCT_EXIT_USAGE;
        }
        bool by_letter = c < LONG_BASE;
        const oct_opt *o = by_letter ? find_letter(cli, c) : &cli->opts[c - LONG_BASE];
        if (!store(cli, o, by_letter, optarg))
            return OCT_EXIT_USAGE;
    }
}

static oct_cli_describe_fn *describe;
static void *describe_ctx;

void oct_cli_describe(oct_cli_describe_fn *fn, void *ctx)
{
    describe = fn;
    describe_ctx = ctx;
}

int oct_cli_parse(const oct_cli *cli, int argc, char **argv, int *first_arg)
{
    struct option longs[MAX_OPTS + 2];
    char letters[2 * MAX_OPTS + 3];
    int n_longs = 0;
    size_t n_letters = 0;
    if (describe) {
        describe(describe_ctx, cli);
        return OCT_EXIT_OK;
    }
    letters[n_letters++] = ':'; /* tells a missing value from an unknown option */
    letters[n_letters++] = 'h';
    for (int i = 0; i < cli->n_opts && i < MAX_OPTS; i++) {
        const oct_opt *o = &cli->opts[i];
        int arg = has_value(o) ? required_argument : no_argument;
        if (o->name)
            longs[n_longs++] = (struct option){o->name, arg, NULL, LONG_BASE + i};
        if (o->letter) {
            letters[n_letters++] = o->letter;
            if (has_value(o))
                letters[n_letters++] = ':';
        }
    }
    longs[n_longs++] = (struct option){"help", no_argument, NULL, HELP_LONG};
    longs[n_longs] = (struct option){NULL, 0, NULL, 0};
    letters[n_letters] = 0;

    int rc = scan(cli, argc, argv, letters, longs);
    if (rc >= 0)
        return rc;
    if (argc - optind > cli->max_args) {
        oct_cli_error("%s: unexpected argument '%s' (octet %s --help shows the usage)", cli->name,
                      argv[optind + cli->max_args], cli->name);
        return OCT_EXIT_USAGE;
    }
    if (first_arg)
        *first_arg = optind;
    return -1;
}

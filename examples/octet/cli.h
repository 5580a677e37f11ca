/* cli.h: what the subcommands of `octet` share: options, messages, signals, output, reading files.
 * One process, one command, so state lives in file-local variables; call from the main thread. */
#ifndef OCT_CLI_H
#define OCT_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <octet/octet.h>

enum {
    OCT_EXIT_OK = 0,
    OCT_EXIT_ERROR = 1,        /* the work could not be done; one line on stderr says why */
    OCT_EXIT_USAGE = 2,        /* the command line makes no sense */
    OCT_EXIT_NO = 3,           /* `octet plan`: it does not fit */
    OCT_EXIT_INTERRUPTED = 130 /* Ctrl-C; 128 + signal for SIGTERM and others */
};

/* ---- messages (stderr, one line, control characters replaced) -------------------------------- */

void oct_cli_error(const char *fmt, ...) OCT_PRINTF(1, 2);   /* "octet: ..." */
void oct_cli_warning(const char *fmt, ...) OCT_PRINTF(1, 2); /* "octet: warning: ..." */
/* Reports *err and returns the exit code that fits: interrupted if it was cancelled. */
int oct_cli_fail(const oct_error *err);

/* ---- options -------------------------------------------------------------------------------- */

/* Each option is one row: how it is spelt, where its value goes, what is allowed, what it means.
 * The parser, its error messages and --help are made from the rows. */
typedef enum oct_opt_kind {
    OCT_OPT_FLAG,  /* bool: set to true */
    OCT_OPT_INT,   /* int64_t within lo..hi (whole numbers up to 2^53) */
    OCT_OPT_REAL,  /* double within lo..hi; never NaN */
    OCT_OPT_U64,   /* uint64_t, any */
    OCT_OPT_TEXT,  /* const char *, points into argv */
    OCT_OPT_CHOICE /* int: index into the names "a|b|c" given as arg */
} oct_opt_kind;

typedef struct oct_opt {
    char letter;      /* 0: none */
    const char *name; /* long spelling; NULL: none */
    oct_opt_kind kind;
    void *value;
    const char *arg;  /* name of the argument in --help; the choices for OCT_OPT_CHOICE */
    const char *help; /* one or more lines, separated by \n */
    double lo, hi;
    bool *given; /* set to true when the option was used; may be NULL */
} oct_opt;

/* Rows. l: letter or 0, n: long name. */
#define OCT_ROW_FLAG(l, n, v, text)                                                    \
    {                                                                                  \
        .letter = (l), .name = (n), .kind = OCT_OPT_FLAG, .value = (v), .help = (text) \
    }
#define OCT_ROW_TEXT(l, n, v, word, text)                                              \
    {                                                                                  \
        .letter = (l), .name = (n), .kind = OCT_OPT_TEXT, .value = (v), .arg = (word), \
        .help = (text)                                                                 \
    }
#define OCT_ROW_CHOICE(l, n, v, words, text)                                              \
    {                                                                                     \
        .letter = (l), .name = (n), .kind = OCT_OPT_CHOICE, .value = (v), .arg = (words), \
        .help = (text)                                                                    \
    }
#define OCT_ROW_INT(l, n, v, min, max, word, text)                                               \
    {                                                                                            \
        .letter = (l), .name = (n), .kind = OCT_OPT_INT, .value = (v), .lo = (min), .hi = (max), \
        .arg = (word), .help = (text)                                                            \
    }
#define OCT_ROW_REAL(l, n, v, min, max, word, text)                                               \
    {                                                                                             \
        .letter = (l), .name = (n), .kind = OCT_OPT_REAL, .value = (v), .lo = (min), .hi = (max), \
        .arg = (word), .help = (text)                                                             \
    }
#define OCT_ROW_U64(l, n, v, was_given, word, text)                                          \
    {                                                                                        \
        .letter = (l), .name = (n), .kind = OCT_OPT_U64, .value = (v), .given = (was_given), \
        .arg = (word), .help = (text)                                                        \
    }

typedef struct oct_cli {
    const char *name;     /* of the command: "run" */
    const char *synopsis; /* what follows "octet run " in the usage line */
    const char *about;    /* paragraph; may have several lines */
    const oct_opt *opts;
    int n_opts;
    const char *notes; /* after the options: what else to know, then examples; may be NULL */
    int max_args;      /* arguments allowed that are not options: */
    const char *words; /* these words, "a|b|c"; NULL: none */
    bool no_files;     /* and no files */
} oct_cli;

/* Reads argv[1..] (argv[0] is the command's name) into the rows' values. Returns -1 to go on, or an
 * exit code: after --help (printed on stdout), or after a usage error (one line on stderr).
 * Arguments that are not options are moved to argv[*first_arg..argc-1]; first_arg may be NULL if
 * max_args is 0. */
int oct_cli_parse(const oct_cli *cli, int argc, char **argv, int *first_arg);

/* Called with a command's rows, which are valid during the call. */
typedef void oct_cli_describe_fn(void *ctx, const oct_cli *cli);
/* From now on oct_cli_parse reads no arguments but calls fn and returns OCT_EXIT_OK, so that manual
 * pages and completions are made of the rows that are parsed. NULL: as usual. */
void oct_cli_describe(oct_cli_describe_fn *fn, void *ctx);

/* The name of the list that is most like `word`, NULL if none is near. For "did you mean". */
const char *oct_cli_nearest(const char *word, const char *const *names, int n);

/* ---- what the process inherits -------------------------------------------------------------- */

/* Called first. Standard streams: closed ones stay unusable, but no file that is opened later takes
 * their numbers; those that do not block are waited for. Signals: SIGINT, SIGTERM, SIGHUP,
 * SIGUSR1 and SIGUSR2 raise the cancel flag, unless the parent ignores them; a second one, or a
 * second of time, removes the temporary file and ends the process, and so does SIGQUIT at once,
 * with a core where the limits allow one. None is blocked. SIGPIPE and SIGXFSZ are ignored: writes
 * fail with EPIPE and EFBIG. Limits: that of processor time ends the process with a line; false if
 * the stack is too small for anything, which has been said. */
bool oct_cli_start(void);
const volatile int *oct_cli_cancel_flag(void); /* non-zero once a signal came */
/* From now on SIGINT stops what is generated, however long that takes, and not the process. False:
 * a signal came before. */
bool oct_cli_converse(void);
/* Seconds that a signal leaves before the process ends all the same [1]; 0: any time. */
void oct_cli_grace(int seconds);
void oct_cli_cancel_reset(void);  /* for conversations: the signal has been dealt with */
int oct_cli_interrupt_code(void); /* 128 + the signal that came */
/* File to remove when the process is ended while it works; NULL: none. The path is copied. */
void oct_cli_temp_file(const char *path);
/* Ends what must not stay behind: before an end that does not come back here. From any thread. */
void oct_cli_leave_nothing(void);
/* From now on the first signal removes the temporary file: a launcher that ends its ranks waits for
 * less than a rank does for others. */
void oct_cli_hurry(void);

/* ---- output (stdout) ------------------------------------------------------------------------- */

/* Writes at once. False once stdout is closed or full, or cannot be written when a signal comes:
 * stop working then and return oct_cli_out_end(). */
bool oct_cli_out(const char *text, size_t n);
bool oct_cli_outf(const char *fmt, ...) OCT_PRINTF(1, 2);
/* json (of jansson, borrowed; NULL: there was no memory for it) on a line; flags are json_dumps's.
 * Returns the exit code. */
struct json_t;
int oct_cli_out_json(const struct json_t *json, size_t flags);
/* Any bytes as a JSON text, which is UTF-8: what is none becomes U+FFFD. NULL: no memory. */
struct json_t *oct_cli_json_bytes(const char *bytes, size_t n);
/* Whether a json that will be printed otherwise is whole: there was memory for it and for all that
 * was put into it. If not, reports that. */
bool oct_cli_json_whole(const struct json_t *json);
/* Whether jansson was refused memory on this thread since this was asked last. */
bool oct_cli_json_lost(void);
/* Exit code of a command whose work went well: OK, also when the reader closed the pipe (it had
 * what it wanted), or ERROR with a message when writing failed otherwise. */
int oct_cli_out_end(void);

/* ---- input, numbers -------------------------------------------------------------------------- */

/* Bytes of a text that is tokenized at once: the tokenizer takes about 100 bytes of memory for
 * each, so that is 1.6 GB. */
enum { OCT_CLI_TEXT_BYTES_MAX = 16 << 20 };

/* A whole file of text, or stdin for "-", without a byte order mark. *text is malloc'd and
 * NUL-terminated, *n without the NUL. Refuses directories and more than max_bytes. Interrupted by
 * the cancel flag. */
OCT_MUST_CHECK oct_status oct_cli_read(const char *path, size_t max_bytes, char **text, size_t *n,
                                       oct_error *err);
uint64_t oct_cli_random(void);
/* A size in bytes such as 8G, 1.5T, 512M; false: it is none, or 0. */
bool oct_cli_bytes(const char *text, uint64_t *bytes);

#endif

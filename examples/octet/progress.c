#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <octet/convert.h>
#include <octet/machine.h>

#include "cli.h"

enum { BAR = 30, LEAST_BAR = 5, MAX_COLUMNS = 200 };
static const double REDRAW_SECONDS = 0.1, PLAIN_SECONDS = 30;

void oct_progress_start(oct_progress *p, const char *what, uint64_t total_bytes)
{
    double now = oct_seconds();
    *p = (oct_progress){.what = what,
                        .total = total_bytes,
                        .started = now,
                        .shown = now,
                        .terminal = isatty(STDERR_FILENO) != 0};
    if (p->terminal)
        p->shown = now - REDRAW_SECONDS;
}

void oct_progress_start_tokens(oct_progress *p, const char *what, uint64_t total_tokens)
{
    oct_progress_start(p, what, total_tokens);
    p->tokens = true;
    p->shown = p->started; /* most of this work is over before a line is of use */
}

static const char *amount(const oct_progress *p, double n, char out[32])
{
    char bytes[24];
    if (p->tokens)
        snprintf(out, 32, n < 100 ? "%.1f tokens" : "%.0f tokens", n);
    else
        snprintf(out, 32, "%s", oct_memory_text((uint64_t)n, bytes));
    return out;
}

/* "1:05:09" or "5:09" */
static const char *clock_text(double seconds, char out[32])
{
    long s = seconds < 1e8 ? (long)(seconds + 0.5) : 99999999;
    if (s >= 3600)
        snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
    return out;
}

/* Columns of the terminal, 80 if it does not say; at most what draw has room for. */
static int width(void)
{
    struct winsize w;
    int n = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
    return n < MAX_COLUMNS ? n : MAX_COLUMNS;
}

/* One line that never reaches the last column, where a terminal would begin another: the bar
 * becomes shorter, then goes; then the text is cut. */
static void draw(const char *what, double part, const char *rest)
{
    char line[2 * MAX_COLUMNS], bar[BAR + 4] = "";
    const int room = width() - 1, text = (int)(strlen(rest) + strlen(what)) + 1;
    int n = room - text - 3 < BAR ? room - text - 3 : BAR;
    if (n >= LEAST_BAR) {
        bar[0] = '[';
        for (int i = 0; i < n; i++)
            bar[1 + i] = i < (int)(part * n) ? '#' : '.';
        strcpy(bar + 1 + n, "] ");
    }
    snprintf(line, sizeof line, "%s %s%s", what, bar, rest);
    fprintf(stderr, "\r\033[K%.*s", room, line);
}

void oct_progress_update(oct_progress *p, uint64_t done)
{
    double now = oct_seconds(), spent = now - p->started;
    if (now - p->shown < (p->terminal ? REDRAW_SECONDS : PLAIN_SECONDS) || p->total == 0)
        return;
    p->shown = now;
    double part = (double)done / (double)p->total;
    double rate = spent > 0 ? (double)done / spent : 0;
    double left = rate > 0 ? (double)(p->total - done) / rate : 0;
    char speed[32], total[32], time[32], rest[128];
    amount(p, rate, speed);
    amount(p, (double)p->total, total);
    clock_text(left, time);
    snprintf(rest, sizeof rest, "%.0f %% of %s, %s/s, %s left", 100 * part, total, speed, time);
    if (p->terminal)
        draw(p->what, part, rest);
    else
        fprintf(stderr, "%s: %s\n", p->what, rest);
    p->drawn = true;
    fflush(stderr);
}

void oct_progress_phase(oct_progress *p, const char *phase, uint64_t done, uint64_t total_bytes,
                        const char *temp)
{
    if (p->what == phase) {
        if (phase)
            oct_progress_update(p, done);
        return;
    }
    if (p->what)
        oct_progress_end(p, true);
    oct_cli_temp_file(temp);
    if (phase)
        oct_progress_start(p, phase, total_bytes);
}

void oct_progress_tell(void *ctx, const oct_convert_progress *p)
{
    static const char *const names[] = {[OCT_CONVERT_WRITE] = "writing",
                                        [OCT_CONVERT_SYNC] = "syncing",
                                        [OCT_CONVERT_VERIFY] = "verifying",
                                        [OCT_CONVERT_DONE] = NULL};
    oct_progress_phase(ctx, names[p->phase], p->done, p->total, p->temp);
}

void oct_progress_end(oct_progress *p, bool finished)
{
    if (p->terminal && p->drawn)
        fprintf(stderr, finished || p->tokens ? "\r\033[K" : "\n");
    if (finished && p->total && !p->tokens) {
        double spent = oct_seconds() - p->started;
        char total[24], speed[24], line[MAX_COLUMNS];
        snprintf(
            line, sizeof line, "%s: %s in %.1f s, %s/s", p->what, oct_memory_text(p->total, total),
            spent,
            oct_memory_text((uint64_t)((double)p->total / (spent > 1e-6 ? spent : 1e-6)), speed));
        fprintf(stderr, "%.*s\n", p->terminal ? width() : MAX_COLUMNS, line);
    }
    *p = (oct_progress){0};
}

void oct_progress_made(oct_progress *p, bool made, oct_lines *warnings)
{
    oct_cli_temp_file(NULL);
    if (p->what)
        oct_progress_end(p, made);
    for (size_t i = 0; i < warnings->n; i++)
        oct_cli_warning("%s", warnings->line[i]);
    oct_lines_free(warnings);
}

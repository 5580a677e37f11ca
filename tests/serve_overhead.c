/* serve_overhead.c: what a step of 32 requests costs `octet serve` beside the model: HTTP, JSON,
 * sampling and scheduling, with a vocabulary of Grok-1's size and a narrow model.
 *
 *     serve_overhead MODEL    OCT_TEST_OCTET is the program
 *
 * Once greedily, without more, which is close to what a step costs that no threads share; and once
 * with top-p over flat logits and with the probabilities of each token and of two others, which is
 * the most that clients ask for. Drawing is divided by texts: that server has a core for each of
 * the 32, so that one draw counts there; HTTP and JSON are another thread's and counted as if they
 * were not. Exit code 1: more than 2 % of a step of Grok-1 on paper. */
#include <dirent.h>
#include <poll.h>

#include "serve_rig.h"

/* The step on paper: 32 texts choose every expert (8 (1 - 0.75^32) of 8), so all of the 316 GB are
 * read, by a server of one socket with 12 channels of DDR5-4800, 415 of 461 GB/s. */
static const double STEP = 316e9 / 415e9, SHARE = 0.02;
enum { N = 32, TOKENS = 60 };

/* Seconds of processor time of the program's main thread, the engine, and of the others. */
static void cpu_seconds(pid_t pid, double out[2])
{
    char path[300], text[600];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    RIG_CHECK(d, "%s", path);
    out[0] = out[1] = 0;
    for (struct dirent *e; (e = readdir(d));) {
        unsigned long long running = 0;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (!f)
            continue;
        if (fgets(text, sizeof text, f) && sscanf(text, "%llu", &running) == 1)
            out[atoi(e->d_name) != (int)pid] += 1e-9 * (double)running;
        fclose(f);
    }
    closedir(d);
}

/* Reads all streams until they end; returns how many bytes came. */
static size_t drain(struct pollfd *p, int n)
{
    static char into[1 << 16];
    size_t bytes = 0;
    for (int open = n; open > 0;) {
        RIG_CHECK(poll(p, (nfds_t)n, 250000) > 0, "nothing comes");
        for (int i = 0; i < n; i++) {
            if (!p[i].revents)
                continue;
            const ssize_t k = recv(p[i].fd, into, sizeof into, 0);
            if (k > 0) {
                bytes += (size_t)k;
                continue;
            }
            close(p[i].fd);
            p[i].fd = -1;
            open--;
        }
    }
    return bytes;
}

typedef struct reading {
    double steps, step, eval, cpu[2];
} reading;

static reading read_all(const rig_server *s)
{
    reading r = {rig_metric(s->port, "steps_total"),
                 rig_metric(s->port, "step_seconds_total"),
                 rig_metric(s->port, "eval_seconds_total"),
                 {0}};
    cpu_seconds(s->pid, r.cpu);
    return r;
}

typedef struct cost {
    double draw, talk; /* seconds of a step */
} cost;

static cost measure(const rig_server *s, const char *how)
{
    struct pollfd p[N];
    const reading a = read_all(s);
    for (int i = 0; i < N; i++) {
        char body[300], *text;
        snprintf(body, sizeof body,
                 "{\"prompt\":[%d],\"max_tokens\":%d,\"ignore_eos\":true,\"seed\":%d,%s,"
                 "\"stream\":true}",
                 300 + i, TOKENS, i, how);
        text = rig_request("POST", "/v1/completions", "Connection: close\r\n", body);
        p[i] = (struct pollfd){.fd = rig_connect(s->port), .events = POLLIN};
        RIG_CHECK(p[i].fd >= 0 && rig_send(p[i].fd, text, strlen(text)), "cannot ask");
        free(text);
    }
    const size_t bytes = drain(p, N);
    const reading b = read_all(s);
    const double steps = b.steps - a.steps, eval = (b.eval - a.eval) / steps,
                 per_step = N * TOKENS / steps;
    const cost c = {(b.step - a.step) / steps - eval, (b.cpu[1] - a.cpu[1]) / steps};
    printf(
        "%s: %.0f steps of %.1f tokens, %.0f bytes a token; by one thread sampling and scheduling "
        "%.2f ms a step (the model %.2f ms); HTTP and JSON %.2f ms\n",
        how, steps, per_step, (double)bytes / (N * TOKENS), c.draw * 1e3, eval * 1e3, c.talk * 1e3);
    RIG_CHECK(bytes > N * 100 && per_step > N / 2, "not what was asked for");
    return c;
}

int main(int argc, char **argv)
{
    RIG_CHECK(argc == 2, "serve_overhead MODEL");
    rig_server s = rig_server_start_as(getenv("OCT_TEST_OCTET"), argv[1],
                                       "-t 1 -c 256 --parallel 32 --queue 32");
    RIG_CHECK(s.port && rig_ready(s.port), "no server");
    const cost least = measure(&s, "\"temperature\":0"),
               most = measure(&s, "\"top_p\":0.95,\"logprobs\":2");
    const double all = least.draw + (most.draw - least.draw) / N + most.talk;
    printf("%.2f ms are %.2f %% of a step of Grok-1 on paper, %.0f ms\n", all * 1e3,
           100 * all / STEP, STEP * 1e3);
    const int code = rig_server_end(&s, SIGTERM);
    return code == 143 && all <= SHARE * STEP ? 0 : 1;
}

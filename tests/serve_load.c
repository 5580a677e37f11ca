/* serve_load.c: many clients of one server, and the promise that none of them can tell: what a
 * request is given is what it is given alone, by a process that has done nothing else. From one
 * seed come arrivals, prompts with common beginnings, lengths, ways to draw, streams, and clients
 * that leave before, in and after their answer begins.
 *
 *     serve_load N AT_ONCE SEED MODEL COMMAND ...    COMMAND serves MODEL, say under mpirun
 *
 * OCT_TEST_ALONE, or else OCT_TEST_OCTET, is the program that answers alone. Exit code 0: all
 * held. */
#include <pthread.h>

#include "rig.h"
#include "serve_rig.h"

enum { MAX_REQUESTS = 4096, MAX_CHOICES = 4, PREFIX_TOKENS = 290 };

typedef enum fate {
    FINISH,
    LEAVE_EARLY, /* after a while, whatever has come */
    LEAVE_AFTER  /* the first bytes of the answer */
} fate;

typedef struct job {
    char *body;
    const char *path;
    bool stream;
    fate fate;
    double wait, patience; /* before it is sent; until it leaves */
    char *given;           /* what the answer says, without ids and times; NULL: it left */
} job;

static job jobs[MAX_REQUESTS];
static int64_t n_jobs, next_job, n_retries;
static int port;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- requests ------------------------------------------------------------------------------- */

static void put(char **text, const char *fmt, ...)
{
    char *more = NULL, *all = NULL;
    va_list ap;
    va_start(ap, fmt);
    RIG_CHECK(vasprintf(&more, fmt, ap) >= 0, "memory");
    va_end(ap);
    RIG_CHECK(asprintf(&all, "%s%s", *text ? *text : "", more) >= 0, "memory");
    free(more);
    free(*text);
    *text = all;
}

static void put_prompt(char **b, rig_rng *r, bool chat)
{
    static const char *const words[] = {"the king ", "of Judah ",      "said ",
                                        "\\n",       "In those days ", "and \xc3\xa9t\xc3\xa9 ",
                                        "hacker: ",  "shall "};
    const int64_t common = rig_int(r, 0, 5), n = rig_int(r, 1, 24);
    if (chat) {
        put(b, "\"messages\":[{\"role\":\"system\",\"content\":\"");
        for (int64_t i = 0; i < (common < 3 ? 60 : 2); i++)
            put(b, "%s", words[(common + i) % 8]);
        put(b, "\"},{\"role\":\"user\",\"content\":\"");
        for (int64_t i = 0; i < n; i++)
            put(b, "%s", words[rig_int(r, 0, 7)]);
        put(b, "\"}]");
        return;
    }
    if (rig_int(r, 0, 1)) {
        put(b, "\"prompt\":\"x");
        for (int64_t i = 0; i < n; i++)
            put(b, "%s", words[rig_int(r, 0, 7)]);
        put(b, "\"");
        return;
    }
    put(b, "\"prompt\":[%lld", (long long)(300 + common));
    const int64_t shared = common < 4 ? rig_int(r, 1, PREFIX_TOKENS) : 0;
    for (int64_t i = 0; i < shared; i++)
        put(b, ",%lld", (long long)(400 + (i * (common + 3)) % 3000));
    for (int64_t i = 0; i < n; i++)
        put(b, ",%lld", (long long)rig_int(r, 3, 4000));
    put(b, "]");
}

static void put_sampling(char **b, rig_rng *r)
{
    put(b, ",\"seed\":%lld", (long long)rig_int(r, 0, 1000000));
    put(b, ",\"temperature\":%.1f", (double)rig_int(r, 0, 3) * 0.5);
    if (rig_int(r, 0, 3) == 0)
        put(b, ",\"top_p\":0.9");
    if (rig_int(r, 0, 3) == 0)
        put(b, ",\"top_k\":%lld", (long long)rig_int(r, 1, 50));
    if (rig_int(r, 0, 5) == 0)
        put(b, ",\"min_p\":0.05");
    if (rig_int(r, 0, 3) == 0)
        put(b, ",\"frequency_penalty\":0.4,\"presence_penalty\":0.2");
    if (rig_int(r, 0, 5) == 0)
        put(b, ",\"logit_bias\":{\"263\":-100,\"%lld\":3}", (long long)rig_int(r, 3, 4000));
    if (rig_int(r, 0, 2) == 0)
        put(b, ",\"stop\":[\" the\",\"ing\"]");
    if (rig_int(r, 0, 3) == 0)
        put(b, ",\"n\":%lld", (long long)rig_int(r, 2, MAX_CHOICES));
}

static void make_job(job *j, uint64_t seed, int64_t k)
{
    rig_rng r = {seed * 1000003 + (uint64_t)k};
    const bool chat = rig_int(&r, 0, 3) == 0;
    j->path = chat ? "/v1/chat/completions" : "/v1/completions";
    put(&j->body, "{");
    put_prompt(&j->body, &r, chat);
    put_sampling(&j->body, &r);
    put(&j->body, ",\"max_tokens\":%lld", (long long)rig_int(&r, 1, rig_int(&r, 0, 7) ? 40 : 150));
    if (rig_int(&r, 0, 3) == 0)
        put(&j->body, chat ? ",\"logprobs\":true,\"top_logprobs\":2" : ",\"logprobs\":2");
    if (!chat && rig_int(&r, 0, 9) == 0)
        put(&j->body, ",\"echo\":true");
    j->stream = rig_int(&r, 0, 1);
    put(&j->body, j->stream ? ",\"stream\":true}" : "}");
    const int64_t what = rig_int(&r, 0, 9);
    j->fate = what < 8 ? FINISH : what == 8 ? LEAVE_EARLY : LEAVE_AFTER;
    j->wait = 0.001 * (double)rig_int(&r, 0, 20);
    j->patience = 0.001 * (double)rig_int(&r, 0, 60);
}

/* ---- what an answer says -------------------------------------------------------------------- */

/* Of all choices, whichever way they came: text, reason, probabilities. */
typedef struct said {
    char *text[MAX_CHOICES];
    const char *finish[MAX_CHOICES];
    json_t *logprobs[MAX_CHOICES];
} said;

static void hear_choice(said *s, const json_t *c)
{
    const int64_t i = json_integer_value(json_object_get(c, "index"));
    RIG_CHECK(i >= 0 && i < MAX_CHOICES, "choice %lld", (long long)i);
    const json_t *message =
        json_object_get(c, "message") ? json_object_get(c, "message") : json_object_get(c, "delta");
    const char *piece = json_string_value(message ? json_object_get(message, "content")
                                                  : json_object_get(c, "text"));
    const char *finish = json_string_value(json_object_get(c, "finish_reason"));
    json_t *lp = json_object_get(c, "logprobs"), *list, *v;
    const char *key;
    size_t k;
    if (piece)
        put(&s->text[i], "%s", piece);
    if (finish)
        s->finish[i] = strcmp(finish, "stop") == 0 ? "stop" : "length";
    if (!s->logprobs[i])
        s->logprobs[i] = json_object();
    json_object_foreach(lp, key, list)
    {
        json_t *all = json_object_get(s->logprobs[i], key);
        if (!all) {
            all = json_array();
            json_object_set_new(s->logprobs[i], key, all);
        }
        json_array_foreach(list, k, v) json_array_append(all, v);
    }
}

static void hear_all(said *s, const json_t *json)
{
    const json_t *choices = json_object_get(json, "choices"), *c;
    size_t i;
    json_array_foreach(choices, i, c) hear_choice(s, c);
}

/* As one text; NULL: it is not complete. */
static char *tell(said *s)
{
    char *out = NULL;
    put(&out, "%s", "");
    for (int i = 0; i < MAX_CHOICES; i++) {
        if (!s->logprobs[i])
            continue;
        char *lp = json_dumps(s->logprobs[i], JSON_COMPACT);
        if (!s->finish[i]) {
            free(out);
            out = NULL;
            free(lp);
            break;
        }
        put(&out, "%d %s %s %s\n", i, s->finish[i], s->text[i] ? s->text[i] : "", lp);
        free(lp);
    }
    for (int i = 0; i < MAX_CHOICES; i++) {
        json_decref(s->logprobs[i]);
        free(s->text[i]);
    }
    return out;
}

static char *read_answer(const job *j, const rig_reply *r)
{
    said s = {0};
    if (!r->complete)
        return NULL;
    if (!j->stream) {
        hear_all(&s, r->json);
        return tell(&s);
    }
    char *rest = r->body;
    bool done = false;
    for (char *end; (end = strstr(rest, "\n\n")) != NULL; rest = end + 2) {
        *end = 0;
        done |= strcmp(rest, "data: [DONE]") == 0;
        json_t *json = strncmp(rest, "data: ", 6) == 0 ? json_loads(rest + 6, 0, NULL) : NULL;
        RIG_CHECK(!json_object_get(json, "error"), "%s", rest);
        hear_all(&s, json);
        json_decref(json);
    }
    char *told = tell(&s);
    RIG_CHECK(done && told, "a stream without end: %s", j->body);
    return told;
}

/* ---- clients -------------------------------------------------------------------------------- */

/* Asks once; false: the queue was full. */
static bool ask(job *j, int at, fate f)
{
    rig_stream s = {.fd = rig_connect(at)};
    RIG_CHECK(s.fd >= 0, "cannot connect");
    char *text = rig_request("POST", j->path, "", j->body);
    RIG_CHECK(rig_send(s.fd, text, strlen(text)), "cannot send");
    free(text);
    bool full = false;
    if (f == LEAVE_EARLY) {
        rig_sleep(j->patience);
    } else if (f == LEAVE_AFTER) {
        rig_more(&s);
        rig_sleep(j->patience / 4);
    } else {
        rig_reply r = rig_read_reply(&s, false);
        full = r.status == 429;
        RIG_CHECK(full || r.status == 200, "%d: %s: %s", r.status, r.body, j->body);
        if (!full) {
            j->given = read_answer(j, &r);
            RIG_CHECK(j->given, "no whole answer: %s: %s", j->body, r.body);
        }
        rig_reply_free(&r);
    }
    close(s.fd);
    free(s.text);
    return !full;
}

static void *client(void *ctx)
{
    (void)ctx;
    for (;;) {
        pthread_mutex_lock(&lock);
        const int64_t k = next_job++;
        pthread_mutex_unlock(&lock);
        if (k >= n_jobs)
            return NULL;
        rig_sleep(jobs[k].wait);
        while (!ask(&jobs[k], port, jobs[k].fate)) {
            pthread_mutex_lock(&lock);
            n_retries++;
            pthread_mutex_unlock(&lock);
            rig_sleep(0.02);
        }
    }
}

/* ---- alone ---------------------------------------------------------------------------------- */

static int64_t next_alone, n_compared, n_different;
static const char *model;

static void compare(job *j)
{
    const char *other = getenv("OCT_TEST_ALONE"); /* one that no sanitizer slows down */
    rig_server s = rig_server_start_as(other ? other : getenv("OCT_TEST_OCTET"), model,
                                       "-c 512 --template plain --parallel 4 -t 1");
    RIG_CHECK(s.port && rig_ready(s.port), "the server that answers alone");
    char *among = j->given;
    j->given = NULL;
    RIG_CHECK(ask(j, s.port, FINISH), "429 alone");
    const bool same = strcmp(among, j->given) == 0;
    if (!same)
        fprintf(stderr, "differs: %s\namong others: %s\nalone: %s\n", j->body, among, j->given);
    free(among);
    RIG_CHECK(rig_server_end(&s, SIGTERM) == 143, "exit code");
    pthread_mutex_lock(&lock);
    n_compared++;
    n_different += !same;
    pthread_mutex_unlock(&lock);
}

static void *comparer(void *ctx)
{
    (void)ctx;
    for (;;) {
        pthread_mutex_lock(&lock);
        const int64_t k = next_alone++;
        pthread_mutex_unlock(&lock);
        if (k >= n_jobs)
            return NULL;
        if (jobs[k].given)
            compare(&jobs[k]);
    }
}

static void run_threads(int n, void *(*fn)(void *))
{
    pthread_t threads[256];
    RIG_CHECK(n <= 256, "threads");
    for (int i = 0; i < n; i++)
        RIG_CHECK(pthread_create(&threads[i], NULL, fn, NULL) == 0, "thread");
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    RIG_CHECK(argc > 5, "serve_load N AT_ONCE SEED MODEL COMMAND ...");
    n_jobs = atoll(argv[1]);
    RIG_CHECK(n_jobs <= MAX_REQUESTS, "requests");
    model = argv[4];
    for (int64_t k = 0; k < n_jobs; k++)
        make_job(&jobs[k], strtoull(argv[3], NULL, 0), k);
    rig_server s = rig_server_spawn(argv + 5);
    if (!s.port) {
        char *log = rig_read_file(s.log);
        fprintf(stderr, "the server did not start: %s\n", log);
        free(log);
        return 1;
    }
    port = s.port;
    RIG_CHECK(rig_ready(port), "not ready");
    const double start = rig_now();
    run_threads(atoi(argv[2]), client);
    const double seconds = rig_now() - start;
    /* Nobody is left, and nothing of theirs. */
    bool good = rig_metric_becomes(port, "requests_active", 0, 150) &&
                rig_metric_becomes(port, "texts_running", 0, 150) &&
                rig_metric_becomes(port, "requests_waiting", 0, 150) &&
                rig_metric_becomes(port, "kv_pages{state=\"used\"}", 0, 150);
    printf("%lld requests, %s at once, %.1f s, %lld told to come again, %g evictions, %g tokens "
           "reused, %g texts cancelled\n",
           (long long)n_jobs, argv[2], seconds, (long long)n_retries,
           rig_metric(port, "evictions_total"), rig_metric(port, "cached_prompt_tokens_total"),
           rig_metric(port, "texts_ended_total{reason=\"cancelled\"}"));
    const int code = rig_server_end(&s, SIGTERM);
    good &= code == 143 || (strcmp(argv[5], "mpirun") == 0 && code != 0);
    run_threads(2, comparer);
    printf("%lld answers compared with those of fresh processes, %lld differ; exit code %d\n",
           (long long)n_compared, (long long)n_different, code);
    return good && n_different == 0 && n_compared > 0 ? 0 : 1;
}

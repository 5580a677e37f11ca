/* test_serve_net.c: `octet serve` among clients that leave, wait, flood and pretend: who is
 * refused, who is told what, and what is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"
#include "serve_api_rig.h"

#define LONG "{\"prompt\":\"In the beginning\",\"max_tokens\":900,\"ignore_eos\":true"
#define CANCELLED "texts_ended_total{reason=\"cancelled\"}"

/* ---- clients that leave --------------------------------------------------------------------- */

/* In its stream, before its first token and in the queue: what it has is given back at once, and
 * others lose nothing. One text runs at a time. */
static void test_gone(void **state)
{
    (void)state;
    rig_server s = start_server("--parallel 1 --queue 8 -c 1024");
    rig_stream running = open_stream(s.port, "", LONG ",\"stream\":true}");
    assert_true(read_until(&running, "\"text\":"));
    rig_stream queued = open_stream(s.port, "", LONG "}");
    rig_stream other = open_stream(s.port, "",
                                   "{\"prompt\":\"In the beginning\",\"max_tokens\":3,"
                                   "\"temperature\":0}");
    assert_true(rig_metric_becomes(s.port, "requests_waiting", 2, 20));
    close_stream(&queued);
    assert_true(rig_metric_becomes(s.port, "requests_waiting", 1, 20));
    assert_true(rig_metric(s.port, CANCELLED) == 1);
    close_stream(&running);
    rig_reply r = rig_read_reply(&other, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(text_at(r.json, "choices.0.text"), " of the reign");
    rig_reply_free(&r);
    close_stream(&other);
    nothing_left(s.port);
    assert_true(rig_metric(s.port, CANCELLED) == 2);
    assert_true(rig_metric(s.port, "clients_gone_total") == 2);
    assert_true(rig_metric(s.port, "decode_tokens_total") < 850); /* it was not finished */
    /* In the middle of a long prompt, of 100 steps. */
    char prompt[6000] = "{\"prompt\":[300";
    for (int i = 0; i < 1000; i++)
        snprintf(prompt + strlen(prompt), sizeof prompt - strlen(prompt), ",%d", 301 + i);
    strcat(prompt, "],\"max_tokens\":3}");
    rig_server_end(&s, SIGTERM);
    s = start_server("--parallel 1 -c 1024 --chunk 4");
    rig_stream prefill = open_stream(s.port, "", prompt);
    for (double end = rig_now() + 20; rig_now() < end && rig_metric(s.port, "steps_total") < 3;)
        ;
    close_stream(&prefill);
    nothing_left(s.port);
    assert_true(rig_metric(s.port, CANCELLED) == 1);
    assert_true(rig_metric(s.port, "prefill_tokens_total") < 1000);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* One that does not read, beside one that does: the server goes on, keeps little for it, and gives
 * up on it after the timeout. */
static void test_slow_reader(void **state)
{
    (void)state;
    rig_server s = start_server("-c 1024 --timeout 2 --parallel 8");
    rig_stream slow[4];
    int size = 4096;
    for (int i = 0; i < 4; i++) {
        slow[i] = (rig_stream){.fd = socket(AF_INET, SOCK_STREAM, 0)};
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s.port)};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        setsockopt(slow[i].fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
        assert_int_equal(connect(slow[i].fd, (struct sockaddr *)&to, sizeof to), 0);
        char *text = rig_request("POST", COMPLETE, "",
                                 "{\"prompt\":[300,301],\"max_tokens\":1000,\"ignore_eos\":true,"
                                 "\"n\":2,\"stream\":true,\"logprobs\":20}");
        assert_true(rig_send(slow[i].fd, text, strlen(text)));
        free(text);
    }
    rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", "{\"prompt\":\"x\",\"max_tokens\":100}");
    assert_int_equal(r.status, 200);
    rig_reply_free(&r);
    /* Each would have some 4 MB by now; the system's buffers take a part. */
    for (double end = rig_now() + 60; rig_metric(s.port, "clients_gone_total") < 4;)
        assert_true(rig_now() < end);
    assert_true(rig_metric(s.port, "slow_readers_total") >= 4);
    for (int i = 0; i < 4; i++)
        close(slow[i].fd);
    nothing_left(s.port);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* A slow reader who does read gets all of the text, in fewer and longer pieces. */
static void test_late_reader(void **state)
{
    (void)state;
    rig_server s = start_server("-c 1024 --parallel 8");
    const char *body = "{\"prompt\":[300,301],\"max_tokens\":1000,\"ignore_eos\":true,\"seed\":4,"
                       "\"n\":4,\"logprobs\":20,\"stream\":%s}";
    char a[400], b[400];
    snprintf(a, sizeof a, body, "true");
    snprintf(b, sizeof b, body, "false");
    rig_stream late = open_stream(s.port, "", a);
    assert_true(rig_metric_becomes(s.port, "texts_ended_total{reason=\"length\"}", 4, 250));
    rig_reply whole = rig_ask(s.port, "POST", COMPLETE, "", b);
    rig_reply streamed = rig_read_reply(&late, false);
    assert_int_equal(whole.status, 200);
    assert_true(streamed.complete);
    heard h = hear(&streamed);
    assert_string_equal(h.text, text_at(whole.json, "choices.0.text"));
    assert_true(json_equal(h.logprobs, at(whole.json, "choices.0.logprobs.token_logprobs")));
    assert_true(rig_metric(s.port, "slow_readers_total") > 0);
    heard_free(&h);
    rig_reply_free(&whole);
    rig_reply_free(&streamed);
    close_stream(&late);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* ---- too many ------------------------------------------------------------------------------- */

static void test_queue(void **state)
{
    (void)state;
    rig_server s = start_server("--parallel 1 --queue 1 -c 1024 --keep-alive 1");
    rig_stream running = open_stream(s.port, "", LONG ",\"stream\":true}");
    assert_true(read_until(&running, "\"text\":"));
    rig_stream waiting = open_stream(s.port, "", LONG ",\"stream\":true}");
    assert_true(rig_metric_becomes(s.port, "requests_waiting", 1, 20));
    rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", "{\"prompt\":\"x\"}");
    char *retry = rig_header(&r, "Retry-After");
    assert_int_equal(r.status, 429);
    assert_non_null(retry);
    assert_true(atoi(retry) >= 1);
    assert_string_equal(text_at(r.json, "error.type"), "rate_limit_error");
    assert_string_equal(text_at(r.json, "error.code"), "queue_full");
    free(retry);
    rig_reply_free(&r);
    close_stream(&running);
    close_stream(&waiting);
    nothing_left(s.port);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* A stream that waits gets a comment; one that is evaluated can have its progress as chunks. */
static void test_keep_alive(void **state)
{
    (void)state;
    rig_server s = start_server("--parallel 1 -c 1024 --keep-alive 1 --chunk 8");
    char body[9000] = "{\"max_tokens\":1,\"stream\":true,\"return_progress\":true,\"prompt\":[300";
    for (int i = 0; i < 1000; i++)
        snprintf(body + strlen(body), sizeof body - strlen(body), ",%d", 301 + i);
    strcat(body, "]}");
    rig_stream first = open_stream(s.port, "", body);
    rig_reply r = rig_read_reply(&first, false);
    int n = 0;
    for (const char *p = r.body; (p = strstr(p, "\"prompt_progress\":{\"total\":1001")); p++)
        n++;
    assert_in_range(n, 20, 200);
    assert_non_null(strstr(r.body, "\"processed\":1001"));
    rig_reply_free(&r);
    close_stream(&first);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
    /* 400 prompts of one text after the other, so that the last waits for seconds */
    s = start_server("--parallel 1 -c 1024 --keep-alive 1 --chunk 1 --queue 64");
    rig_stream many[12];
    for (int i = 0; i < 12; i++)
        many[i] = open_stream(s.port, "", LONG "}");
    rig_stream waits = open_stream(s.port, "", "{\"prompt\":\"x\",\"stream\":true}");
    assert_true(read_until(&waits, ": waiting in the queue\n\n"));
    close_stream(&waits);
    for (int i = 0; i < 12; i++)
        close_stream(&many[i]);
    nothing_left(s.port);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* However many connections there are, and whatever they do, /health answers. */
static void test_connections(void **state)
{
    enum { N = 200 };
    int fd[N], n_closed = 0;
    double worst = 0;
    (void)state;
    rig_server s = start_server("--connections 50 --timeout 60");
    for (int i = 0; i < N; i++) {
        fd[i] = rig_connect(s.port);
        assert_true(fd[i] >= 0);
        if (i % 2) /* some say a little */
            rig_send(fd[i], "POST / HTTP/1.1\r\nX: ", 20);
        const double start = rig_now();
        assert_int_equal(status_of(s.port, "GET", "/health", ""), 200);
        worst = rig_now() - start > worst ? rig_now() - start : worst;
    }
    printf("/health answers within %.1f ms\n", worst * 1e3);
    for (int i = 0; i < N; i++) {
        char c;
        n_closed += recv(fd[i], &c, 1, MSG_DONTWAIT) == 0;
        close(fd[i]);
    }
    assert_in_range(n_closed, N - 60, N - 20); /* the oldest had to go */
    rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", "{\"prompt\":\"x\",\"max_tokens\":1}");
    assert_int_equal(r.status, 200);
    rig_reply_free(&r);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* Headers a byte at a time, a body that never comes: closed after the timeout, however steady. */
static void test_slowloris(void **state)
{
    (void)state;
    rig_server s = start_server("--timeout 1");
    const char *starts[] = {"GET / HTTP/1.1\r\nX: y",
                            "POST " COMPLETE " HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"};
    for (int i = 0; i < 2; i++) {
        int fd = rig_connect(s.port);
        char c;
        rig_send(fd, starts[i], strlen(starts[i]));
        double end = rig_now() + 60;
        while (recv(fd, &c, 1, MSG_DONTWAIT) < 0 && rig_now() < end) {
            rig_send(fd, "z", 1);
            rig_sleep(0.1);
        }
        assert_true(rig_now() < end);
        close(fd);
    }
    assert_true(rig_metric(s.port, "connections_closed_total") >= 2);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* ---- what is no request --------------------------------------------------------------------- */

static void test_bodies(void **state)
{
    (void)state;
    rig_server s = start_server("--body 1");
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "3",
                                      "nul",
                                      "{\"prompt\":\"\\ud800\"}",
                                      "{\"prompt\":\"\xff\"}",
                                      "{\"prompt\":\"x\",}",
                                      "{\"prompt\":1e999}",
                                      "{\"seed\":99999999999999999999}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", bad[i]);
        assert_int_equal(r.status, 400);
        assert_string_equal(text_at(r.json, "error.type"), "invalid_request_error");
        rig_reply_free(&r);
    }
    enum { N = 400000 };
    static char deep[2 * N + 100];
    for (int kind = 0; kind < 3; kind++) { /* nested, wide, long */
        const int n = kind == 0 ? 100000 : N;
        strcpy(deep, "{\"prompt\":\"x\",\"other\":");
        char *p = deep + strlen(deep);
        for (int i = 0; i < n; i++)
            p += sprintf(p, "%s",
                         kind == 0   ? "["
                         : kind == 1 ? (i ? ",1" : "[1")
                         : i         ? "a"
                                     : "\"a");
        sprintf(p, "%s", kind == 2 ? "\"}" : "]}");
        rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", deep);
        assert_int_equal(r.status, kind == 0 ? 400 : 200);
        rig_reply_free(&r);
    }
    /* More than --body allows: refused whether it is said before or found out. */
    char *huge = malloc((3 << 20) + 1);
    memset(huge, ' ', 3 << 20);
    huge[3 << 20] = 0;
    rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", huge);
    assert_int_equal(r.status, 413);
    rig_reply_free(&r);
    free(huge);
    assert_int_equal(status_of(s.port, "GET", "/health", ""), 200);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* The reply to raw bytes, and whether the connection is closed after it. */
static int raw(int port, const char *text, bool *closed)
{
    rig_stream s = {.fd = rig_connect(port)};
    rig_send(s.fd, text, strlen(text));
    rig_reply r = rig_read_reply(&s, false);
    const int status = r.status;
    char c;
    struct timeval soon = {.tv_usec = 300000};
    setsockopt(s.fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    *closed = s.n == s.at && recv(s.fd, &c, 1, 0) == 0;
    rig_reply_free(&r);
    close_stream(&s);
    return status;
}

/* Bodies whose length two programs might read in two ways. */
static void test_framing(void **state)
{
    static const char *const bad[] = {
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
        "Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
        "Transfer-Encoding: xchunked\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 2\r\nHost: evil\r\n\r\n{}",
    };
    (void)state;
    rig_server s = start_server("");
    char text[400];
    bool closed;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "POST " COMPLETE " HTTP/1.1\r\nHost: localhost\r\n%s", bad[i]);
        const int status = raw(s.port, text, &closed);
        assert_true(status == 400 || status == 413); /* libevent's own refusal of some of them */
        assert_true(closed);
    }
    snprintf(text, sizeof text,
             "POST " COMPLETE " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
             "e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n");
    assert_int_equal(raw(s.port, text, &closed), 200);
    assert_false(closed);
    /* What is sent while an answer is made: the next request, on the same connection. */
    rig_stream two = {.fd = rig_connect(s.port)};
    char *a = rig_request("POST", COMPLETE, "", "{\"prompt\":\"x\",\"max_tokens\":50}"),
         *b = rig_request("GET", "/v1/models", "", NULL);
    rig_send(two.fd, a, strlen(a));
    rig_send(two.fd, b, strlen(b));
    rig_send(two.fd, a, strlen(a));
    for (int i = 0; i < 3; i++) {
        rig_reply r = rig_read_reply(&two, false);
        assert_int_equal(r.status, 200);
        assert_true((json_object_get(r.json, "choices") != NULL) == (i != 1));
        rig_reply_free(&r);
    }
    free(a);
    free(b);
    close_stream(&two);
    assert_int_equal(raw(s.port, "GET /health HTTP/1.0\r\n\r\n", &closed), 200);
    assert_true(closed);
    assert_int_equal(raw(s.port,
                         "POST " COMPLETE " HTTP/1.0\r\nContent-Length: 31\r\n\r\n"
                         "{\"prompt\":\"x\",  \"stream\": true}",
                         &closed),
                     200);
    assert_int_equal(raw(s.port, "\x16\x03\x01 is not HTTP\r\n\r\n", &closed), 400);
    assert_int_equal(status_of(s.port, "HEAD", "/health", ""), 200);
    assert_int_equal(status_of(s.port, "GET", "/nowhere", ""), 404);
    assert_int_equal(status_of(s.port, "GET", COMPLETE, ""), 405);
    assert_int_equal(status_of(s.port, "DELETE", "/health", ""), 405);
    assert_int_equal(status_of(s.port, "GET", "/", ""), 200);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* Bytes that are made up, or a request with some of them changed: the server outlives them. */
static void test_noise(void **state)
{
    (void)state;
    rig_rng rng = {rig_seed()};
    rig_server s = start_server("--template plain");
    static const char *const seeds[] = {
        "{\"prompt\":[1,2,[3]],\"n\":2,\"stop\":[\"a\",\"b\"],\"stream\":true,\"max_tokens\":2}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],"
        "\"max_tokens\":1,\"logprobs\":true,\"top_logprobs\":2}",
        "{\"prompt\":\"x\",\"logit_bias\":{\"5\":-100},\"logprobs\":1,\"echo\":true,"
        "\"max_tokens\":0}"};
    static const char *const paths[] = {COMPLETE, "/v1/chat/completions", "/tokenize",
                                        "/detokenize", "/apply-template"};
    for (int round = 0; round < 400; round++) {
        char body[400];
        snprintf(body, sizeof body, "%s", seeds[round % 3]);
        size_t n = strlen(body);
        for (int64_t k = rig_int(&rng, 1, 4); k > 0; k--)
            body[rig_int(&rng, 0, (int64_t)n - 1)] = rig_int(&rng, 0, 1)
                                                         ? (char)rig_int(&rng, 1, 255)
                                                         : "[]{}\",:0-e.tn"[rig_int(&rng, 0, 12)];
        char *text = rig_request("POST", paths[round % 5], "", body);
        n = strlen(text);
        if (round % 4 == 0) /* in the headers, too */
            text[rig_int(&rng, 0, (int64_t)n - 1)] = (char)rig_int(&rng, 1, 255);
        int fd = rig_connect(s.port);
        struct timeval soon = {.tv_usec = 200000};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        rig_send(fd, text, n);
        shutdown(fd, round % 7 ? SHUT_RDWR : SHUT_WR);
        while (recv(fd, body, sizeof body, 0) > 0)
            ;
        close(fd);
        free(text);
    }
    assert_int_equal(status_of(s.port, "GET", "/health", ""), 200);
    nothing_left(s.port);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* ---- who may ask ---------------------------------------------------------------------------- */

static int with_host(int port, const char *host, const char *more)
{
    char text[400];
    bool closed;
    snprintf(text, sizeof text, "GET /v1/models HTTP/1.1\r\nHost: %s\r\n%s\r\n", host, more);
    return raw(port, text, &closed);
}

static void test_hosts(void **state)
{
    (void)state;
    rig_server s =
        start_server("--allow-host octet.lan,other --allow-origin https://ui.example,http://b");
    static const char *const good[] = {"localhost",  "LOCALHOST:80",   "127.0.0.1:8080",
                                       "[::1]:8080", "octet.lan:8080", "other"},
                             *const bad[] = {"evil.example", "localhost.evil.example",
                                             "octet.lan.x", "127.0.0.1.evil.example", ""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(with_host(s.port, good[i], ""), 200);
    for (size_t i = 0; i < sizeof bad / sizeof *bad - 1; i++)
        assert_int_equal(with_host(s.port, bad[i], ""), 403);
    assert_int_equal(with_host(s.port, "localhost:9", "Origin: http://localhost:9\r\n"), 200);
    assert_int_equal(with_host(s.port, "localhost:9", "Origin: https://ui.example\r\n"), 200);
    assert_int_equal(with_host(s.port, "localhost:9", "Origin: http://localhost:10\r\n"), 403);
    assert_int_equal(with_host(s.port, "localhost:9", "Origin: https://evil.example\r\n"), 403);
    assert_int_equal(with_host(s.port, "localhost:9", "Origin: null\r\n"), 403);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* A browser's preflight has no key, and is answered; what it asks for then needs one. */
static void test_keys(void **state)
{
    char path[] = "/tmp/octet-key-XXXXXX", options[200];
    (void)state;
    int fd = mkstemp(path);
    assert_true(write(fd, "sesame\nmore\n", 12) == 12);
    close(fd);
    snprintf(options, sizeof options, "--allow-origin https://ui.example --api-key-file %s", path);
    rig_server s = rig_server_start_as(OCT_TEST_OCTET, model_path, options);
    assert_true(s.port > 0);
    for (double end = rig_now() + 60; status_of(s.port, "GET", "/health", "") != 200;)
        assert_true(rig_now() < end);
    static const char *const bad[] = {"", "Authorization: Bearer sesamE\r\n",
                                      "Authorization: Bearer sesame2\r\n",
                                      "Authorization: Bearer \r\n", "Authorization: sesame\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rig_reply r = rig_ask(s.port, "GET", "/v1/models", bad[i], NULL);
        assert_int_equal(r.status, 401);
        assert_string_equal(text_at(r.json, "error.code"), "invalid_api_key");
        rig_reply_free(&r);
        assert_int_equal(status_of(s.port, "GET", "/metrics", bad[i]), 401);
    }
    assert_int_equal(status_of(s.port, "GET", "/v1/models", "Authorization: Bearer sesame\r\n"),
                     200);
    assert_int_equal(status_of(s.port, "GET", "/health", ""), 200);
    rig_reply r = rig_ask(s.port, "OPTIONS", COMPLETE,
                          "Origin: https://ui.example\r\nAccess-Control-Request-Method: POST\r\n"
                          "Access-Control-Request-Headers: authorization,content-type\r\n",
                          NULL);
    char *origin = rig_header(&r, "Access-Control-Allow-Origin"),
         *allowed = rig_header(&r, "Access-Control-Allow-Headers");
    assert_int_equal(r.status, 204);
    assert_string_equal(origin, "https://ui.example");
    assert_non_null(strstr(allowed, "authorization"));
    free(origin);
    free(allowed);
    rig_reply_free(&r);
    assert_int_equal(status_of(s.port, "OPTIONS", COMPLETE, "Origin: https://evil.example\r\n"),
                     403);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
    unlink(path);
    /* Other addresses than this machine's own need a key, or the word for it. */
    s = rig_server_start_as(OCT_TEST_OCTET, model_path, "--host 0.0.0.0");
    assert_int_equal(s.port, 0);
    assert_int_equal(rig_server_end(&s, 0), 2);
    s = start_server("--host 0.0.0.0 --open");
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

static void test_unix(void **state)
{
    char path[] = "/tmp/octet-unix-XXXXXX", options[200];
    (void)state;
    assert_non_null(mkdtemp(path));
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s/s", path);
    snprintf(options, sizeof options, "--unix %s", to.sun_path);
    rig_server s = rig_server_start_as(OCT_TEST_OCTET, model_path, options);
    free(rig_await(&s, "listening at", 60));
    for (int i = 0; i < 3; i++) {
        rig_stream c = {.fd = socket(AF_UNIX, SOCK_STREAM, 0)};
        assert_int_equal(connect(c.fd, (struct sockaddr *)&to, sizeof to), 0);
        rig_send(c.fd, "GET /health HTTP/1.1\r\n\r\n", 24);
        rig_reply r = rig_read_reply(&c, false);
        assert_true(r.status == 200 || r.status == 503);
        rig_reply_free(&r);
        close_stream(&c);
    }
    /* A second server does not take it over; one after this has died does. */
    rig_server t = rig_server_start_as(OCT_TEST_OCTET, model_path, options);
    assert_int_equal(rig_server_end(&t, 0), 1);
    rig_server_end(&s, SIGKILL);
    s = rig_server_start_as(OCT_TEST_OCTET, model_path, options);
    free(rig_await(&s, "listening at", 60));
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
    assert_int_equal(access(to.sun_path, F_OK), -1);
    rmdir(path);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* A signal: streams are told, and it is over within two seconds; with --drain they may end
 * first. */
static void test_signals(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        rig_server s = start_server(round < 2 ? "-c 1024 --chunk 1 --parallel 4"
                                              : "-c 1024 --parallel 4 --drain 100");
        rig_stream a = open_stream(s.port, "", LONG ",\"stream\":true}"),
                   b = open_stream(s.port, "", LONG "}");
        assert_true(read_until(&a, "\"text\":"));
        if (round < 2)
            for (int i = 0; i < 3; i++) /* or the tiny model would be done */
                assert_true(rig_more(&a));
        kill(s.pid, round == 0 ? SIGINT : SIGTERM);
        const double start = rig_now();
        rig_reply x = rig_read_reply(&a, false), y = rig_read_reply(&b, false);
        if (round < 2) {
            assert_non_null(
                strstr(x.body, "data: {\"error\":{\"message\":\"the server is shutting"));
            assert_true(x.complete && y.status == 503);
            assert_string_equal(text_at(y.json, "error.code"), "shutting_down");
        } else {
            assert_non_null(strstr(x.body, "data: [DONE]"));
            assert_true(x.complete && y.status == 200);
        }
        rig_reply_free(&x);
        rig_reply_free(&y);
        assert_int_equal(rig_server_end(&s, 0), round == 0 ? 130 : 143);
        assert_true(round == 2 || rig_now() - start < 2.0);
        close_stream(&a);
        close_stream(&b);
    }
}

/* Alone, and among 15 others that come and go: the same bytes. */
static void test_among_others(void **state)
{
    (void)state;
    rig_server s = start_server("-c 1024 --parallel 16 --step-rows 24");
    rig_stream other[15];
    char body[300];
    char *alone = NULL;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; round && i < 15; i++) {
            snprintf(body, sizeof body,
                     "{\"prompt\":[%d,%d,400,401,402],\"max_tokens\":%d,\"seed\":%d,\"stream\":%s}",
                     300 + i, 500 + i * round, 40 + 20 * i, i, i % 2 ? "true" : "false");
            other[i] = open_stream(s.port, "", body);
        }
        rig_reply r = rig_ask(s.port, "POST", COMPLETE, "",
                              "{\"prompt\":\"In the beginning\",\"max_tokens\":200,\"seed\":77,"
                              "\"logprobs\":3}");
        assert_int_equal(r.status, 200);
        char *choices = json_dumps(at(r.json, "choices"), JSON_COMPACT);
        if (alone)
            assert_string_equal(choices, alone);
        else
            alone = strdup(choices);
        free(choices);
        rig_reply_free(&r);
        for (int i = 0; round && i < 15; i++)
            close_stream(&other[i]);
    }
    free(alone);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gone),         cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_late_reader),  cmocka_unit_test(test_queue),
        cmocka_unit_test(test_keep_alive),   cmocka_unit_test(test_connections),
        cmocka_unit_test(test_slowloris),    cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_framing),      cmocka_unit_test(test_noise),
        cmocka_unit_test(test_hosts),        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_unix),         cmocka_unit_test(test_signals),
        cmocka_unit_test(test_among_others),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_serve_limits.c: what `octet serve` holds and how long others wait, whatever clients do with
 * their connections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve_api_rig.h"

/* A pool of connections that a client keeps, as many as there may be: another client is served. */
static void test_pool(void **state)
{
    enum { N = 20 };
    rig_stream idle[N];
    (void)state;
    rig_server s = start_server("--connections 20");
    char *text = rig_request("GET", "/health", "", NULL);
    for (int i = 0; i < N; i++) {
        idle[i] = (rig_stream){.fd = rig_connect(s.port)};
        assert_true(rig_send(idle[i].fd, text, strlen(text)));
        rig_reply r = rig_read_reply(&idle[i], false);
        assert_int_equal(r.status, 200);
        rig_reply_free(&r);
    }
    for (int i = 0; i < N; i++) {
        rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", "{\"prompt\":\"x\",\"max_tokens\":1}");
        assert_int_equal(r.status, 200);
        rig_reply_free(&r);
    }
    for (int i = 0; i < N; i++)
        close_stream(&idle[i]);
    free(text);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

static rig_stream open_stalled(int port)
{
    return open_stream(port, "",
                       "{\"prompt\":[300,301],\"max_tokens\":1000,\"ignore_eos\":true,"
                       "\"n\":4,\"stream\":true,\"logprobs\":20}");
}

/* As many readers that take nothing as there may be connections: the first one gives way. */
static void test_stalled(void **state)
{
    enum { N = 3 };
    rig_stream stalled[N];
    (void)state;
    rig_server s = start_server("-c 1024 --connections 3 --parallel 8");
    for (int i = 0; i < N - 1; i++)
        stalled[i] = open_stalled(s.port);
    for (double end = rig_now() + 250; rig_metric(s.port, "slow_readers_total") < N - 1;) {
        assert_true(rig_now() < end);
        rig_sleep(0.05);
    }
    stalled[N - 1] = open_stalled(s.port);
    rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", "{\"prompt\":\"x\",\"max_tokens\":1}");
    assert_int_equal(r.status, 200);
    rig_reply_free(&r);
    assert_true(rig_metric(s.port, "clients_gone_total") >= 1);
    for (int i = 0; i < N; i++)
        close_stream(&stalled[i]);
    nothing_left(s.port);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

static long resident_kib(pid_t pid)
{
    char path[64], line[200];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        (void)sscanf(line, "VmRSS: %ld", &kib);
    fclose(f);
    return kib;
}

/* Bodies that never end, by length or in chunks; whole ones whose clients leave at once: what is
 * held of all of them is bounded. A single long one that --body allows is taken. */
static void test_held(void **state)
{
    enum { N = 60, PIECE = 1 << 16, PIECES = 60, BOUND = 180 << 10 };
    static char piece[PIECE + 16], head[200];
    int fd[N];
    (void)state;
    rig_server s = start_server("");
    const long before = resident_kib(s.pid);
    for (int kind = 0; kind < 3; kind++) {
        const int at = kind == 1 ? sprintf(piece, "%x\r\n", PIECE) : 0;
        memset(piece + at, ' ', PIECE);
        memcpy(piece + at + PIECE, "\r\n", 2);
        snprintf(head, sizeof head, "POST " COMPLETE " HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n",
                 kind == 0   ? "Content-Length: 4000000"
                 : kind == 1 ? "Transfer-Encoding: chunked"
                             : "Content-Length: 3932160");
        for (int i = 0; i < N; i++) {
            fd[i] = rig_connect(s.port);
            bool open = rig_send(fd[i], head, strlen(head));
            for (int k = 0; open && k < PIECES; k++)
                open = rig_send(fd[i], piece, (size_t)(at + PIECE) + (kind == 1 ? 2 : 0));
            if (kind == 2)
                close(fd[i]);
        }
        rig_metric(s.port, "ready"); /* all that has come is there */
        const long now = resident_kib(s.pid);
        printf("%ld KiB before, %ld KiB with bodies of kind %d\n", before, now, kind);
        if (!getenv("OCT_TEST_SANITIZE") || *getenv("OCT_TEST_SANITIZE") != '1')
            assert_true(now - before < BOUND);
        for (int i = 0; kind < 2 && i < N; i++)
            close(fd[i]);
        assert_true(rig_metric_becomes(s.port, "connections", 1, 60));
    }
    assert_true(rig_metric(s.port, "connections_closed_total") > 0);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
    s = start_server("--body 100");
    static const char start[] = "{\"prompt\":\"x\",\"max_tokens\":1";
    const size_t n = 80 << 20;
    char *body = malloc(n + 1);
    memset(body, ' ', n);
    memcpy(body, start, sizeof start - 1);
    strcpy(body + n - 1, "}");
    rig_reply r = rig_ask(s.port, "POST", COMPLETE, "", body);
    assert_int_equal(r.status, 200);
    rig_reply_free(&r);
    free(body);
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

/* While prompts are evaluated in long steps: half of all asks for /health take under 50 ms, on any
 * machine; how long the longest takes depends on who else uses it. */
static void test_health(void **state)
{
    enum { N = 8, ASKS = 40 };
    char tail[6000] = "", prompt[6100];
    rig_stream busy[N];
    double worst = 0;
    int n_slow = 0, n = 0;
    (void)state;
    rig_server s = start_server("--parallel 8 -c 1024 --chunk 1024 --step-rows 1024");
    for (int i = 0; i < 1000; i++)
        snprintf(tail + strlen(tail), sizeof tail - strlen(tail), ",%d", 301 + i);
    for (int i = 0; i < N; i++) { /* from the first token on others: nothing is reused */
        snprintf(prompt, sizeof prompt, "{\"max_tokens\":1,\"prompt\":[%d%s]}", 300 + i, tail);
        busy[i] = open_stream(s.port, "", prompt);
    }
    do {
        const double start = rig_now();
        assert_int_equal(status_of(s.port, "GET", "/health", ""), 200);
        const double took = rig_now() - start;
        worst = took > worst ? took : worst;
        n_slow += took > 0.05;
    } while (++n < ASKS || (n < 10 * ASKS && rig_metric(s.port, "requests_active") > 0));
    printf("/health in a prefill: %d asks, %d took more than 50 ms, the longest %.1f ms\n", n,
           n_slow, worst * 1e3);
    assert_true(2 * n_slow < n);
    for (int i = 0; i < N; i++) {
        rig_reply r = rig_read_reply(&busy[i], false);
        assert_int_equal(r.status, 200);
        assert_int_equal(int_at(r.json, "usage.prompt_tokens_details.cached_tokens"), 0);
        rig_reply_free(&r);
        close_stream(&busy[i]);
    }
    assert_int_equal(rig_server_end(&s, SIGTERM), 143);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_stalled),
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_health),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

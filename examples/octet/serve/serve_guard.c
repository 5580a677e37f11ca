/* serve_guard.c: requests that are refused before a route sees them: framing that two programs might
 * read in two ways, pages of other sites, missing keys. */
#include <ctype.h>
#include <event2/keyvalq_struct.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

#include "serve_server.h"

static const char *header(struct evhttp_request *req, const char *name)
{
    return evhttp_find_header(evhttp_request_get_input_headers(req), name);
}

/* ---- framing -------------------------------------------------------------------------------- */

/* evhttp reads the body by Content-Length, or by nothing, if an encoding is not exactly "chunked";
 * then what follows would be taken for the next request. The connection is closed. */
static bool good_framing(struct evhttp_request *req, oct_serve_fault *f)
{
    struct evkeyvalq *in = evhttp_request_get_input_headers(req);
    struct evkeyval *h;
    int n_encodings = 0, n_lengths = 0, n_hosts = 0;
    bool chunked = true, names = true;
    TAILQ_FOREACH(h, in, next)
    {
        const size_t n = strlen(h->key);
        names &= n > 0 && strcspn(h->key, " \t") == n;
        n_lengths += strcasecmp(h->key, "Content-Length") == 0;
        n_hosts += strcasecmp(h->key, "Host") == 0;
        if (strcasecmp(h->key, "Transfer-Encoding") == 0) {
            n_encodings++;
            chunked &= strcasecmp(h->value, "chunked") == 0;
        }
    }
    if (names && chunked && n_encodings <= 1 && n_lengths <= 1 && n_hosts <= 1 &&
        n_encodings + n_lengths <= 1)
        return true;
    evhttp_add_header(evhttp_request_get_output_headers(req), "Connection", "close");
    return oct_serve_refuse(f, 400, NULL, "",
                            "the length of the body cannot be told: expected Content-Length or "
                            "Transfer-Encoding: chunked, once");
}

/* ---- who asks ------------------------------------------------------------------------------- */

/* Whether a comma-separated list has a word; "*" is all. */
static bool listed(const char *list, const char *word, size_t n)
{
    while (list && *list) {
        const size_t k = strcspn(list, ",");
        if ((k == n && strncasecmp(list, word, n) == 0) || (k == 1 && *list == '*'))
            return true;
        list += k + (list[k] == ',');
    }
    return false;
}

/* Host without the port: bytes, [n]. */
static size_t host_name(const char *host)
{
    const char *end = *host == '[' ? strchr(host, ']') : NULL;
    return end ? (size_t)(end - host) + 1 : strcspn(host, ":");
}

static bool is_address(const char *host, size_t n)
{
    size_t i = 0;
    while (i < n && (isdigit((unsigned char)host[i]) || host[i] == '.'))
        i++;
    return i == n || *host == '[';
}

/* Names of other sites may be made to mean this machine, so that their pages can ask it (DNS
 * rebinding). Those pages have no key; addresses are no names. */
static bool good_host(const oct_serve_server *s, struct evhttp_request *req, oct_serve_fault *f)
{
    const oct_serve_config *c = s->config;
    const char *host = header(req, "Host");
    if (!host || c->key || c->unix_path)
        return true;
    const size_t n = host_name(host);
    if (listed("localhost", host, n) || is_address(host, n) || listed(c->host, host, n) ||
        listed(c->allow_hosts, host, n))
        return true;
    return oct_serve_refuse(f, 403, "host_not_allowed", "",
                            "Host: %.200s is not served here (--allow-host adds names)", host);
}

const char *oct_serve_origin(oct_serve_server *s, struct evhttp_request *req)
{
    const char *origin = header(req, "Origin");
    return origin && listed(s->config->allow_origins, origin, strlen(origin)) ? origin : NULL;
}

/* Pages of this server, and of --allow-origin. Programs send no Origin. */
static bool good_origin(oct_serve_server *s, struct evhttp_request *req, oct_serve_fault *f)
{
    const char *origin = header(req, "Origin"), *host = header(req, "Host");
    const char *name = origin ? strstr(origin, "://") : NULL;
    if (!origin || oct_serve_origin(s, req) || (name && host && strcasecmp(name + 3, host) == 0))
        return true;
    return oct_serve_refuse(f, 403, "origin_not_allowed", "",
                            "Origin: %.200s may not ask here (--allow-origin adds origins)",
                            origin);
}

/* Takes as long for every key of a length. */
static bool equal_keys(const char *a, const char *b)
{
    const size_t n = strlen(a), k = strlen(b);
    unsigned char different = n != k;
    for (size_t i = 0; i < k; i++)
        different |= (unsigned char)(a[i < n ? i : 0] ^ b[i]);
    return !different;
}

static bool good_key(const oct_serve_server *s, struct evhttp_request *req, oct_serve_fault *f)
{
    const char *given = header(req, "Authorization");
    if (!s->config->key)
        return true;
    if (given && strncasecmp(given, "Bearer ", 7) == 0) {
        given += 7;
        while (*given == ' ')
            given++;
        if (equal_keys(given, s->config->key))
            return true;
    }
    return oct_serve_refuse(f, 401, "invalid_api_key", "",
                            "a key is needed: Authorization: Bearer KEY");
}

bool oct_serve_guard(oct_serve_server *s, struct evhttp_request *req, bool needs_key,
                     oct_serve_fault *f)
{
    return good_framing(req, f) && good_host(s, req, f) && good_origin(s, req, f) &&
           (!needs_key || good_key(s, req, f));
}

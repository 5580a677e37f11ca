#include "watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/errqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

static const double BEAT_SECONDS = 0.2;
static const double SILENCE_SECONDS = 6;  /* after which a rank is lost */
static const double UNHEARD_SECONDS = 10; /* after which a rank that was never heard is told of */
static const double STALL_SECONDS = 2; /* this thread did not run: nothing can be said of others */
static const double QUIET_SECONDS = 3; /* after such a stall */
enum { REFUSALS = 2, LAST_SECONDS = 3 };
/* Of beat.leaving: what a rank does beside its work. LEAVING: it waits for the others in
 * MPI_Finalize, and goes on sending; TOLD: it has told of one that is lost; GONE: its last
 * packet. */
enum { LEAVING = 1, TOLD, GONE };

typedef struct beat {
    uint64_t key; /* the receiver's */
    int32_t from, leaving;
    int64_t layer;
} beat;

/* Each has a socket of its own, so that a host may lack either. */
enum { V4, V6, FAMILIES };
static const struct {
    sa_family_t number;
    int level, errors;
    socklen_t bytes;
} families[FAMILIES] = {
    {AF_INET, IPPROTO_IP, IP_RECVERR, sizeof(struct sockaddr_in)},
    {AF_INET6, IPPROTO_IPV6, IPV6_RECVERR, sizeof(struct sockaddr_in6)},
};

typedef struct peer {
    oct_watch_address address;
    oct_watch_place at; /* where its packets come from, once heard */
    bool heard, told;
    int leaving, refusals;
    int64_t layer;
    double last;
} peer;

struct oct_watch {
    int rank, size;
    int socket[FAMILIES], wake; /* -1: not open */
    uint64_t key;
    peer *peers; /* [size] */
    const _Atomic int64_t *layer;
    oct_watch_say *say;
    void *ctx;
    pthread_t thread;
    bool running;
    _Atomic bool stop;
    _Atomic int leaving;
    bool i_told, other_told;        /* of a rank that is lost */
    double started, checked, quiet; /* quiet: no judgement before */
};

/* ---- addresses ------------------------------------------------------------------------------ */

/* Of addresses that count; -1: others. Link-local ones need the name of an interface besides. */
static int family_of(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return V4;
    const struct sockaddr_in6 *v6 = (const void *)a;
    return a->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? V6 : -1;
}

static bool same_place(const oct_watch_place *a, const oct_watch_place *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    if (a->any.sa_family == AF_INET)
        return a->v4.sin_port == b->v4.sin_port && a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
    return a->v6.sin6_port == b->v6.sin6_port &&
           IN6_ARE_ADDR_EQUAL(&a->v6.sin6_addr, &b->v6.sin6_addr);
}

/* *at: where it is bound, to no address. -1, with the reason in errno, if it cannot be had. */
static int open_socket(int family, oct_watch_place *at)
{
    int on = 1, s = socket(families[family].number, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t n = families[family].bytes;
    memset(at, 0, sizeof *at);
    at->any.sa_family = families[family].number;
    if (s < 0)
        return -1;
    if ((family == V6 && setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
        bind(s, &at->any, n) != 0 ||
        setsockopt(s, families[family].level, families[family].errors, &on, sizeof on) != 0 ||
        getsockname(s, &at->any, &n) != 0) {
        int reason = errno;
        close(s);
        errno = reason;
        return -1;
    }
    return s;
}

/* Loopback comes first: it is the way to a rank on the same host. A packet that ends up at
 * another host with the same address (docker0) has the wrong key there. */
static void own_places(const oct_watch *w, const oct_watch_place bound[FAMILIES],
                       oct_watch_address *a)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0)
        return;
    for (int loopback = 1; loopback >= 0; loopback--)
        for (struct ifaddrs *i = list; i && a->n_places < OCT_WATCH_ADDRESSES; i = i->ifa_next) {
            int is_loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
            int family = i->ifa_addr ? family_of(i->ifa_addr) : -1;
            if (family < 0 || w->socket[family] < 0 || !(i->ifa_flags & IFF_UP) ||
                is_loopback != loopback)
                continue;
            oct_watch_place *p = &a->place[a->n_places++];
            *p = bound[family];
            if (family == V4)
                p->v4.sin_addr = ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr;
            else
                p->v6.sin6_addr =
                    ((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr;
        }
    freeifaddrs(list);
}

/* The number of this process's network namespace, and which running system it belongs to. */
static uint64_t network_of_self(void)
{
    struct stat st;
    char boot[40] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (fscanf(f, "%39s", boot) != 1)
            boot[0] = 0;
        fclose(f);
    }
    if (!boot[0] || stat("/proc/self/ns/net", &st) != 0)
        return 0;
    uint64_t hash = st.st_ino;
    for (const char *c = boot; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash ? hash : 1;
}

oct_status oct_watch_new(int rank, int size, oct_watch **out, oct_watch_address *mine,
                         oct_error *err)
{
    oct_watch *w = *out = calloc(1, sizeof *w);
    oct_watch_place bound[FAMILIES];
    memset(mine, 0, sizeof *mine);
    if (!w || !(w->peers = calloc((size_t)size, sizeof *w->peers))) {
        free(w);
        *out = NULL;
        return oct_fail(err, OCT_ERR_MEMORY, "watch: out of memory for %d ranks", size);
    }
    w->rank = rank;
    w->size = size;
    w->wake = eventfd(0, EFD_CLOEXEC);
    for (int f = 0; f < FAMILIES; f++)
        w->socket[f] = open_socket(f, &bound[f]);
    if (w->wake < 0 || (w->socket[V4] < 0 && w->socket[V6] < 0))
        return oct_fail(err, OCT_ERR_COMM, "watch: no UDP socket: %s", strerror(errno));
    if (getrandom(&mine->key, sizeof mine->key, 0) != sizeof mine->key)
        return oct_fail(err, OCT_ERR_COMM, "watch: no random number: %s", strerror(errno));
    gethostname(mine->host, sizeof mine->host - 1);
    own_places(w, bound, mine);
    mine->net = network_of_self();
    w->key = mine->key;
    return OCT_OK;
}

/* ---- sending and receiving ------------------------------------------------------------------ */

static void send_to(oct_watch *w, const peer *p, const oct_watch_place *to, int leaving)
{
    const beat b = {p->address.key, w->rank, w->i_told ? TOLD : leaving,
                    atomic_load_explicit(w->layer, memory_order_relaxed)};
    int f = family_of(&to->any);
    if (f < 0 || w->socket[f] < 0)
        return;
    /* A failure may be an earlier packet's: once more. */
    if (sendto(w->socket[f], &b, sizeof b, MSG_DONTWAIT, &to->any, families[f].bytes) < 0)
        (void)!sendto(w->socket[f], &b, sizeof b, MSG_DONTWAIT, &to->any, families[f].bytes);
}

static void send_beats(oct_watch *w)
{
    int leaving = atomic_load(&w->leaving);
    for (int r = 0; r < w->size; r++) {
        const peer *p = &w->peers[r];
        if (r == w->rank)
            continue;
        if (p->heard)
            send_to(w, p, &p->at, leaving);
        for (uint32_t i = 0; i < p->address.n_places && !p->heard; i++)
            send_to(w, p, &p->address.place[i], leaving);
    }
}

/* The kernel tells when there is no such socket any more: the process at the other end is gone. */
static void note_refusal(oct_watch *w, const oct_watch_place *to)
{
    for (int r = 0; r < w->size; r++)
        if (w->peers[r].heard && same_place(&w->peers[r].at, to))
            w->peers[r].refusals++;
}

static void read_errors(oct_watch *w, int family)
{
    for (;;) {
        union {
            struct cmsghdr head;
            char room[512];
        } control;
        beat b;
        oct_watch_place to;
        struct iovec v = {&b, sizeof b};
        struct msghdr m = {.msg_name = &to,
                           .msg_namelen = sizeof to,
                           .msg_iov = &v,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control};
        if (recvmsg(w->socket[family], &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
            return;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            struct sock_extended_err e;
            if (c->cmsg_level != families[family].level ||
                c->cmsg_type != families[family].errors || m.msg_namelen < families[family].bytes)
                continue;
            memcpy(&e, CMSG_DATA(c), sizeof e);
            if (e.ee_errno == ECONNREFUSED)
                note_refusal(w, &to);
        }
    }
}

static void read_beats(oct_watch *w, int family)
{
    for (int tries = 0; tries < 1000; tries++) {
        beat b;
        oct_watch_place from;
        socklen_t n = sizeof from;
        ssize_t got = recvfrom(w->socket[family], &b, sizeof b, MSG_DONTWAIT, &from.any, &n);
        if (got < 0 && errno == EAGAIN)
            break;
        if (got != (ssize_t)sizeof b || b.key != w->key || b.from < 0 || b.from >= w->size ||
            b.from == w->rank || n < families[family].bytes)
            continue;
        peer *p = &w->peers[b.from];
        p->at = from;
        p->heard = true;
        p->leaving = b.leaving > p->leaving ? b.leaving : p->leaving;
        w->other_told |= b.leaving == TOLD;
        p->layer = b.layer;
        p->last = oct_seconds();
        p->refusals = 0;
    }
    read_errors(w, family);
}

static void read_all(oct_watch *w)
{
    for (int f = 0; f < FAMILIES; f++)
        if (w->socket[f] >= 0)
            read_beats(w, f);
}

/* ---- judging -------------------------------------------------------------------------------- */

/* The lowest rank that is left speaks; the others give it a second to end the job. */
static void lose(oct_watch *w, int lost, const char *how)
{
    char text[OCT_ERROR_TEXT], where[48] = "outside the layers";
    const peer *p = &w->peers[lost];
    if (p->layer >= 0)
        snprintf(where, sizeof where, "in layer %lld", (long long)p->layer);
    snprintf(text, sizeof text, "rank %d on %s %s; it was last heard of %s; the job ends", lost,
             p->address.host, how, where);
    /* Whatever hangs from here on, this process ends, and not with 0. */
    signal(SIGALRM, SIG_DFL);
    alarm(LAST_SECONDS);
    for (int i = 0; i < 20 && !w->other_told && w->rank != (lost == 0 ? 1 : 0); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        read_all(w);
    }
    if (w->other_told) { /* it ends the job; this one has nothing to add */
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        _exit(1);
    }
    w->i_told = true;
    send_beats(w);
    w->say(w->ctx, true, text);
    _exit(1);
}

typedef struct warning {
    oct_watch_say *say;
    void *ctx;
    char text[OCT_ERROR_TEXT];
} warning;

static void *warn_thread(void *arg)
{
    warning *a = arg;
    a->say(a->ctx, false, a->text);
    free(a);
    return NULL;
}

/* Not on this thread: a stream that nobody reads would stop it. */
static void warn(const oct_watch *w, const char *text)
{
    pthread_t thread;
    warning *a = malloc(sizeof *a);
    if (!a)
        return;
    *a = (warning){.say = w->say, .ctx = w->ctx};
    snprintf(a->text, sizeof a->text, "%s", text);
    if (pthread_create(&thread, NULL, warn_thread, a) == 0)
        pthread_detach(thread);
    else
        free(a);
}

static void check(oct_watch *w, double t)
{
    double gap = t - w->checked;
    bool leaving = atomic_load(&w->leaving) != 0;
    w->checked = t;
    if (gap > STALL_SECONDS) /* if this rank was stopped, the others have told, and end the job */
        w->quiet = t + QUIET_SECONDS;
    for (int r = 0; r < w->size; r++) {
        peer *p = &w->peers[r];
        /* A process that has left is gone, which shows in its last packet, or where none
         * arrives. */
        if (r == w->rank || p->leaving > LEAVING || (p->leaving && p->refusals > 0))
            continue;
        if (t < w->quiet) {
            p->last = t;
            p->refusals = 0;
            continue;
        }
        if (p->heard && !leaving && p->refusals >= REFUSALS)
            lose(w, r, "has died");
        else if (p->heard && t - p->last > SILENCE_SECONDS)
            lose(w, r, "has stopped: not a sign of it for 6 s");
        /* Packets within one machine's network do arrive. */
        if (!p->heard && t - w->started > UNHEARD_SECONDS && p->address.net &&
            p->address.net == w->peers[w->rank].address.net)
            lose(w, r, "has stopped: not a sign of it since the start");
        if (!p->heard && !p->told && w->rank == 0 && t - w->started > UNHEARD_SECONDS) {
            char text[OCT_ERROR_TEXT];
            snprintf(text, sizeof text,
                     "rank %d on %s cannot be watched: UDP packets from it do not "
                     "reach rank 0 on %s; if it dies, the job may hang",
                     r, p->address.host, w->peers[0].address.host);
            p->told = true;
            warn(w, text);
        }
    }
}

static void *watch(void *arg)
{
    oct_watch *w = arg;
    for (double next = oct_seconds(); !atomic_load(&w->stop);) {
        double t = oct_seconds();
        if (t >= next) {
            read_all(w); /* what came while this thread did not run counts */
            send_beats(w);
            check(w, oct_seconds());
            next = oct_seconds() + BEAT_SECONDS;
        }
        struct pollfd f[3] = {{.fd = w->wake, .events = POLLIN},
                              {.fd = w->socket[V4], .events = POLLIN}, /* -1 is passed over */
                              {.fd = w->socket[V6], .events = POLLIN}};
        int ms = (int)((next - oct_seconds()) * 1000) + 1;
        if (poll(f, 3, ms > 0 ? ms : 0) <= 0)
            continue;
        if (f[1].revents || f[2].revents)
            read_all(w);
        uint64_t count;
        if (f[0].revents && read(w->wake, &count, sizeof count) > 0)
            next = 0;
    }
    if (atomic_load(&w->leaving))
        atomic_store(&w->leaving, GONE);
    send_beats(w);
    return NULL;
}

oct_status oct_watch_start(oct_watch *w, const oct_watch_address *all, const _Atomic int64_t *layer,
                           oct_watch_say *say, void *ctx, oct_error *err)
{
    w->layer = layer;
    w->say = say;
    w->ctx = ctx;
    w->started = w->checked = oct_seconds();
    for (int r = 0; r < w->size; r++) {
        w->peers[r] = (peer){.address = all[r], .layer = -1};
        w->peers[r].address.host[OCT_WATCH_HOST - 1] = 0;
        if (w->peers[r].address.n_places > OCT_WATCH_ADDRESSES)
            w->peers[r].address.n_places = OCT_WATCH_ADDRESSES;
    }
    sigset_t none, old; /* signals are for the program's own threads */
    sigfillset(&none);
    sigdelset(&none, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &none, &old);
    int e = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e != 0)
        return oct_fail(err, OCT_ERR_COMM, "watch: no thread: %s", strerror(e));
    w->running = true;
    return OCT_OK;
}

static void wake(oct_watch *w)
{
    uint64_t one = 1;
    (void)!write(w->wake, &one, sizeof one);
}

void oct_watch_leave(oct_watch *w)
{
    atomic_store(&w->leaving, LEAVING);
    wake(w);
}

void oct_watch_free(oct_watch *w)
{
    if (!w)
        return;
    atomic_store(&w->stop, true);
    if (w->running) {
        wake(w);
        pthread_join(w->thread, NULL);
    }
    for (int f = 0; f < FAMILIES; f++)
        if (w->socket[f] >= 0)
            close(w->socket[f]);
    if (w->wake >= 0)
        close(w->wake);
    free(w->peers);
    free(w);
}

/* relay MICROSECONDS INTERFACE...: an Ethernet switch whose frames arrive late, in place of a
 * bridge: for kernels that cannot delay by themselves. Runs until it is killed. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

/* A frame that the sender's kernel has not cut into packets yet, and its description. */
enum { PORTS = 16, FRAMES = 4096, FRAME_BYTES = 66000 };

typedef struct frame {
    int64_t due; /* nanoseconds */
    int port;    /* that it came from */
    size_t bytes;
    unsigned char *data; /* struct virtio_net_hdr, Ethernet header, ... */
} frame;

typedef struct port {
    int socket;
    unsigned char host[ETH_ALEN]; /* whose frames come from here */
} port;

static port ports[PORTS];
static frame queue[FRAMES];
static uint64_t n_in, n_out;
static int n_ports;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int die(const char *what, const char *name)
{
    fprintf(stderr, "relay: %s: %s: %s\n", name, what, strerror(errno));
    return 1;
}

static int open_port(const char *name)
{
    int on = 1, s = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    const struct sockaddr_ll at = {.sll_family = AF_PACKET,
                                   .sll_protocol = htons(ETH_P_ALL),
                                   .sll_ifindex = (int)if_nametoindex(name)};
    if (s < 0 || at.sll_ifindex == 0)
        return die("no such interface, or no right to open it", name);
    /* Checksums and lengths that a network card would fill in are passed on as they are. */
    if (setsockopt(s, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
        setsockopt(s, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
        bind(s, (const void *)&at, sizeof at) != 0)
        return die("cannot open it", name);
    ports[n_ports++].socket = s;
    return 0;
}

static void take(int from, int64_t delay)
{
    static unsigned char room[FRAME_BYTES];
    while (n_in - n_out < FRAMES) {
        ssize_t n = recv(ports[from].socket, room, sizeof room, MSG_DONTWAIT);
        if (n < 0)
            return;
        if ((size_t)n < sizeof(struct virtio_net_hdr) + ETH_HLEN)
            continue;
        const struct ether_header *e = (const void *)(room + sizeof(struct virtio_net_hdr));
        memcpy(ports[from].host, e->ether_shost, ETH_ALEN);
        frame *f = &queue[n_in++ % FRAMES];
        *f = (frame){now() + delay, from, (size_t)n, malloc((size_t)n)};
        if (f->data)
            memcpy(f->data, room, f->bytes);
    }
}

/* To the port of the host that it is for; to all others if none is. A lost frame is sent again. */
static void give(const frame *f)
{
    if (!f->data)
        return;
    const struct ether_header *e = (const void *)(f->data + sizeof(struct virtio_net_hdr));
    bool known = false;
    for (int pass = 0; pass < 2 && !known; pass++)
        for (int i = 0; i < n_ports; i++) {
            bool its = memcmp(ports[i].host, e->ether_dhost, ETH_ALEN) == 0;
            known |= its;
            if (i != f->port && (its || pass == 1))
                (void)!send(ports[i].socket, f->data, f->bytes, MSG_DONTWAIT);
        }
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc - 2 > PORTS) {
        fprintf(stderr, "usage: relay MICROSECONDS INTERFACE...\n");
        return 2;
    }
    int64_t delay = atol(argv[1]) * 1000;
    for (int i = 2; i < argc; i++)
        if (open_port(argv[i]) != 0)
            return 1;
    /* Late by the delay and no more: before others' work, where that is allowed. */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    for (;;) {
        struct pollfd f[PORTS];
        for (int i = 0; i < n_ports; i++)
            f[i] = (struct pollfd){.fd = ports[i].socket, .events = POLLIN};
        for (; n_out < n_in && queue[n_out % FRAMES].due <= now(); n_out++) {
            give(&queue[n_out % FRAMES]);
            free(queue[n_out % FRAMES].data);
        }
        int64_t wait = n_out < n_in ? queue[n_out % FRAMES].due - now() : 1000000000;
        wait = wait > 0 ? wait : 0;
        const struct timespec t = {wait / 1000000000, wait % 1000000000};
        if (ppoll(f, (nfds_t)n_ports, &t, NULL) > 0)
            for (int i = 0; i < n_ports; i++)
                if (f[i].revents)
                    take(i, delay);
    }
}

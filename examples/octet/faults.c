#include "faults.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { LINE_BYTES = 8192 };

static void (*clean_up)(void);
static atomic_flag taken = ATOMIC_FLAG_INIT;
static char line[LINE_BYTES]; /* of /proc/self/maps; of the one thread that has set the flag */

static uintptr_t hex_of(const char **at)
{
    uintptr_t v = 0;
    for (;; ++*at) {
        char c = **at;
        if (c >= '0' && c <= '9')
            v = 16 * v + (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = 16 * v + (uintptr_t)(c - 'a' + 10);
        else
            return v;
    }
}

/* The file of a line "from-to rwxp offset device inode   /path", if address is in it. */
static const char *file_of(const char *text, uintptr_t address)
{
    uintptr_t from = hex_of(&text), to;
    if (*text++ != '-')
        return NULL;
    to = hex_of(&text);
    if (address < from || address >= to)
        return NULL;
    const char *slash = strchr(text, '/');
    return slash ? slash : "";
}

/* Which file is mapped at an address; NULL: not known, "": none. No function that a handler must
 * not call. */
static const char *find_file(uintptr_t address)
{
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *found = NULL;
    size_t n = 0;
    for (char c; fd >= 0 && !found && read(fd, &c, 1) == 1;) {
        if (c != '\n') {
            if (n < sizeof line - 1)
                line[n++] = (unsigned char)c < ' ' || c == 127 ? '?' : c;
            continue;
        }
        line[n] = 0;
        n = 0;
        found = file_of(line, address);
    }
    return found; /* the file descriptor ends with the process */
}

static void say(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text));
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code <= 0) { /* another process has sent it */
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    while (atomic_flag_test_and_set(&taken)) /* another thread tells */
        pause();
    clean_up();
    const char *file = find_file((uintptr_t)info->si_addr);
    say("octet: ");
    if (file && *file) {
        say(file);
        say(": cannot be read any more: it has become shorter, or its disk fails\n");
    } else if (file) {
        say("a page of memory cannot be had (SIGBUS)\n");
    } else {
        say("a file in use cannot be read any more: it has become shorter, or its disk fails\n");
    }
    _exit(OCT_EXIT_ERROR);
}

void oct_faults_take(void (*cleanup)(void))
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_flags = SA_SIGINFO;
    sa.sa_sigaction = on_fault;
    clean_up = cleanup;
    sigaction(SIGBUS, &sa, NULL);
}

/* inherit.c: starts a program with what a shell cannot give it.
 *     inherit [WHAT ...] -- PROGRAM [ARG ...]
 * nonblock=FD    the stream does not block
 * small=FD       the pipe holds a page
 * blocked        all signals are blocked
 * pending=SIG    and this one has come
 * ignored=SIG    this signal is ignored */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int set(const char *what)
{
    const char *number = strchr(what, '=');
    int n = number ? atoi(number + 1) : 0;
    sigset_t all;
    sigfillset(&all);
    if (strncmp(what, "nonblock=", 9) == 0)
        return fcntl(n, F_SETFL, fcntl(n, F_GETFL) | O_NONBLOCK) == 0;
    if (strncmp(what, "small=", 6) == 0)
        return fcntl(n, F_SETPIPE_SZ, 4096) >= 0;
    if (strcmp(what, "blocked") == 0)
        return sigprocmask(SIG_SETMASK, &all, NULL) == 0;
    if (strncmp(what, "pending=", 8) == 0)
        return sigprocmask(SIG_SETMASK, &all, NULL) == 0 && raise(n) == 0;
    if (strncmp(what, "ignored=", 8) == 0)
        return signal(n, SIG_IGN) != SIG_ERR;
    return 0;
}

int main(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!set(argv[i])) {
            perror(argv[i]);
            return 126;
        }
    if (i + 1 >= argc)
        return 126;
    execvp(argv[i + 1], argv + i + 1);
    perror(argv[i + 1]);
    return 127;
}

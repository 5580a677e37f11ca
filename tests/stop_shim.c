/* stop_shim.c: preloaded into ranks, stops one of them (SIGSTOP) where it calls MPI:
 * OCT_STOP="RANK NAME N", NAME a function below: before its Nth call; or "after NAME". */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is called as `name` for the *calls-th time, or has returned from it. */
static void stop_at(const char *name, int calls)
{
    const char *wish = getenv("OCT_STOP"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char at[80];
    snprintf(at, sizeof at, "%s %s %d", rank ? rank : "", name, calls);
    if (wish && strcmp(wish, at) == 0)
        raise(SIGSTOP);
}

#define STOPS(name, parameters, arguments) \
    int name parameters                    \
    {                                      \
        static int calls;                  \
        stop_at(#name, ++calls);           \
        int code = P##name arguments;      \
        stop_at("after " #name, calls);    \
        return code;                       \
    }

STOPS(MPI_Init_thread, (int *argc, char ***argv, int wanted, int *got), (argc, argv, wanted, got))
STOPS(MPI_Comm_dup, (MPI_Comm from, MPI_Comm *to), (from, to))
STOPS(MPI_Comm_split_type, (MPI_Comm from, int type, int key, MPI_Info info, MPI_Comm *to),
      (from, type, key, info, to))
STOPS(MPI_Comm_free, (MPI_Comm * comm), (comm))
STOPS(MPI_Finalize, (void), ())

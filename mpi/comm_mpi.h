/* comm_mpi.h: the communicator of ggml-like/comm.h on MPI. It is a module of its own, so that only
 * programs that load it need an MPI library. */
#ifndef OCT_COMM_MPI_H
#define OCT_COMM_MPI_H

#include "comm.h"

/* Joins the job that a launcher (mpirun, srun) started; initialises MPI unless the program has done
 * so. Freeing the communicator finalises MPI if it was initialised here. To be used by one thread,
 * always the same. Vectors of fold may have any length below 2^29 floats per rank.
 *
 * Ranks that cannot reach each other within 30 s are an error. From then on a rank that dies or
 * stops ends the job within 10 s, whatever the others are doing; one that computes or waits for its
 * disk does not. say may be NULL; it is called on the lowest rank that is left. fatal: text names
 * the rank that was lost; when say returns, the job is aborted on all ranks. After an error *out
 * may be set all the same: freeing it ends the job. */
OCT_API OCT_MUST_CHECK oct_comm_open_fn oct_comm_mpi_open;

#endif

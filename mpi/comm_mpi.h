/* comm_mpi.h: the communicator of ggml-like/comm.h on MPI. It is a module of its own, so that only
 * programs that load it need an MPI library. */
#ifndef OCT_COMM_MPI_H
#define OCT_COMM_MPI_H

#include "comm.h"

/* Joins the job that a launcher (mpirun, srun) started; initialises MPI unless the program has done
 * so. Freeing the communicator finalises MPI if it was initialised here. To be used by one thread,
 * always the same. Vectors of fold may have any length below 2^31 floats per rank. */
OCT_API OCT_MUST_CHECK oct_status oct_comm_mpi_open(oct_comm **out, oct_error *err);

#endif

/* fake_cuda.h: a driver of NVIDIA's that is none: libcuda.so.1 with the driver's names, made for
 * tests. Its devices are memory of this process, its kernels those of Octet compiled for the host.
 *
 * It does nothing before it must: copies and kernels wait in their stream until somebody waits for
 * them, so that whoever reads too early reads old bytes, and who overwrites too early is found out.
 * Memory of devices cannot be touched by the program (it is mapped without rights while no
 * operation runs), is poisoned when it is given and gone when it is freed. Wrong use ends the
 * process with a line: handles that are none, contexts that are not current, copies beyond what was
 * allocated, calls that would stop the whole device while an evaluation runs.
 *
 * What it has is read from the environment, OCTET_FAKE_CUDA="name=value,..." :
 *     devices=N          [1]
 *     memory=A/B/...     bytes of each, with k, M or G; the last goes for the rest [1G]
 *     version=N          of CUDA [13000]
 *     capability=N       times ten [89]
 *     init=N             what cuInit returns [0]
 *     fail=N             the N-th call fails ...
 *     code=N             with this number [999] ...
 *     lasting            and all after it, but those that release
 *     failing=NAME       only calls of this name count for fail
 *     nopin              no memory of the host can be pinned
 *     order=lazy|eager|random   when operations run; random: some at every call, by seed [lazy]
 *     seed=N
 *     report=FILE        at the end of the process: what was called how often, and what is left
 * Anything that is left at the end is said on stderr, and the process ends with 99. */
#ifndef OCT_FAKE_CUDA_H
#define OCT_FAKE_CUDA_H

/* One kernel compiled for the host. */
typedef struct fake_kernel fake_kernel;
const fake_kernel *fake_kernel_find(const char *name);
unsigned fake_kernel_args_bytes(const fake_kernel *k);
/* 0, or an error's number of the driver. */
int fake_kernel_run(const fake_kernel *k, const unsigned grid[3], const unsigned block[3],
                    unsigned shared_bytes, void **args);

#endif

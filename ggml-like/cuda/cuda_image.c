/* cuda_image.c: the kernels as nvcc has made them for all GPUs, inside the library. */
#include "cuda_driver.h"

#ifdef OCT_CUDA_IMAGE /* path of the file */
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        "oct_cuda_image_first:\n"
        ".incbin \"" OCT_CUDA_IMAGE "\"\n"
        "oct_cuda_image_end:\n"
        ".popsection\n");
extern const unsigned char oct_cuda_image_first[], oct_cuda_image_end[];

const void *oct_cuda_image(size_t *bytes)
{
    *bytes = (size_t)(oct_cuda_image_end - oct_cuda_image_first);
    return oct_cuda_image_first;
}

int oct_cuda_image_version(void)
{
    return OCT_CUDA_VERSION;
}
#else
const void *oct_cuda_image(size_t *bytes)
{
    *bytes = 0;
    return NULL;
}

int oct_cuda_image_version(void)
{
    return 0;
}
#endif

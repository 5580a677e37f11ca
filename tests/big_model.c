/* big_model.c: writes a model file of more than 1 GiB with random weights: two layers of Grok-1's
 * build, narrower, for tests of where the pages of many ranks go. Usage: big_model OUT */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "convert.h"
#include "hparams.h"

int main(int argc, char **argv)
{
    oct_error err = {0};
    oct_grok_config c = oct_grok1_config(2, 8192);
    oct_synthetic_params p = {.config = &c, .seed = 1};
    c.d_model = 2048;
    c.d_ff = 8 * 1408;
    c.n_q_heads = 16;
    p.fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
    oct_status s = p.fd >= 0 ? oct_synthetic_write(&p, &err)
                             : oct_fail(&err, OCT_ERR_ARG, "usage: big_model OUT");
    if (s != OCT_OK)
        fprintf(stderr, "big_model: %s\n", err.text);
    if (p.fd >= 0 && close(p.fd) != 0)
        s = OCT_ERR_IO;
    return s == OCT_OK ? 0 : 1;
}

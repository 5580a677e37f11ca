/* big_model.c: writes a model file of more than 1 GiB with random weights: two layers of Grok-1's
 * build, narrower, for tests of where the pages of many ranks go. With N_VOCAB: one layer that is
 * narrow and a vocabulary, for what comes after a model. Usage: big_model OUT [N_VOCAB] */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "convert.h"
#include "hparams.h"

int main(int argc, char **argv)
{
    oct_error err = {0};
    oct_grok_config c = oct_grok1_config(argc < 3 ? 2 : 1, argc < 3 ? 8192 : atoll(argv[2]));
    oct_synthetic_params p = {.config = &c, .seed = 1};
    c.d_model = argc < 3 ? 2048 : 512;
    c.d_ff = argc < 3 ? 8 * 1408 : 1024;
    c.n_q_heads = argc < 3 ? 16 : 8;
    p.fd = argc == 2 || argc == 3 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
    oct_status s = p.fd >= 0 ? oct_synthetic_write(&p, &err)
                             : oct_fail(&err, OCT_ERR_ARG, "usage: big_model OUT [N_VOCAB]");
    if (s != OCT_OK)
        fprintf(stderr, "big_model: %s\n", err.text);
    if (p.fd >= 0 && close(p.fd) != 0)
        s = OCT_ERR_IO;
    return s == OCT_OK ? 0 : 1;
}

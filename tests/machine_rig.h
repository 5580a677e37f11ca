/* machine_rig.h: machines that are not there; included after machine.h and cmocka.h. */
#ifndef OCT_MACHINE_RIG_H
#define OCT_MACHINE_RIG_H

/* topology: see oct_machine_load; NULL: NULL, which sessions take for this machine. To be freed. */
static inline oct_machine *machine_like(const char *topology)
{
    oct_error err = {0};
    oct_machine *m = NULL;
    if (topology && oct_machine_load(topology, &m, &err) != OCT_OK)
        fail_msg("%s: %s", topology, err.text);
    return m;
}

#endif

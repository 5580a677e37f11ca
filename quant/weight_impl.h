/* weight_impl.h: how lanes of panels and columns of source matrices meet, for the files of weight
 * types. Packing and verifying go opposite ways and share no code: packing asks for every place of
 * a unit what belongs there, verifying asks for every number of the source where it must be. */
#ifndef OCT_WEIGHT_IMPL_H
#define OCT_WEIGHT_IMPL_H

#include "weight.h"

/* ---- packing: from the panel to the source ---- */

/* Neighbouring lanes of a panel whose sources are neighbouring columns of one part. */
typedef struct oct_lane_run {
    int lane, n, part;
    int64_t channel;
} oct_lane_run;

typedef struct oct_panel_runs {
    int n;      /* runs */
    int filled; /* lanes that have a source */
    oct_lane_run run[OCT_WEIGHT_MAX_PARTS];
} oct_panel_runs;

oct_panel_runs oct_weight_panel_runs(const oct_weight_layout *l, int64_t slice, int64_t panel);

/* The group of the whole matrix that is a unit's first. */
static inline int64_t oct_weight_first_group(const oct_weight_layout *l, int64_t slice)
{
    return l->split == OCT_SPLIT_IN ? slice * l->unit_groups : 0;
}

/* ---- verifying: from the source to the panel ---- */

/* Where the columns of one part go. */
typedef struct oct_part_place {
    int64_t n, first; /* columns of the unit, first one in the source */
    int64_t base;     /* unit channel of the first, if parts follow each other */
    int half;         /* lane of the first, if parts are interleaved */
} oct_part_place;

oct_part_place oct_weight_part_place(const oct_weight_layout *l, int part, int64_t slice);

/* Panel and lane of column c of the part; returns how many columns follow in the same panel. */
static inline int64_t oct_weight_locate(const oct_weight_layout *l, const oct_part_place *p,
                                        int64_t c, int64_t *panel, int64_t *lane)
{
    int64_t width = l->interleave ? OCT_PANEL / 2 : OCT_PANEL;
    int64_t o = l->interleave ? c : p->base + c;
    *panel = o / width;
    *lane = o % width + (l->interleave ? p->half : 0);
    int64_t run = width - o % width;
    return run < p->n - c ? run : p->n - c;
}

/* Lanes of the last panel that have a source; in all other panels every lane has. */
void oct_weight_used_lanes(const oct_weight_layout *l, int64_t slice, bool used[OCT_PANEL]);

#endif

/* intake.h: what was taken from a rank's ring, and why no more is taken (dispatch.c). */
#ifndef RANKFOLD_INTAKE_H
#define RANKFOLD_INTAKE_H

#include <stdbool.h>
#include <stdint.h>

struct rank;

void intake_open(struct rank *);
void intake_from(struct rank *, uint64_t records); /* number of records taken on earlier devices */
void intake_wait_for_transfers(struct rank *);     /* until its transfers are complete */
void rank_consume(struct rank *);

#endif

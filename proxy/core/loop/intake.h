/* intake.h: what of a rank's ring has been taken, and why no more is (dispatch.c). */
#ifndef RANKFOLD_INTAKE_H
#define RANKFOLD_INTAKE_H

#include <stdbool.h>
#include <stdint.h>

struct rank;

struct intake {
	bool hold;                /* nothing is consumed until a module's globals are written */
	bool held;                /* the next record waits for the barrier or a window */
	bool full;                /* the queues are full */
	uint64_t silent_since_ns; /* the last record that was no query */
	uint64_t records;
	uint64_t queries; /* of these, that only query: no sign of work */
};

void intake_open(struct rank *);
void intake_from(struct rank *, uint64_t records); /* so many before, elsewhere */
void intake_hold(struct rank *);                   /* until its transfers are over */
void rank_consume(struct rank *);

#endif

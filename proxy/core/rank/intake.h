/* intake.h: what was taken from a rank's ring, and why no more is taken. Only loop/dispatch.c
 * writes it. */
#ifndef RANKFOLD_RANK_INTAKE_H
#define RANKFOLD_RANK_INTAKE_H

#include <stdbool.h>
#include <stdint.h>

struct intake {
	bool waits_for_transfers; /* nothing is consumed until a module's globals are written */
	bool record_waits;        /* the next record waits for the barrier or for its handler */
	bool full;                /* the queues are full */
	uint64_t silent_since_ns; /* time of the last record that was not a query */
	uint64_t records;
	uint64_t queries; /* of `records`: queries, which are no sign of work */
};

#endif

/* overhead.h: overhead: what it costs jobs that their ranks share the device (overhead.c). */
#ifndef RANKFOLD_OVERHEAD_H
#define RANKFOLD_OVERHEAD_H

#include <stdint.h>

struct job;
struct proxy;
struct rank;

enum overhead_kind {
	OVERHEAD_SWITCHES, /* the device switches ranks */
	OVERHEAD_COPIES,   /* memory is swapped or copied for a rank that is about to run */
	OVERHEAD_WAITING,  /* ranks wait for others to reach the same work: queue/squash.c */
	OVERHEAD_KINDS,
};

struct overhead {
	struct job *job; /* whose time is being lost now, or NULL */
	enum overhead_kind to;
	uint64_t since_ns;
};

void overhead_turn(struct proxy *);       /* called when the active rank is known */
void overhead_switches(struct rank *);    /* the rank becomes active: until it runs */
void overhead_forget(const struct job *); /* the job is being closed */
uint64_t overhead_ns(const struct job *, enum overhead_kind); /* since the job was opened */

#endif

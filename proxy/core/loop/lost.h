/* lost.h: overhead: what it costs jobs that their ranks share the device (lost.c). */
#ifndef RANKFOLD_LOST_H
#define RANKFOLD_LOST_H

#include <stdint.h>

struct job;
struct proxy;
struct rank;

enum lost_to {
	LOST_TO_SWITCHES, /* the device switches ranks */
	LOST_TO_COPIES,   /* memory is swapped or copied for a rank that is about to run */
	LOST_TO_WAITING,  /* ranks wait for others to reach the same work: queue/squash.c */
	LOST_KINDS,
};

struct lost {
	struct job *job; /* whose time is being lost now, or NULL */
	enum lost_to to;
	uint64_t since_ns;
};

void lost_turn(struct proxy *);                     /* called when the active rank is known */
void lost_switches(struct rank *);                  /* the rank becomes active: until it runs */
void lost_forget(const struct job *);               /* the job is being closed */
uint64_t lost_ns(const struct job *, enum lost_to); /* since the job was opened */

#endif

/* lost.h: what it costs jobs that their ranks share the device (lost.c). */
#ifndef RANKFOLD_LOST_H
#define RANKFOLD_LOST_H

#include <stdint.h>

struct job;
struct proxy;
struct rank;

enum lost_to {
	LOST_TO_SWITCHES, /* the device goes from rank to rank */
	LOST_TO_COPIES,   /* memory moves or is copied for a rank that is to run */
	LOST_TO_WAITING,  /* ranks wait for others to come to the same: queue/squash.c */
	LOST_KINDS,
};

struct lost {
	struct job *job; /* that loses now, or NULL */
	enum lost_to to;
	uint64_t since_ns;
};

void lost_turn(struct proxy *);                     /* once it is known who runs */
void lost_switches(struct rank *);                  /* it becomes the active one, until it runs */
void lost_forget(const struct job *);               /* it goes */
uint64_t lost_ns(const struct job *, enum lost_to); /* since it was opened */

#endif

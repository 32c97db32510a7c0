/* alarm.h: contents of a job that should be equal and are not (alarm.c). */
#ifndef RANKFOLD_ALARM_H
#define RANKFOLD_ALARM_H

#include "crosscheck/crosscheck.h"
#include "opaque/opaque.h"

struct job;
struct peer_message;
struct proxy;
struct rank;

#define ALARM_BYTES 512
#define ALARMS_MAX 8u /* per job; further ones are not reported */

struct job_crosscheck { /* begins as zeros */
	struct pairs pairs;
	char alarms[ALARMS_MAX][ALARM_BYTES];
	uint32_t count;
	struct {                    /* alarms raised here: each is raised once */
		uint32_t low, high; /* ranks */
		uint64_t addr;
	} raised[ALARMS_MAX];
	uint32_t raised_count;
	uint64_t checked; /* parts of its ranks' buffers that were checked here */
	char *names;      /* of its devices, or NULL */
};

void crosscheck_turn(struct proxy *);
uint64_t crosscheck_deadline_ns(const struct proxy *); /* as slice_deadline_ns */
void crosscheck_receive(struct job *, uint32_t from, const struct peer_message *);
void crosscheck_attached(struct rank *,
			 bool arrives); /* a rank is attached; `arrives`: from another
						   * placement */
void crosscheck_restore_alarm(struct job *,
			      const char *text); /* an alarm of an earlier placement */
uint64_t crosscheck_every(const struct job *);   /* the cross-check runs at every so many
						   * collectives; 0: never */
/* Reports a launch that did the same in all ranks of a device before, and did not now. */
void crosscheck_dissent(struct job *, const char *kernel, const struct dissent *);
void crosscheck_close(struct job *);

#endif

/* world.h: the ranks of a job epoch, and what they share. The loop owns it (struct job in
 * loop/job.h) and alone writes it. */
#ifndef RANKFOLD_WORLD_H
#define RANKFOLD_WORLD_H

#include <stdint.h>

#include "job_limits.h"
#include "opaque/opaque.h"
#include "proxy.h"

struct barrier;
struct coll;
struct rank;

struct world {
	uint64_t epoch;
	uint32_t size;
	uint32_t attached;
	struct rank *ranks[RANKS_MAX]; /* attached ranks of this device, else NULL */
	enum proxy_job_state state;
	struct barrier *barrier;
	struct coll *coll;
	struct launches launches; /* of opaque kernels; opaque/ */
};

#endif

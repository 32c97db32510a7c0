/* rank.h: a rank on this device: one part for each owner.
 *
 * Only the owner's files write a part; others read it and call the owner's functions
 * (tests/proxy/test_owners.py). The files of this folder, from the lowest to the highest layer: a
 * file calls those above it in this list and no others (tests/proxy/test_floors.py).
 *
 *   table.c   virtual handles
 *   ring.c    the rank's channel: mapping, records out, replies in
 *   fault.c   its sticky error
 *   spans.c   arithmetic with ranges of numbers
 *   bounds.c  how far from its parameters a launch reads and writes
 *   module.c  its modules and functions: creation and lifetime
 *   comm.c    handles of its communicators
 */
#ifndef RANKFOLD_RANK_H
#define RANKFOLD_RANK_H

#include "channel.h"
#include "crosscheck/crosscheck.h"
#include "memory/memory.h"
#include "opaque/opaque.h"
#include "rank/device.h"
#include "rank/ending.h"
#include "rank/intake.h"
#include "rank/ring.h"
#include "rank/table.h"
#include "rank/world.h"

struct job;
struct proxy;
struct rank_queue;

struct rank {
	struct device *device; /* loop/rank.c writes these */
	struct world *world;
	struct proxy *proxy; /* these two are known only to loop/ */
	struct job *job;
	uint32_t rank;

	int async_error;    /* rank/fault.c */
	bool failed_before; /* it had that error at the last cut */
	char error_text[RF_FAULT_TEXT_BYTES];

	struct rank_ring ring;     /* rank/ring.c */
	struct table objects;      /* its handles: written by table.h's functions */
	uint64_t arriving;         /* rank/module.c: bytes of images that are not loaded yet */
	struct rank_queue *queue;  /* queue/ */
	struct rank_memory memory; /* memory/ */
	struct check check;        /* crosscheck/ */
	struct measure measure;    /* opaque/ */
	struct intake intake;      /* loop/dispatch.c */
	uint32_t
		pending; /* loop/python_request.c: requests and joinings that the client waits for */
	struct ending end; /* loop/job.c */
	/* Written by the functions below: counters of the rank, and of the device for all ranks
	 * ever here. */
	struct rank_counters counters;
};

static inline void rank_count_kernel(struct rank *r)
{
	r->counters.kernels++;
	r->device->counters.kernels++;
}
static inline void rank_count_squashed(struct rank *r)
{
	r->counters.squashed++;
	r->device->counters.squashed++;
}
static inline void rank_count_collective(struct rank *r)
{
	r->counters.collectives++;
	r->device->counters.collectives++;
}
static inline void rank_count_switch(struct rank *r)
{
	r->counters.switches++;
	r->device->counters.switches++;
}
static inline void rank_count_from(struct rank *r, struct rank_counters c) { r->counters = c; }

#endif

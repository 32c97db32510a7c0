/* host_state.h: the contract between a process of a rank and its launcher about state that only the
 * kernel knows, that it does not show, and that CRIU does not save.
 *
 * The client (interpose/client/base/host_state.c) sees the calls that make such state, and records
 * it in a private mapping of a memfd of this name. The launcher reads the record of each frozen
 * process (interpose/launcher/criu/host_state.py), and refuses to save the rank while there is any.
 * A record may be older than the launcher that reads it: another layout needs another name.
 */
#ifndef RANKFOLD_HOST_STATE_H
#define RANKFOLD_HOST_STATE_H

#include <stdatomic.h>
#include <stdint.h>

#define RF_HOST_NAME "rankfold-host-state-1"
#define RF_HOST_OBJECTS 250
#define RF_HOST_BYTES 8192

/* The comment says what `what` and `value` are. */
enum rf_host_kind {
	RF_HOST_NONE = 0,
	RF_HOST_CALL = 1,        /* thread; number of the system call that it is in */
	RF_HOST_KEY = 2,         /* serial number of a key; its keyring */
	RF_HOST_UNDO = 3,        /* semaphore set << 32 | number; the adjustment at exit */
	RF_HOST_LOCKS_NEXT = 4,  /* 0; 1: the memory that is mapped next is locked */
	RF_HOST_SEALED = 5,      /* address; bytes */
	RF_HOST_NO_TSC = 6,      /* 0; 1 */
	RF_HOST_NO_NEW_CODE = 7, /* 0; 1: PR_SET_MDWE */
	RF_HOST_WALL_TIMER = 8,  /* timer; the second at which it expires last */
};

/* An object counts if the process with this pid made it. Children inherit those of the kinds 2 and
 * 5 to 7. */
struct rf_host_object {
	_Atomic uint32_t kind;
	uint32_t pid;
	uint64_t what;
	uint64_t value; /* two's complement */
	uint64_t reserved;
};

struct rf_host_state {
	uint64_t full; /* there were more objects than fit */
	uint64_t reserved[3];
	struct rf_host_object objects[RF_HOST_OBJECTS];
};
_Static_assert(sizeof(struct rf_host_state) <= RF_HOST_BYTES, "the record outgrew its mapping");

#endif

/* remote.h: calls of NVIDIA's own libraries, which the proxy of an nvidia device makes.
 *
 * A call is a launch: of a function whose module is the library, with the call's numbers as its
 * parameters. So streams, captures, folding and moves need nothing special. All state of handles,
 * descriptors and plans is in the client and travels with each call; the proxy keeps what it needs
 * for itself.
 */
#ifndef RANKFOLD_REMOTE_H
#define RANKFOLD_REMOTE_H

#include <string.h>

#include "enqueue.h"
#include "library_call.h"

struct remote_library {
	const char *image;
	const char *without; /* what to do where it is not served, for people */
	enum handle_kind handles;
	struct { /* of the library's status type */
		int no_handle, invalid, refused, failed;
	} status;
	/* For libraries with other descriptors than struct jacobi: `put` writes one as it is sent
	 * (NULL: none), or a handle's state; `has_doubles` says whether a tensor has doubles, and
	 * `element_bytes` how many bytes one of its elements has. */
	void (*put)(uint64_t *slots, char kind, const void *descriptor);
	bool (*has_doubles)(const void *tensor);
	size_t (*element_bytes)(const void *tensor);
	struct module *module; /* under CARRIED_LOCK */
	_Atomic bool reported;
	/* 1, or -1; 0: not known yet */
	_Atomic int there;  /* of remote_is_there */
	_Atomic int serves; /* of remote_serves */
};
extern struct remote_library remote_cusolver, remote_cufft, remote_cublas, remote_cudnn;

struct remote_function {
	const char *name;
	const char *kinds; /* of its parameters: kinds_of in interpose/descriptions.py */
	_Atomic bool reported;
};

/* Calls the library's function with these parameters: numbers and addresses in their order.
 * `sizes`: the bytes of those that are numbers in memory; NULL: there are none. `checked`: what the
 * client's own check of the parameters gave; if it could not check them, the call waits for the
 * library's status, if no stream is captured. A status of the library. */
int remote_call(struct remote_library *, struct remote_function *, const uint64_t *values,
		const size_t *sizes, int checked);
/* The same for a function of the proxy's own about the library: `slots` are sent as they are. outs
 * NULL: the call does not wait. */
int remote_send(struct remote_library *, struct remote_function *, const void *stream,
		const uint64_t *slots, size_t count, uint64_t *outs);
/* The same for calls of other sizes. The first slot is kept free for the answer's address. `answer`
 * gets the status and the slots after it; NULL: the call does not wait. */
int remote_query(struct remote_library *, struct remote_function *, const void *stream,
		 uint64_t *slots, size_t count, uint64_t *answer, size_t answer_slots);
/* Whether the job's device has the library, for calls that are served without it, too. */
bool remote_is_there(struct remote_library *);
/* The same for those that a process cannot change later: from the first on that is served by the
 * library, the rank moves only to devices that have it. */
bool remote_serves(struct remote_library *);
/* Whether the job's device has the library; if it does not, that is reported once as the failure of
 * the function of this name. 0, or a status of the library. */
int remote_ready(struct remote_library *, const char *name);

/* A parameter that is a double, as it is sent. */
static inline uint64_t sent_double(double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof bits);
	return bits;
}

/* A parameter of functions that iterate (gesvdjInfo_t, syevjInfo_t). The library's own defaults are
 * used where `set` lacks the bit. */
struct jacobi {
	uint64_t set; /* bits of RF_JACOBI_… */
	double tolerance;
	int sweeps, sort;
};

#endif

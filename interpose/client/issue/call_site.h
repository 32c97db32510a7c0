/* call_site.h: where in the program a call comes from, by numbers that all ranks have alike. */
#ifndef RANKFOLD_CALL_SITE_H
#define RANKFOLD_CALL_SITE_H

#include <stdint.h>

/* Hashes of what led to the call, the nearest CALL_SITE_FRAMES of it. Addresses count from the
 * beginning of their module, so that it does not matter where that is loaded. */
#define CALL_SITE_FRAMES 16
struct call_site {
	uint64_t site; /* of return addresses: one way to here */
	uint64_t path; /* of functions: all ways through the same ones */
};

/* Of the caller. Not from a signal handler. Takes SITES_LOCK. */
struct call_site call_site(void);

#endif

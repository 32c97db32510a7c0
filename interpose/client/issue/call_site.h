/* call_site.h: the place in the program from which a call comes, as numbers that are equal in all
 * ranks. */
#ifndef RANKFOLD_CALL_SITE_H
#define RANKFOLD_CALL_SITE_H

#include <stdint.h>

/* Hashes of the chain of calls, of its innermost CALL_SITE_FRAMES frames. Addresses are relative to
 * their module, so the module's load address has no effect. */
#define CALL_SITE_FRAMES 16
struct call_site {
	uint64_t site; /* of return addresses: one way to this call */
	uint64_t path; /* of functions: all ways through the same functions */
};

/* Returns the caller's call site. Not for signal handlers. Takes SITES_LOCK. */
struct call_site call_site(void);

#endif

/* versions.h: what a rank's memory holds: a map from ranges of its addresses to versions.
 *
 * An extent is a run of addresses with one content: the bytes from `offset` on of what the version
 * names. Of repeating content, `period` bytes describe all of it (1: zeros, or any other repeated
 * byte; 2 or 4: fills). Extents cover the whole heap without gaps. Two neighbours are merged if the
 * second continues the first.
 *
 * Rules:
 *  - Two runs of equal length that begin with the same version, offset and period hold the same
 *    bytes, in any ranks and on any devices. versions_absorb describes a range by exactly these
 *    values, so equal digests of ranges also mean equal bytes.
 *  - Content without a name is private: it gets a version that no other content ever gets, neither
 *    in another rank nor in another incarnation of this one (`life` is random each time a map is
 *    opened).
 *  - The map changes when the work that writes is submitted, in the order of submission.
 *  - If there is no memory for a change, or the map would have too many extents, neighbours become
 *    private together: less is shared, and nothing is wrong.
 *
 * The map is independent of everything but addresses:
 * docs/decisions/0025-versions-change-at-submission.md. */
#ifndef RANKFOLD_VERSIONS_H
#define RANKFOLD_VERSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "versions/digest.h"

#define EXTENTS_MAX 8192 /* per rank: the loop has to move and digest the extents */

struct content { /* content of a run of addresses */
	struct version version;
	uint64_t offset; /* of the run's first byte in the content */
	uint64_t period; /* 0: it does not repeat */
};

struct extent {
	uint64_t addr; /* it ends where the next one begins */
	struct content content;
};

struct versions {
	struct extent *extents; /* sorted; the first is at `begin` */
	uint32_t count, capacity;
	uint64_t begin, end;
	uint64_t life[2], privates; /* inputs of private versions: a random number, and a count */
};

int versions_open(struct versions *, uint64_t begin, uint64_t end); /* all zeros; 0 or an errno */
void versions_close(struct versions *);

/* The content of one, two or four repeated bytes (`width`), at an address that is a multiple of
 * it. */
struct content versions_fill(uint32_t value, uint32_t width);

/* Returns a version that nothing else ever gets. */
struct version versions_new(struct versions *);

/* Sets the content of a range. Ranges are inside the map, and may be empty. */
void versions_set(struct versions *, uint64_t addr, uint64_t bytes, struct content);
void versions_private(struct versions *, uint64_t addr, uint64_t bytes);
/* Records a copy between two ranges of one map or of two; overlapping ones as with memmove. */
void versions_copy(struct versions *to, uint64_t to_addr, const struct versions *from,
		   uint64_t from_addr, uint64_t bytes);

/* True if the range holds this content. */
bool versions_equal(const struct versions *, uint64_t addr, uint64_t bytes, struct content);
/* True if the whole range is known to be zeros. */
bool versions_zeros(const struct versions *, uint64_t addr, uint64_t bytes);

/* Adds the description of a range to a digest; its addresses are not part of it. */
void versions_absorb(const struct versions *, uint64_t addr, uint64_t bytes, struct digest *);

/* The map as bytes, for moving the rank. `load` returns 0, or leaves the map unchanged and returns
 * EINVAL if the bytes are not a map of these addresses, or ENOMEM. */
uint64_t versions_size(const struct versions *);
void versions_save(const struct versions *, void *to);
int versions_load(struct versions *, const void *from, uint64_t bytes);

/* `keep` copies the map; returns 0 or ENOMEM. `back` restores the copy, except that no private
 * version is used twice; it consumes `before`. */
int versions_keep(const struct versions *, struct versions *before);
void versions_back(struct versions *, struct versions *before);

const char *versions_invalid(const struct versions *); /* NULL: valid; else the broken rule */

#endif

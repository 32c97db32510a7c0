/* versions.h: what a rank's memory holds: a map from ranges of its addresses to versions.
 *
 * An extent is a run of addresses with one content: bytes from `offset` on of what the version
 * names; of a content that repeats itself, `period` bytes name all of it (1: zeros, and whatever
 * else is one byte over and over; 2 or 4: fills). Extents cover the whole heap without gaps; two
 * neighbours of which the second goes on where the first ends are one.
 *
 * Rules:
 *  - two runs of equal length that begin with the same version, offset and period hold the same
 *    bytes, in whichever ranks and on whichever devices they are; versions_absorb describes a range
 *    by exactly that, so equal digests of ranges are equal bytes, too;
 *  - what nobody can name is private: a version that no other content ever gets, not on another
 *    rank and not in another life of this one (`life` is drawn anew wherever the map is opened);
 *  - a change here is made when the work that writes is submitted, in the order of submission;
 *  - if there is no memory for what a change needs, or it would be too finely cut, neighbours
 *    become private together: less is shared, and nothing is wrong.
 *
 * It knows addresses and nothing else: docs/decisions/0025-versions-change-at-submission.md. */
#ifndef RANKFOLD_VERSIONS_H
#define RANKFOLD_VERSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "versions/digest.h"

#define EXTENTS_MAX 8192 /* per rank: what a rank cuts finely the loop has to move, and to digest */

struct content { /* of a run of addresses */
	struct version version;
	uint64_t offset; /* where in it the run begins */
	uint64_t period; /* 0: it does not repeat itself */
};

struct extent {
	uint64_t addr; /* up to the next one's */
	struct content content;
};

struct versions {
	struct extent *extents; /* sorted; the first is at `begin` */
	uint32_t count, room;
	uint64_t begin, end;
	uint64_t life[2], privates; /* who draws the private versions, and how many there were */
};

int versions_open(struct versions *, uint64_t begin, uint64_t end); /* zeros; 0 or an errno */
void versions_close(struct versions *);

/* The content of what repeats one, two or four bytes (`width`), at an address that it divides. */
struct content versions_fill(uint32_t value, uint32_t width);

/* A version that nothing else ever gets. */
struct version versions_new(struct versions *);

/* The range holds this from now on. Ranges lie inside of the map, and may be empty. */
void versions_set(struct versions *, uint64_t addr, uint64_t bytes, struct content);
void versions_private(struct versions *, uint64_t addr, uint64_t bytes);
/* A copy between two ranges of one map or of two; overlapping ones as with memmove. */
void versions_copy(struct versions *to, uint64_t to_addr, const struct versions *from,
		   uint64_t from_addr, uint64_t bytes);

/* Does the range hold this? */
bool versions_hold(const struct versions *, uint64_t addr, uint64_t bytes, struct content);
/* Is all of the range known to be zeros? */
bool versions_zeros(const struct versions *, uint64_t addr, uint64_t bytes);

/* Adds the description of a range to a digest; its addresses do not count. */
void versions_absorb(const struct versions *, uint64_t addr, uint64_t bytes, struct digest *);

/* What moves with the rank: the map as bytes. `load`: 0, or the map is as it was: EINVAL for what
 * is not a map of these addresses, ENOMEM. */
uint64_t versions_size(const struct versions *);
void versions_save(const struct versions *, void *to);
int versions_load(struct versions *, const void *from, uint64_t bytes);

/* The map as it is now. 0 or ENOMEM. Back: as it was, but that no private version is drawn twice;
 * `before` is gone. */
int versions_keep(const struct versions *, struct versions *before);
void versions_back(struct versions *, struct versions *before);

const char *versions_invalid(const struct versions *); /* what is wrong, or NULL */

#endif

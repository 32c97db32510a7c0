/* pairs.c: known contents by the digest of their versions, each with the checksum of its bytes
 * (crosscheck.h).
 *
 * This is a set-associative cache: a new content replaces the one of its set that was seen longest
 * ago. Contents that were replaced are not compared, which only misses differences.
 */
#include <stdlib.h>

#include "crosscheck/crosscheck.h"

#define SETS 4096u
#define WAYS 4u

struct kept {
	struct pair pair;
	uint64_t used; /* 0: unused */
};

static bool same_version(struct version x, struct version y) { return x.a == y.a && x.b == y.b; }

static struct kept *find_pair(const struct pairs *p, struct version digest)
{
	struct kept *set = p->kept ? &p->kept[digest.a % SETS * WAYS] : NULL;
	for (uint32_t i = 0; set && i < WAYS; i++)
		if (set[i].used && same_version(set[i].pair.digest, digest))
			return &set[i];
	return NULL;
}

static struct kept *oldest_pair(const struct pairs *p, struct version digest)
{
	struct kept *set = &p->kept[digest.a % SETS * WAYS], *found = set;
	for (uint32_t i = 1; i < WAYS; i++)
		if (set[i].used < found->used)
			found = &set[i];
	return found;
}

static bool same_time(const struct witness *x, const struct witness *y)
{
	return x->key == y->key && x->number == y->number;
}

enum pair_is pairs_add(struct pairs *p, const struct pair *pair, struct witness *other)
{
	if (!p->kept && !(p->kept = calloc((size_t)SETS * WAYS, sizeof *p->kept)))
		return PAIR_NEW; /* nothing to compare it with */
	struct kept *there = find_pair(p, pair->digest);
	if (!there) {
		*oldest_pair(p, pair->digest) = (struct kept){*pair, ++p->clock};
		return PAIR_NEW;
	}
	there->used = ++p->clock;
	if (there->pair.sum[0] != pair->sum[0] || there->pair.sum[1] != pair->sum[1]) {
		*other = there->pair.who;
		return PAIR_DIFFERS;
	}
	bool known = same_time(&there->pair.who, &pair->who);
	there->pair.who = pair->who;
	return known ? PAIR_KNOWN : PAIR_SAME;
}

bool pairs_seen(const struct pairs *p, struct version digest, const struct witness *who)
{
	const struct kept *there = find_pair(p, digest);
	return there && who->chunk != NO_CHUNK && there->pair.who.chunk == who->chunk &&
	       there->pair.who.device == who->device && same_time(&there->pair.who, who);
}

void pairs_close(struct pairs *p)
{
	free(p->kept);
	*p = (struct pairs){0};
}

/* broken_launches.c: what was seen of launches (broken.c). */
#include "opaque/launches.c"

#include "broken.h"
#include "broken_inside.h"

#define BREAK(text, ...) BREAKS(text, check(), __VA_ARGS__)

static const struct version ID = {3, 4};

/* A launch that the first rank has seen. */
static struct watched *watched(struct launches *l)
{
	launches_done(l, ID, 1, 0, false);
	return find_launch(l, ID);
}

void broken_launches(struct launches *l, void (*check)(void))
{
	struct ranges apart = {.count = 2, .capacity = 2};
	struct memory_range two[] = {{4096, 64}, {4096, 64}};
	apart.all = two;
	BREAK("a table of launches is at most half full", watched(l); l->count = 2 * l->capacity;
	      find_or_add(l, (struct version){5, 6}));
	BREAK("launches that are alike are counted", watched(l)->is = LAUNCH_ALIKE;
	      launches_blind(l, ID, 0));
	BREAK("ranges have space", watched(l)->reads.count = 1);
	BREAK("ranges are in order and do not touch", watched(l)->writes = apart);
	BREAK("ranges are in order and do not touch", watched(l)->strays = apart);
	BREAK("a launch is trusted from an occurrence on that was seen", watched(l)->base = 9);
	BREAK("a rank has one entry for what it saw of a launch", watched(l)->seen->rank = 1;
	      launches_done(l, ID, 1, 1, false); find_launch(l, ID)->seen[1].rank = 1;
	      find_launch(l, ID)->seen[0].rank = RANKS_MAX);
	BREAK("a launch is found by its identity", watched(l)->id.a++);
	BREAK("watched launches", watched(l); l->count++);
	BREAK("launches that are alike", watched(l); l->alike++);
}

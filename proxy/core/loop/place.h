/* place.h: a place in a request ring (ring.c). */
#ifndef RANKFOLD_PLACE_H
#define RANKFOLD_PLACE_H

#include <stdint.h>

struct place {          /* in the ring, after some record */
	uint64_t bytes; /* up to there, as the header counts them */
	uint64_t seq;   /* of that record; 0: none yet */
};

#endif

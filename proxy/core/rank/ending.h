/* ending.h: whether a rank is still served, and how it ended (job.c). */
#ifndef RANKFOLD_ENDING_H
#define RANKFOLD_ENDING_H

#include <stdbool.h>

struct ending {
	bool exited, crashed, replaced;
	bool closing; /* nothing more is taken from its ring */
	bool idle_reported, idle;
};

#endif

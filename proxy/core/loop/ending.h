/* ending.h: whether a rank goes on, and how it has ended (job.c). */
#ifndef RANKFOLD_ENDING_H
#define RANKFOLD_ENDING_H

#include <stdbool.h>

struct ending {
	bool exited, crashed, replaced;
	bool closing; /* nothing more is taken from its ring */
	bool idle_told, idle;
};

#endif

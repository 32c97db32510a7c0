/* clock.h: the one clock of the core: monotonic, local to this machine. */
#ifndef RANKFOLD_CLOCK_H
#define RANKFOLD_CLOCK_H

#include "spin.h"

static inline uint64_t now_ns(void) { return spin_now_ns(); }

#endif

// own_checkpoint.h: checkpoints of a program's own, if the environment requests them.
//
//   SAVE_TO=FILE SAVE_EVERY=N   rank 0 writes it behind every Nth step
//   LOAD_FROM=FILE              all ranks begin with it
#pragma once

#include "../examples/gpt/checkpoint.h"

// The first step to run.
inline int first_step(const std::vector<Floats> &parts)
{
	const char *path = getenv("LOAD_FROM");
	return path ? load_checkpoint(path, parts) : 0;
}

// To be called behind each step.
inline void save_own(int rank, int step, const std::vector<Floats> &parts)
{
	const char *path = getenv("SAVE_TO"), *every = getenv("SAVE_EVERY");
	if (path && every && rank == 0 && (step + 1) % atoi(every) == 0)
		save_checkpoint(path, step + 1, parts);
}

/* invariant.h: cheap checks of our own counts, links, states and indices, always on, in the proxy
 * and in the rank.
 *
 * A broken invariant means that a bug of ours has corrupted a structure. Later writes may be wrong,
 * so the process reports which invariant it is and aborts: a job restarts from its
 * newest checkpoint, and no wrong byte gets into one. Never for what a program or a peer sends:
 * that is checked and refused with an error.
 */
#ifndef RANKFOLD_INVARIANT_H
#define RANKFOLD_INVARIANT_H

#include <stdio.h>
#include <stdlib.h>

/* `what`: a sentence that states what should hold. */
#define INVARIANT(condition, what)                                                                 \
	do                                                                                         \
		if (__builtin_expect(!(condition), 0))                                             \
			invariant_broken(what, __FILE__, __LINE__);                                \
	while (0)

_Noreturn __attribute__((cold, noinline, unused)) static void invariant_broken(const char *what,
									       const char *file,
									       int line)
{
	dprintf(2, "rankfold: broken invariant: %s (%s:%d); aborting\n", what, file, line);
	abort();
}

/* In a checker that returns a text, NULL if all is well: returns `text` if `condition` holds. */
#define WRONG(condition, text)                                                                     \
	do                                                                                         \
		if (condition)                                                                     \
			return text;                                                               \
	while (0)

#endif

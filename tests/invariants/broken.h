/* broken.h: a structure of the proxy or of the client is corrupted in a child of this process,
 * which must abort and name the invariant. broken.c: the core. broken_client.c: the client.
 */
#ifndef RANKFOLD_HOSTILE_BROKEN_H
#define RANKFOLD_HOSTILE_BROKEN_H

#include <stdbool.h>

/* True in the child; in the parent, after the child has ended and was judged. */
bool in_child(const char *text);
void child_is_well(void); /* ends the child: nothing was noticed */
/* Ends the process if it is not true. */
#define MUST(truth) must(truth, __FILE__, __LINE__, #truth)
void must(bool good, const char *file, int line, const char *what);

/* Runs the last arguments in a child, then `check`: the invariant with this text must be named. */
#define BREAKS(text, check, ...)                                                                   \
	do                                                                                         \
		if (in_child(text)) {                                                              \
			__VA_ARGS__;                                                               \
			check;                                                                     \
			child_is_well();                                                           \
		}                                                                                  \
	while (0)

#endif

/* broken_child.c: see broken.h. In a file of its own: the client's files may not call most of this.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broken.h"

/* Reads what the child prints on stderr until it ends. Prints the text if the child aborted for
 * that reason, and otherwise what happened. */
static void judge(const char *text, int from, pid_t child)
{
	char said[4096], line[256];
	size_t have = 0;
	ssize_t got;
	int status = 0;
	while (have < sizeof said - 1 &&
	       (got = read(from, said + have, sizeof said - 1 - have)) > 0)
		have += (size_t)got;
	said[have] = 0;
	close(from);
	waitpid(child, &status, 0);
	snprintf(line, sizeof line, "rankfold: broken invariant: %s (", text);
	bool named = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(said, line);
	if (named)
		printf("%s\n", text);
	else
		printf("not named: %s: status %#x: %s\n", text, (unsigned)status, said);
	fflush(stdout);
}

bool in_child(const char *text)
{
	int ends[2];
	fflush(NULL);
	if (pipe(ends))
		abort();
	pid_t child = fork();
	if (child) {
		close(ends[1]);
		judge(text, ends[0], child);
		return false;
	}
	setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
	dup2(ends[1], 2);
	close(ends[0]);
	close(ends[1]);
	alarm(20); /* a broken list may be endless */
	return true;
}

void child_is_well(void) { _exit(0); }

void must(bool good, const char *file, int line, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s:%d: %s\n", file, line, what);
	exit(1);
}

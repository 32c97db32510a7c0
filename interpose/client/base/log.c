/* log.c: messages for people. Each goes to stderr in one write, so that those of many ranks do not
 * mix. Takes no lock and preserves errno.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base.h"

void log_message(const char *format, ...)
{
	int saved_errno = errno;
	char line[RF_FAULT_TEXT_BYTES + 256] = "rankfold: ";
	size_t have = strlen(line);
	va_list arguments;
	va_start(arguments, format);
	int wrote = vsnprintf(line + have, sizeof line - have - 1, format, arguments);
	va_end(arguments);
	if (wrote > 0)
		have += (size_t)wrote < sizeof line - have - 1 ? (size_t)wrote
							       : sizeof line - have - 2;
	line[have++] = '\n';
	ssize_t ignored = write(STDERR_FILENO, line, have);
	(void)ignored;
	errno = saved_errno;
}

int refuse_call(_Atomic bool *done, const char *function, const char *why, int error)
{
	if (!atomic_exchange(done, true))
		log_message("%s: %s", function,
			    why ? why : "not supported by rankfold; the call failed");
	return error;
}

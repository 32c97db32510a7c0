/* A program that is nearly always between vfork and exec: `starting_program FOLDER MILLISECONDS`,
   -1: forever. Its parent waits in a call that only its child's exec or exit ends. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int waited;

/* Everything that the child of vfork does: its parent's memory is its own. */
static void start(int milliseconds)
{
	pid_t child = vfork();

	if (child == 0) {
		waited = open("ready", O_CREAT | O_WRONLY, 0600);
		if (milliseconds < 0)
			while (access("go", F_OK) != 0)
				usleep(1000);
		else
			usleep((useconds_t)milliseconds * 1000);
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	close(waited);
	int status;
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		exit(1);
}

int main(int argc, char **argv)
{
	if (argc != 3 || chdir(argv[1]) != 0)
		return 2;
	do {
		start(atoi(argv[2]));
		usleep(20000);
	} while (access("go", F_OK) != 0);
	puts("end");
	return 0;
}

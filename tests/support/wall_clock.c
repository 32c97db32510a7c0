/* Preloaded, it shifts the wall clock of a process by as many seconds as the file that
 * WALL_CLOCK_SHIFT names holds (a little-endian int64); the file may change meanwhile. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t shift(void)
{
	static volatile int64_t *shared;
	if (!shared) {
		const char *path = getenv("WALL_CLOCK_SHIFT");
		int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
		void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
		if (fd >= 0)
			close(fd);
		if (at == MAP_FAILED)
			return 0;
		shared = at;
	}
	return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int error = (int)syscall(SYS_clock_gettime, clock, now);
	if (!error && clock == CLOCK_REALTIME)
		now->tv_sec += shift();
	return error;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	int error = (int)syscall(SYS_gettimeofday, now, zone);
	if (!error && now)
		now->tv_sec += shift();
	return error;
}

time_t time(time_t *now)
{
	struct timespec exact;
	clock_gettime(CLOCK_REALTIME, &exact);
	if (now)
		*now = exact.tv_sec;
	return exact.tv_sec;
}

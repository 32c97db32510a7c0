/* timers.c: descriptors and signals that come with time. */
#include <sys/time.h>
#include <sys/timerfd.h>

#include "objects.h"

#define MS 1000000L
#define FAR 3600L

static int timer_fd(int clock, int flags)
{
	int fd = timerfd_create(clock, flags);
	need(fd >= 0, "timerfd_create");
	return fd;
}

static void set(int fd, int flags, long first_s, long first_ns, long s, long ns)
{
	struct itimerspec spec = {{s, ns}, {first_s, first_ns}};
	need(timerfd_settime(fd, flags, &spec, NULL) == 0, "timerfd_settime");
}

/* Its counts are a matter of time: that there are some, and that more come. */
static void say_ticks(int fd)
{
	for (int i = 0; i < 3; i++) {
		uint64_t ticks = 0;
		int came = readable(fd) && read(fd, &ticks, sizeof ticks) == sizeof ticks;
		say("%s", came && ticks > 0 ? "fires" : "silent");
	}
}

static void say_set(int fd)
{
	struct itimerspec spec;
	need(timerfd_gettime(fd, &spec) == 0, "timerfd_gettime");
	long left = spec.it_value.tv_sec;
	say("%s every %ld.%03ld",
	    left == 0 && spec.it_value.tv_nsec == 0 ? "off"
	    : left > FAR                            ? "beyond"
	    : left > FAR / 2                        ? "far"
						    : "near",
	    (long)spec.it_interval.tv_sec, spec.it_interval.tv_nsec / MS);
	say("flags %x %x", fcntl(fd, F_GETFL) & O_NONBLOCK, fcntl(fd, F_GETFD));
}

#define PERIODIC(name, clock)                                                                      \
	static int name;                                                                           \
	static void make_##name(void)                                                              \
	{                                                                                          \
		name = timer_fd(clock, TFD_NONBLOCK);                                              \
		set(name, 0, 0, 20 * MS, 0, 20 * MS);                                              \
		need(readable(name), "expire");                                                    \
	}                                                                                          \
	static void use_##name(void) { say_ticks(name); }

PERIODIC(periodic, CLOCK_MONOTONIC)
PERIODIC(periodic_wall, CLOCK_REALTIME)

/* Nobody has read for a hundred periods: each of them counts. */
static int slow;
static void make_slow(void)
{
	slow = timer_fd(CLOCK_MONOTONIC, TFD_NONBLOCK);
	set(slow, 0, 0, MS, 0, MS);
	usleep(100000);
}
static void use_slow(void)
{
	uint64_t ticks = 0;
	need(read(slow, &ticks, sizeof ticks) == sizeof ticks, "read");
	say("counts %s", ticks >= 100 ? "all" : "some");
}

static int once;
static void make_once(void)
{
	once = timer_fd(CLOCK_MONOTONIC, TFD_CLOEXEC);
	set(once, 0, 0, MS, 0, 0);
	need(readable(once), "expire");
}
static void use_once(void)
{
	uint64_t ticks = 0;
	ssize_t got = readable_within(once, 0) ? read(once, &ticks, sizeof ticks) : -1;
	say("%zd %lu", got, (unsigned long)ticks);
	say_set(once);
}

static int far_off, disarmed, absolute;
static void make_far_off(void)
{
	far_off = timer_fd(CLOCK_MONOTONIC, 0);
	set(far_off, 0, FAR, 0, 7, 5 * MS);
}
static void use_far_off(void) { say_set(far_off); }
static void make_disarmed(void) { disarmed = timer_fd(CLOCK_REALTIME, TFD_NONBLOCK); }
static void use_disarmed(void) { say_set(disarmed); }
static void make_absolute(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	absolute = timer_fd(CLOCK_REALTIME, 0);
	set(absolute, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, now.tv_sec + FAR, 0, 0, 0);
}
static void use_absolute(void)
{
	char path[64], line[128] = "";
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", absolute);
	FILE *file = fopen(path, "r");
	need(file != NULL, path);
	while (fgets(line, sizeof line, file) && strncmp(line, "settime", 7) != 0)
		continue;
	fclose(file);
	say("%.*s", (int)strcspn(line, "\n"), line);
	say_set(absolute);
}

/* ---- signals ---- */

static volatile sig_atomic_t alarms, rings, value;
static timer_t ringing, silent_timer, cpu_timer;
static void count_alarm(int number) { (void)number, alarms++; }
static void count_ring(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	rings++;
	value = info->si_value.sival_int;
}

static void make_itimer(void)
{
	signal(SIGALRM, count_alarm);
	struct itimerval spec = {{0, 20000}, {0, 20000}};
	need(setitimer(ITIMER_REAL, &spec, NULL) == 0, "setitimer");
	struct itimerval later = {{0, 0}, {FAR, 0}};
	need(setitimer(ITIMER_PROF, &later, NULL) == 0, "setitimer");
	need(setitimer(ITIMER_VIRTUAL, &later, NULL) == 0, "setitimer");
}
static void use_itimer(void)
{
	int seen = alarms;
	for (int i = 0; i < 500 && alarms == seen; i++)
		usleep(20000);
	say("%s", alarms > seen ? "fires" : "silent");
	struct itimerval off = {0}, left;
	need(setitimer(ITIMER_REAL, &off, &left) == 0, "setitimer");
	say("every %ld", (long)left.it_interval.tv_usec);
	getitimer(ITIMER_PROF, &left);
	say("prof %d", left.it_value.tv_sec > FAR / 2);
	getitimer(ITIMER_VIRTUAL, &left);
	say("virtual %d", left.it_value.tv_sec > FAR / 2);
}

static timer_t posix_timer(int clock, struct sigevent *event, long s, long ns)
{
	timer_t timer;
	need(timer_create(clock, event, &timer) == 0, "timer_create");
	struct itimerspec spec = {{s, ns}, {s, ns}};
	need(timer_settime(timer, 0, &spec, NULL) == 0, "timer_settime");
	return timer;
}

static void make_posix_timer(void)
{
	struct sigaction action = {.sa_sigaction = count_ring, .sa_flags = SA_SIGINFO};
	sigaction(SIGRTMIN + 3, &action, NULL);
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3};
	event.sigev_value.sival_int = 4711;
	ringing = posix_timer(CLOCK_MONOTONIC, &event, 0, 20 * MS);
	struct sigevent none = {.sigev_notify = SIGEV_NONE};
	silent_timer = posix_timer(CLOCK_REALTIME, &none, FAR, 0);
}
static void use_posix_timer(void)
{
	int seen = rings;
	for (int i = 0; i < 500 && rings == seen; i++)
		usleep(20000);
	say("%s with %d", rings > seen ? "fires" : "silent", (int)value);
	timer_delete(ringing);
	struct itimerspec left = {0};
	need(timer_gettime(silent_timer, &left) == 0, "timer_gettime");
	say("%d every %ld", left.it_value.tv_sec > FAR / 2, (long)left.it_interval.tv_sec);
}

static void make_cpu_timer(void)
{
	struct sigevent none = {.sigev_notify = SIGEV_NONE};
	cpu_timer = posix_timer(CLOCK_PROCESS_CPUTIME_ID, &none, FAR, 0);
}
static void use_cpu_timer(void)
{
	struct itimerspec left = {0};
	need(timer_gettime(cpu_timer, &left) == 0, "timer_gettime");
	say("%d every %ld", left.it_value.tv_sec > FAR / 2, (long)left.it_interval.tv_sec);
}

/* A timer of another kind of clock. */
static timer_t boot_timer;
static void make_boot_timer(void)
{
	struct sigevent none = {.sigev_notify = SIGEV_NONE};
	boot_timer = posix_timer(CLOCK_BOOTTIME, &none, FAR, 0);
}
static void use_boot_timer(void)
{
	struct itimerspec left = {0};
	need(timer_gettime(boot_timer, &left) == 0, "timer_gettime");
	say("%d", left.it_value.tv_sec > FAR / 2);
}

const struct object timers[] = {
	{"periodic", make_periodic, use_periodic},
	{"periodic_wall", make_periodic_wall, use_periodic_wall},
	{"slow", make_slow, use_slow},
	{"once", make_once, use_once},
	{"far_off", make_far_off, use_far_off},
	{"disarmed", make_disarmed, use_disarmed},
	{"absolute", make_absolute, use_absolute},
	{"itimer", make_itimer, use_itimer},
	{"posix_timer", make_posix_timer, use_posix_timer},
	{"cpu_timer", make_cpu_timer, use_cpu_timer},
	{"boot_timer", make_boot_timer, use_boot_timer},
	{0},
};

/* unseen.c: state of a process that CRIU does not save. */
#include <arpa/inet.h>
#include <linux/keyctl.h>
#include <linux/mempolicy.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/sem.h>
#include <sys/timerfd.h>

#include "objects.h"

#define SIZE (64 << 10)

static void alive(void) { say("alive"); }

static char *map(void)
{
	char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(at != MAP_FAILED, "mmap");
	return at;
}

/* Whether the kernel shows a flag of the mapping at an address. */
static int has_flag(const char *at, const char *flag)
{
	char line[512];
	int inside = 0, found = 0;
	FILE *file = fopen("/proc/self/smaps", "r");
	need(file != NULL, "smaps");
	while (fgets(line, sizeof line, file)) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = from <= (unsigned long)at && (unsigned long)at < to;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0)
			found = strstr(line, flag) != NULL;
	}
	fclose(file);
	return found;
}

/* ---- keys, notifications, semaphores ---- */

static long key;
static void make_key(void)
{
	key = syscall(SYS_add_key, "user", "objects", "secret", 6, KEY_SPEC_PROCESS_KEYRING);
	if (key < 0)
		lack();
}
static void use_key(void)
{
	char text[16] = "";
	long got = syscall(SYS_keyctl, KEYCTL_READ, key, text, sizeof text, 0);
	say("%ld %s", got, text);
}
static void make_key_removed(void)
{
	make_key();
	need(syscall(SYS_keyctl, KEYCTL_UNLINK, key, KEY_SPEC_PROCESS_KEYRING) == 0, "unlink");
}
static void use_key_removed(void) { say("%ld", syscall(SYS_keyctl, KEYCTL_READ, key, NULL, 0, 0)); }

static volatile sig_atomic_t noticed;
static void notice(int number) { (void)number, noticed++; }
static int watched;
static void make_notified(void)
{
	signal(SIGRTMIN + 5, notice);
	need(mkdir("watched", 0700) == 0, "mkdir");
	watched = open("watched", O_RDONLY | O_DIRECTORY);
	need(fcntl(watched, F_SETSIG, SIGRTMIN + 5) == 0, "F_SETSIG");
	if (fcntl(watched, F_NOTIFY, DN_CREATE | DN_MULTISHOT) != 0)
		lack();
}
static void use_notified(void)
{
	need(mkdir("watched/inside", 0700) == 0, "mkdir");
	say("noticed %d", (int)noticed);
}

static int set_id;
static struct sembuf lock_it = {0, -1, SEM_UNDO}, unlock_it = {0, 1, SEM_UNDO};
static void make_undo(void)
{
	set_id = semget(IPC_PRIVATE, 1, 0600);
	need(set_id >= 0 && semctl(set_id, 0, SETVAL, 1) == 0, "semget");
	pid_t child = fork();
	if (child == 0) { /* it holds the semaphore until it is killed */
		need(semop(set_id, &lock_it, 1) == 0, "semop");
		for (;;)
			pause();
	}
	key = child;
	while (semctl(set_id, 0, GETVAL) != 0)
		usleep(1000);
}
static void use_undo(void)
{
	kill((pid_t)key, SIGKILL);
	waitpid((pid_t)key, NULL, 0);
	say("%d", semctl(set_id, 0, GETVAL));
	semctl(set_id, 0, IPC_RMID);
}
static void make_waiting_undo(void)
{
	set_id = semget(IPC_PRIVATE, 1, 0600);
	need(set_id >= 0, "semget");
	key = fork();
	if (key == 0)
		_exit(semop(set_id, &lock_it, 1));
	while (semctl(set_id, 0, GETNCNT) == 0)
		usleep(1000);
}
static void make_undone(void)
{
	set_id = semget(IPC_PRIVATE, 1, 0600);
	need(set_id >= 0 && semctl(set_id, 0, SETVAL, 1) == 0, "semget");
	need(semop(set_id, &lock_it, 1) == 0 && semop(set_id, &unlock_it, 1) == 0, "semop");
	int gone = semget(IPC_PRIVATE, 1, 0600);
	need(semctl(gone, 0, SETVAL, 1) == 0 && semop(gone, &lock_it, 1) == 0, "semop");
	need(semctl(gone, 0, IPC_RMID) == 0, "semctl");
}
static void use_undone(void)
{
	say("%d", semctl(set_id, 0, GETVAL));
	semctl(set_id, 0, IPC_RMID);
}

/* ---- memory ---- */

static char *at;
static void make_locked_later(void)
{
	if (mlockall(MCL_FUTURE) != 0)
		lack();
}
static void use_locked_later(void) { say("%d", has_flag(map(), " lo")); }
static void make_unlocked(void)
{
	if (mlockall(MCL_FUTURE) != 0)
		lack();
	munlockall();
}
static void make_locked_on_fault(void)
{
	at = map();
	if (mlock2(at, SIZE, MLOCK_ONFAULT) != 0)
		lack();
}
static void use_locked_on_fault(void)
{
	unsigned char there[SIZE / 4096];
	need(mincore(at, SIZE, there) == 0, "mincore");
	say("locked %d, there %d", has_flag(at, " lo"), there[3] & 1);
}
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
static void make_sealed(void)
{
	at = map();
	if (syscall(SYS_mseal, at, SIZE, 0) != 0)
		lack();
}
static void use_sealed(void) { say("%d", mprotect(at, SIZE, PROT_READ)); }
static const unsigned long first_node = 1;
static void make_bound(void)
{
	at = map();
	if (syscall(SYS_mbind, at, SIZE, MPOL_BIND, &first_node, 2, 0) != 0)
		lack();
}
static void use_bound(void)
{
	int mode = -1;
	syscall(SYS_get_mempolicy, &mode, NULL, 0, at, MPOL_F_ADDR);
	say("%d", mode);
}
/* OpenBLAS sets this policy for its buffers. */
static void make_bound_locally(void)
{
	at = map();
	if (syscall(SYS_mbind, at, SIZE, MPOL_PREFERRED, NULL, 0, 0) != 0)
		lack();
	at[1] = 7;
}
static void use_bound_locally(void) { say("%d", at[1]); }
static void make_interleaved(void)
{
	if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &first_node, 2) != 0)
		lack();
}
static void use_interleaved(void)
{
	int mode = -1;
	unsigned long nodes = 0;
	syscall(SYS_get_mempolicy, &mode, &nodes, 64, NULL, 0);
	say("%d of %lu", mode, nodes);
}

static volatile int bound;
static void *bind_thread(void *argument)
{
	bound = syscall(SYS_set_mempolicy, MPOL_BIND, &first_node, 2) == 0 ? 1 : -1;
	for (;;)
		pause();
	return argument;
}
static void make_bound_thread(void)
{
	pthread_t thread;
	need(pthread_create(&thread, NULL, bind_thread, NULL) == 0, "pthread_create");
	while (!bound)
		usleep(1000);
	if (bound < 0)
		lack();
}

/* ---- prctl ---- */

static void make_no_tsc(void)
{
	if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV) != 0)
		lack();
}
static void use_no_tsc(void)
{
	int mode = 0;
	prctl(PR_GET_TSC, &mode);
	say("%d", mode);
}
static void make_tsc_again(void)
{
	make_no_tsc();
	prctl(PR_SET_TSC, PR_TSC_ENABLE);
}
static void make_machine_check(void)
{
	if (prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0) != 0)
		lack();
}
static void use_machine_check(void) { say("%d", prctl(PR_MCE_KILL_GET, 0, 0, 0, 0)); }
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif
static void make_no_new_code(void)
{
	if (prctl(PR_SET_MDWE, 1, 0, 0, 0) != 0)
		lack();
}
static void use_no_new_code(void) { say("%d", prctl(PR_GET_MDWE, 0, 0, 0, 0)); }
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif
static void make_merged(void)
{
	if (prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) != 0)
		lack();
}
static void use_merged(void) { say("%d", prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0)); }

/* ---- sockets ---- */

#define GROUP "239.1.2.3"
#define SOURCE "10.1.2.3"
#define GROUP6 "ff02::4711"
#define LOOPBACK 1 /* its number is the same on each machine */

static int member, member6;
static struct group_req group_of(int family, const char *text)
{
	struct group_req group = {.gr_interface = LOOPBACK};
	group.gr_group.ss_family = (sa_family_t)family;
	void *to = family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&group.gr_group)->sin6_addr
				      : (void *)&((struct sockaddr_in *)&group.gr_group)->sin_addr;
	need(inet_pton(family, text, to) == 1, text);
	return group;
}
static void make_member(void)
{
	member = socket(AF_INET, SOCK_DGRAM, 0);
	struct group_req group = group_of(AF_INET, GROUP);
	if (setsockopt(member, IPPROTO_IP, MCAST_JOIN_GROUP, &group, sizeof group) != 0)
		lack();
	struct group_source_req blocked = {.gsr_interface = LOOPBACK, .gsr_group = group.gr_group};
	blocked.gsr_source = group_of(AF_INET, SOURCE).gr_group;
	need(setsockopt(member, IPPROTO_IP, MCAST_BLOCK_SOURCE, &blocked, sizeof blocked) == 0,
	     "MCAST_BLOCK_SOURCE");
	struct group_source_req only = blocked;
	only.gsr_group = group_of(AF_INET, "239.1.2.4").gr_group;
	need(setsockopt(member, IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &only, sizeof only) == 0,
	     "MCAST_JOIN_SOURCE_GROUP");
}
static void say_member(int fd, int level, struct group_req group)
{
	union {
		struct group_filter filter;
		char room[GROUP_FILTER_SIZE(4)];
	} got = {.filter = {.gf_interface = LOOPBACK, .gf_group = group.gr_group, .gf_numsrc = 4}};
	socklen_t size = sizeof got;
	if (getsockopt(fd, level, MCAST_MSFILTER, &got, &size) == 0)
		say("mode %u, %u sources", got.filter.gf_fmode, got.filter.gf_numsrc);
	else
		say("%s", strerror(errno));
}
static void use_member(void)
{
	say_member(member, IPPROTO_IP, group_of(AF_INET, GROUP));
	say_member(member, IPPROTO_IP, group_of(AF_INET, "239.1.2.4"));
	say_member(member, IPPROTO_IP, group_of(AF_INET, "239.1.2.5"));
}
static void make_member6(void)
{
	struct group_req group = group_of(AF_INET6, GROUP6);
	member6 = socket(AF_INET6, SOCK_DGRAM, 0);
	if (member6 < 0 ||
	    setsockopt(member6, IPPROTO_IPV6, MCAST_JOIN_GROUP, &group, sizeof group) != 0)
		lack();
}
static void use_member6(void) { say_member(member6, IPPROTO_IPV6, group_of(AF_INET6, GROUP6)); }

static int udp;
static void make_udp_unread(void)
{
	struct sockaddr_in name = {.sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof name;
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	need(bind(udp, (struct sockaddr *)&name, size) == 0, "bind");
	getsockname(udp, (struct sockaddr *)&name, &size);
	need(connect(udp, (struct sockaddr *)&name, size) == 0, "connect");
	need(send(udp, "unread", 6, 0) == 6 && readable(udp), "send");
}
static void use_udp_unread(void) { say_content(udp); }

/* ---- the wall clock ---- */

#define FAR 3600L

static int wall_timer, wall_period;
static struct timespec due;
static timer_t wall_signal;
static struct itimerspec at_wall_time(void)
{
	clock_gettime(CLOCK_REALTIME, &due);
	due.tv_sec += FAR;
	return (struct itimerspec){{0, 0}, due};
}
/* A timer that rested with its process would be late by as much. */
static void say_due(const struct itimerspec *left)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	long late = (now.tv_sec + left->it_value.tv_sec - due.tv_sec) * 1000 +
		    (now.tv_nsec + left->it_value.tv_nsec - due.tv_nsec) / 1000000;
	say(late > 100 || late < -100 ? "late by %ld ms" : "in time", late);
}
static void make_wall_timer(void)
{
	struct itimerspec spec = at_wall_time();
	wall_timer = timerfd_create(CLOCK_REALTIME, 0);
	need(timerfd_settime(wall_timer, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &spec,
			     NULL) == 0,
	     "timerfd_settime");
}
static void use_wall_timer(void)
{
	struct itimerspec left;
	need(timerfd_gettime(wall_timer, &left) == 0, "timerfd_gettime");
	say_due(&left);
}
/* It has expired once, unread. */
static void make_wall_period(void)
{
	struct itimerspec spec = at_wall_time();
	spec.it_value.tv_sec -= 2 * FAR;
	spec.it_interval.tv_sec = 2 * FAR;
	wall_period = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
	need(timerfd_settime(wall_period, TFD_TIMER_ABSTIME, &spec, NULL) == 0, "settime");
	need(readable(wall_period), "expire");
}
static void use_wall_period(void)
{
	struct itimerspec left;
	uint64_t ticks = 0;
	need(timerfd_gettime(wall_period, &left) == 0, "timerfd_gettime");
	say_due(&left);
	need(read(wall_period, &ticks, sizeof ticks) == sizeof ticks, "read");
	say("%lu every %ld", (unsigned long)ticks, (long)left.it_interval.tv_sec);
}
static void make_wall_signal(void)
{
	struct sigevent none = {.sigev_notify = SIGEV_NONE};
	struct itimerspec spec = at_wall_time();
	need(timer_create(CLOCK_REALTIME, &none, &wall_signal) == 0, "timer_create");
	need(timer_settime(wall_signal, TIMER_ABSTIME, &spec, NULL) == 0, "timer_settime");
}
static void use_wall_signal(void)
{
	struct itimerspec left;
	need(timer_gettime(wall_signal, &left) == 0, "timer_gettime");
	say_due(&left);
}
static void make_wall_deleted(void)
{
	make_wall_signal();
	timer_delete(wall_signal);
	struct sigevent none = {.sigev_notify = SIGEV_NONE};
	struct itimerspec past = {{0, 0}, {1, 0}};
	need(timer_create(CLOCK_REALTIME, &none, &wall_signal) == 0, "timer_create");
	need(timer_settime(wall_signal, TIMER_ABSTIME, &past, NULL) == 0, "timer_settime");
}
const struct object unseen[] = {
	{"key", make_key, use_key},
	{"key_removed", make_key_removed, use_key_removed},
	{"notified", make_notified, use_notified},
	{"undo", make_undo, use_undo},
	{"waiting_undo", make_waiting_undo, use_undo},
	{"undone", make_undone, use_undone},
	{"locked_later", make_locked_later, use_locked_later},
	{"unlocked", make_unlocked, use_locked_later},
	{"locked_on_fault", make_locked_on_fault, use_locked_on_fault},
	{"sealed", make_sealed, use_sealed},
	{"bound", make_bound, use_bound},
	{"bound_locally", make_bound_locally, use_bound_locally},
	{"bound_thread", make_bound_thread, alive},
	{"interleaved", make_interleaved, use_interleaved},
	{"no_tsc", make_no_tsc, use_no_tsc},
	{"tsc_again", make_tsc_again, use_no_tsc},
	{"machine_check", make_machine_check, use_machine_check},
	{"no_new_code", make_no_new_code, use_no_new_code},
	{"merged", make_merged, use_merged},
	{"member", make_member, use_member},
	{"member6", make_member6, use_member6},
	{"udp_unread", make_udp_unread, use_udp_unread},
	{"wall_timer", make_wall_timer, use_wall_timer},
	{"wall_period", make_wall_period, use_wall_period},
	{"wall_signal", make_wall_signal, use_wall_signal},
	{"wall_deleted", make_wall_deleted, alive},
	{0},
};

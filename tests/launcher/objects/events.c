/* events.c: descriptors that say that something has happened. */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>

#include "objects.h"

static int event_fd(unsigned count, int flags)
{
	int fd = eventfd(count, flags | EFD_NONBLOCK);
	need(fd >= 0, "eventfd");
	return fd;
}

static void say_reads(int fd, int times)
{
	for (int i = 0; i < times; i++) {
		uint64_t got = 0;
		ssize_t size = read(fd, &got, sizeof got);
		say("%ld", size == sizeof got ? (long)got : -1L);
	}
}

static int counter, semaphore, empty_semaphore, shared_semaphore, semaphore_poll;
static pid_t sharer;
static void make_counter(void) { counter = event_fd(7, EFD_CLOEXEC); }
static void use_counter(void)
{
	say("flags %x %x", fcntl(counter, F_GETFL) & O_NONBLOCK, fcntl(counter, F_GETFD));
	say_reads(counter, 2);
}
static void make_semaphore(void) { semaphore = event_fd(5, EFD_SEMAPHORE); }
static void use_semaphore(void) { say_reads(semaphore, 6); }
static void make_empty_semaphore(void)
{
	empty_semaphore = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
}
static void use_empty_semaphore(void)
{
	say("flags %x %x", fcntl(empty_semaphore, F_GETFL) & O_NONBLOCK,
	    fcntl(empty_semaphore, F_GETFD));
	uint64_t two = 2;
	need(write(empty_semaphore, &two, sizeof two) == sizeof two, "write");
	say_reads(empty_semaphore, 2);
}
/* Under two numbers, in a child, and waited for by epoll. */
static void make_shared_semaphore(void)
{
	shared_semaphore = event_fd(0, EFD_SEMAPHORE);
	int same = dup(shared_semaphore);
	sharer = fork();
	if (sharer == 0) {
		while (access("go", F_OK) != 0)
			usleep(10000);
		uint64_t three = 3;
		_exit(write(same, &three, sizeof three) != sizeof three);
	}
	semaphore_poll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 12};
	need(epoll_ctl(semaphore_poll, EPOLL_CTL_ADD, same, &event) == 0, "epoll_ctl");
}
static void use_shared_semaphore(void)
{
	int status = -1;
	struct epoll_event event = {0};
	waitpid(sharer, &status, 0);
	int got = epoll_wait(semaphore_poll, &event, 1, 10000);
	say("child %d, %d event of %lu:", status, got, (unsigned long)event.data.u64);
	say_reads(shared_semaphore, 4);
}

static int signals;
static void make_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals = signalfd(-1, &set, SFD_NONBLOCK);
	raise(SIGUSR2);
}
static void use_signals(void)
{
	struct signalfd_siginfo info = {0};
	ssize_t got = read(signals, &info, sizeof info);
	say("%zd %u from %d", got, info.ssi_signo, info.ssi_pid == (uint32_t)getpid());
}

/* ---- processes ---- */

static int child_fd, dead_fd;
static pid_t child, dead;
static void make_pidfd(void)
{
	child = sleeping_child();
	child_fd = (int)syscall(SYS_pidfd_open, child, 0);
	need(child_fd >= 0, "pidfd_open");
}
static void use_pidfd(void)
{
	say("alive %d", !readable_within(child_fd, 0));
	say("killed %ld", syscall(SYS_pidfd_send_signal, child_fd, SIGKILL, NULL, 0));
	say("seen %d", readable(child_fd));
	int status = 0;
	say("reaped %d", waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGKILL);
}
static void make_pidfd_of_dead(void)
{
	dead = fork();
	if (dead == 0)
		_exit(7);
	dead_fd = (int)syscall(SYS_pidfd_open, dead, 0);
	need(dead_fd >= 0 && readable(dead_fd), "pidfd_open");
}
static void use_pidfd_of_dead(void)
{
	siginfo_t info = {0};
	int done = waitid(P_PIDFD, (id_t)dead_fd, &info, WEXITED);
	say("%d %d", done, info.si_status);
}

/* ---- files ---- */

static int watch, full_watch, fan;
static void make_inotify(void)
{
	mkdir("watched", 0700);
	watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	need(inotify_add_watch(watch, "watched", IN_CREATE | IN_DELETE) == 1, "inotify_add_watch");
}
static void say_inotify(int fd)
{
	union {
		struct inotify_event event;
		char room[4096];
	} got;
	ssize_t size = readable_within(fd, 1000) ? read(fd, &got, sizeof got) : -1;
	if (size > 0)
		say("%d %x %s", got.event.wd, got.event.mask, got.event.len ? got.event.name : "");
	else
		say("nothing");
}
static void use_inotify(void)
{
	close(open("watched/new", O_CREAT | O_WRONLY, 0600));
	say_inotify(watch);
}
static void make_inotify_unread(void)
{
	mkdir("unread", 0700);
	full_watch = inotify_init1(IN_NONBLOCK);
	need(inotify_add_watch(full_watch, "unread", IN_CREATE) == 1, "inotify_add_watch");
	close(open("unread/before", O_CREAT | O_WRONLY, 0600));
	need(readable(full_watch), "inotify");
}
static void use_inotify_unread(void) { say_inotify(full_watch); }
static void make_fanotify(void)
{
	mkdir("fan", 0700);
	close(open("fan/file", O_CREAT | O_WRONLY, 0600));
	fan = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);
	if (fan < 0)
		lack();
	need(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "fan/file") == 0, "mark");
}
static void use_fanotify(void)
{
	struct fanotify_event_metadata event = {.fd = -1};
	close(open("fan/file", O_RDONLY));
	ssize_t got = readable_within(fan, 1000) ? read(fan, &event, sizeof event) : -1;
	say("%zd %lx", got, (unsigned long)event.mask);
	close(event.fd);
}

/* ---- epoll ---- */

static int poller, inner, ends[2], oneshot, edge, gone_poll;
static void add(int to, int fd, unsigned events, uint64_t data)
{
	struct epoll_event event = {.events = events, .data.u64 = data};
	need(epoll_ctl(to, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}
static void say_events(int fd)
{
	struct epoll_event events[8];
	int got = epoll_wait(fd, events, 8, 0);
	say("%d", got);
	for (int i = 0; i < got; i++)
		say("%x of %lx", events[i].events, (unsigned long)events[i].data.u64);
}
static void make_epoll(void)
{
	need(pipe(ends) == 0, "pipe");
	inner = epoll_create1(EPOLL_CLOEXEC);
	poller = epoll_create1(0);
	add(inner, ends[0], EPOLLIN | EPOLLRDHUP, 0x123456789abcdef0);
	add(poller, inner, EPOLLIN | EPOLLET, 17);
}
static void use_epoll(void)
{
	need(write(ends[1], "x", 1) == 1, "write");
	say_events(poller);
	say_events(poller);
	say_events(inner);
}
static void make_oneshot(void)
{
	int fd = event_fd(1, 0);
	oneshot = epoll_create1(0);
	add(oneshot, fd, EPOLLIN | EPOLLONESHOT, 1);
	add(oneshot, event_fd(1, 0), EPOLLIN | EPOLLEXCLUSIVE, 2);
	struct epoll_event event;
	need(epoll_wait(oneshot, &event, 1, 0) == 1, "epoll_wait");
	if (event.data.u64 == 2)
		need(epoll_wait(oneshot, &event, 1, 0) == 1, "epoll_wait");
}
static void use_oneshot(void) { say_events(oneshot); }
static int edge_fd;
static void make_edge(void)
{
	edge = epoll_create1(0);
	edge_fd = event_fd(0, 0);
	add(edge, edge_fd, EPOLLIN | EPOLLET, 5);
}
static void use_edge(void)
{
	uint64_t one = 1;
	need(write(edge_fd, &one, sizeof one) == sizeof one, "write");
	say_events(edge);
	say_events(edge);
}
/* The number under which it was added has been closed; a copy keeps the file. */
static void make_gone_poll(void)
{
	int fd = event_fd(1, 0);
	gone_poll = epoll_create1(0);
	add(gone_poll, fd, EPOLLIN, 6);
	need(dup(fd) >= 0, "dup");
	close(fd);
}
static void use_gone_poll(void) { say_events(gone_poll); }

const struct object events[] = {
	{"counter", make_counter, use_counter},
	{"semaphore", make_semaphore, use_semaphore},
	{"empty_semaphore", make_empty_semaphore, use_empty_semaphore},
	{"shared_semaphore", make_shared_semaphore, use_shared_semaphore},
	{"signals", make_signals, use_signals},
	{"pidfd", make_pidfd, use_pidfd},
	{"pidfd_of_dead", make_pidfd_of_dead, use_pidfd_of_dead},
	{"inotify", make_inotify, use_inotify},
	{"inotify_unread", make_inotify_unread, use_inotify_unread},
	{"fanotify", make_fanotify, use_fanotify},
	{"epoll", make_epoll, use_epoll},
	{"oneshot", make_oneshot, use_oneshot},
	{"edge", make_edge, use_edge},
	{"gone_poll", make_gone_poll, use_gone_poll},
	{0},
};

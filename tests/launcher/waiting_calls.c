/* Threads that wait in calls with a relative timeout, each in another one. One that returns is
 * named. waiting_calls FOLDER SECONDS: makes FOLDER/ready, ends when there is FOLDER/go, or when
 * all have returned that wait for so many seconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int pair[2], word;
static struct timespec span;
static struct timeval short_span;
static atomic_uint returned;

static int in_poll(void)
{
	struct pollfd p = {pair[0], POLLIN, 0};
	return poll(&p, 1, (int)span.tv_sec * 1000);
}
static int in_ppoll(void)
{
	struct pollfd p = {pair[0], POLLIN, 0};
	return ppoll(&p, 1, &span, NULL);
}
static int in_select(void)
{
	struct timeval left = short_span;
	fd_set set;
	FD_ZERO(&set);
	FD_SET(pair[0], &set);
	return select(pair[0] + 1, &set, NULL, NULL, &left);
}
static int in_epoll(void)
{
	struct epoll_event e = {.events = EPOLLIN};
	int fd = epoll_create1(0);
	epoll_ctl(fd, EPOLL_CTL_ADD, pair[0], &e);
	return epoll_wait(fd, &e, 1, (int)span.tv_sec * 1000);
}
static int in_nanosleep(void) { return nanosleep(&span, NULL); }
static int in_clock_nanosleep(void)
{
	int error = clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
	errno = error;
	return error ? -1 : 0;
}
static int in_futex(void) { return (int)syscall(SYS_futex, &word, FUTEX_WAIT, 0, &span, NULL, 0); }
static int in_sem(void)
{
	static sem_t sem;
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += span.tv_sec;
	return sem_timedwait(&sem, &until);
}
static int in_sigtimedwait(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	return sigtimedwait(&set, NULL, &span);
}
static int in_recv(void)
{
	char byte;
	int two[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, two);
	setsockopt(two[0], SOL_SOCKET, SO_RCVTIMEO, &short_span, sizeof short_span);
	return (int)recv(two[0], &byte, 1, 0);
}
static int in_read(void)
{
	char byte;
	return (int)read(pair[0], &byte, 1);
}
static int in_semop(void)
{
	struct sembuf take = {0, -1, 0};
	int id = semget(IPC_PRIVATE, 1, 0600);
	return semtimedop(id, &take, 1, &span);
}
static int in_msgrcv(void)
{
	struct {
		long kind;
		char text[8];
	} message;
	int id = msgget(IPC_PRIVATE, 0600);
	return (int)msgrcv(id, &message, sizeof message.text, 0, 0);
}

static const struct {
	const char *name;
	int (*call)(void);
} calls[] = {
	{"poll", in_poll},
	{"ppoll", in_ppoll},
	{"select", in_select},
	{"epoll_wait", in_epoll},
	{"nanosleep", in_nanosleep},
	{"clock_nanosleep", in_clock_nanosleep},
	{"futex", in_futex},
	{"sem_timedwait", in_sem},
	{"sigtimedwait", in_sigtimedwait},
	{"recv", in_recv},
	{"semtimedop", in_semop},
	{"read", in_read}, /* from here on without a timeout */
	{"msgrcv", in_msgrcv},
};
#define TIMED (sizeof calls / sizeof *calls - 2)

static void *wait_in(void *which)
{
	size_t i = (size_t)which;
	errno = 0;
	int result = calls[i].call();
	printf("%s returned %d, errno %d\n", calls[i].name, result, errno);
	fflush(stdout);
	returned++;
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	sigset_t set;
	if (argc != 3 || chdir(argv[1]) || pipe(pair))
		return 2;
	span.tv_sec = short_span.tv_sec = atoi(argv[2]);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		pthread_create(&thread, NULL, wait_in, (void *)i);
	usleep(200000);
	fclose(fopen("ready", "w"));
	while (access("go", F_OK) && returned < TIMED)
		usleep(10000);
	usleep(200000);
	puts("end");
	return 0;
}

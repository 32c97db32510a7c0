/* pipes.c: pipes, terminals, and what is in them. */
#include <termios.h>

#include "objects.h"

static int plain[2], large[2], packets[2], half[2], fifo, owned[2];

static void put(int fd, const char *text)
{
	need(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write");
}

static void make_pipe(void)
{
	need(pipe2(plain, O_NONBLOCK) == 0, "pipe2");
	put(plain[1], "one");
	put(plain[1], "two");
}
static void use_pipe(void)
{
	say("flags %x", fcntl(plain[0], F_GETFL) & O_NONBLOCK);
	say_content(plain[0]);
	say_content(plain[0]);
	put(plain[1], "three");
	say_content(plain[0]);
}

#define LARGE (1 << 20)
static void make_large_pipe(void)
{
	need(pipe2(large, O_CLOEXEC) == 0, "pipe2");
	need(fcntl(large[0], F_SETPIPE_SZ, LARGE) == LARGE, "F_SETPIPE_SZ");
	char block[4096];
	for (int i = 0; i < LARGE / 4096; i++) {
		memset(block, 'a' + i % 26, sizeof block);
		need(write(large[1], block, sizeof block) == sizeof block, "write");
	}
}
static void use_large_pipe(void)
{
	say("size %d", fcntl(large[0], F_GETPIPE_SZ));
	unsigned sum = 0, got = 0;
	unsigned char block[4096];
	while (readable_within(large[0], 0)) {
		ssize_t size = read(large[0], block, sizeof block);
		need(size > 0, "read");
		for (ssize_t i = 0; i < size; i++)
			sum = sum * 31 + block[i];
		got += (unsigned)size;
	}
	say("%u bytes, sum %x", got, sum);
}

static void make_packet_pipe(void) { need(pipe2(packets, O_DIRECT | O_NONBLOCK) == 0, "pipe2"); }
static void use_packet_pipe(void)
{
	put(packets[1], "one");
	put(packets[1], "two");
	say_content(packets[0]);
	say_content(packets[0]);
}

/* Nobody writes any more. */
static void make_half_pipe(void)
{
	need(pipe(half) == 0, "pipe");
	put(half[1], "last");
	close(half[1]);
}
static void use_half_pipe(void)
{
	say_content(half[0]);
	char byte;
	say("%zd", read(half[0], &byte, 1));
}

static void make_fifo(void)
{
	need(mkfifo("fifo", 0600) == 0, "mkfifo");
	fifo = open("fifo", O_RDWR | O_NONBLOCK);
	need(fifo >= 0, "fifo");
	put(fifo, "in the fifo");
}
static void use_fifo(void) { say_content(fifo); }

/* A signal that the program chose notifies its owner. */
static volatile sig_atomic_t told, told_fd;
static void tell(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	told++;
	told_fd = info->si_fd;
}
static void make_owned(void)
{
	need(pipe(owned) == 0, "pipe");
	struct sigaction action = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO};
	sigaction(SIGRTMIN + 5, &action, NULL);
	fcntl(owned[0], F_SETOWN, getpid());
	fcntl(owned[0], F_SETSIG, SIGRTMIN + 5);
	fcntl(owned[0], F_SETFL, fcntl(owned[0], F_GETFL) | O_ASYNC);
}
static void use_owned(void)
{
	put(owned[1], "x");
	for (int i = 0; i < 500 && !told; i++)
		usleep(20000);
	say("told %d, of it %d", (int)told, told_fd == owned[0]);
}

/* ---- terminals ---- */

static int master, slave, master_of_none;
static int open_master(void)
{
	int fd = posix_openpt(O_RDWR | O_NOCTTY);
	need(fd >= 0 && grantpt(fd) == 0 && unlockpt(fd) == 0, "posix_openpt");
	return fd;
}
static void make_terminal(void)
{
	master = open_master();
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_NONBLOCK);
	need(slave >= 0, "pts");
	struct termios mode;
	tcgetattr(slave, &mode);
	cfmakeraw(&mode);
	mode.c_cc[VMIN] = 3;
	tcsetattr(slave, TCSANOW, &mode);
	struct winsize size = {41, 132, 0, 0};
	ioctl(master, TIOCSWINSZ, &size);
}
static void use_terminal(void)
{
	struct termios mode;
	struct winsize size = {0};
	tcgetattr(slave, &mode);
	ioctl(slave, TIOCGWINSZ, &size);
	say("%d x %d, min %d, raw %d", size.ws_row, size.ws_col, mode.c_cc[VMIN],
	    !(mode.c_lflag & (ICANON | ECHO)));
	put(slave, "to the master");
	need(readable(master), "terminal");
	say_content(master);
	put(master, "to the slave");
	need(readable(slave), "terminal");
	say_content(slave);
}
static int unread_slave;
static void make_unread_terminal(void)
{
	master_of_none = open_master();
	unread_slave = open(ptsname(master_of_none), O_RDWR | O_NOCTTY);
	put(unread_slave, "unread output\n");
	put(master_of_none, "unread input\n");
}
static void use_unread_terminal(void)
{
	say_content(master_of_none);
	say_content(unread_slave);
}

const struct object pipes[] = {
	{"pipe", make_pipe, use_pipe},
	{"large_pipe", make_large_pipe, use_large_pipe},
	{"packet_pipe", make_packet_pipe, use_packet_pipe},
	{"half_pipe", make_half_pipe, use_half_pipe},
	{"fifo", make_fifo, use_fifo},
	{"owned", make_owned, use_owned},
	{"terminal", make_terminal, use_terminal},
	{"unread_terminal", make_unread_terminal, use_unread_terminal},
	{0},
};

/* Kernel objects that a process can hold: what it makes before it is saved, and what it finds of
 * them afterwards. Each `use` says in one line what a program would notice.
 */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct object {
	const char *name;
	void (*make)(void);
	void (*use)(void);
};

extern const struct object timers[], events[], pipes[], sockets[], files[], settings[], memory[],
	unseen[], refused[];

/* A part of the line. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the program, naming what failed, unless `ok`. */
void need(int ok, const char *what);

/* The kernel has no such thing: the program ends, and says so. */
void lack(void);

/* Whether there is something to read within 10 s; within `ms`. */
int readable(int fd);
int readable_within(int fd, int ms);

/* Prints the bytes that can be read without waiting, as text in quotes. */
void say_content(int fd);

/* A child that sleeps until it is killed. */
pid_t sleeping_child(void);

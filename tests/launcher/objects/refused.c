/* refused.c: what CRIU cannot take down. */
#include <linux/bpf.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <sys/timerfd.h>

#include "objects.h"

static void keep(long fd)
{
	if (fd < 0)
		lack();
}
static void alive(void) { say("alive"); }

static int clock_fd;
static void make_clock(int clock)
{
	clock_fd = timerfd_create(clock, 0);
	keep(clock_fd);
	struct itimerspec spec = {{0}, {3600, 0}};
	need(timerfd_settime(clock_fd, 0, &spec, NULL) == 0, "timerfd_settime");
}
static void make_boot_clock(void) { make_clock(CLOCK_BOOTTIME); }
static void make_alarm_clock(void) { make_clock(CLOCK_BOOTTIME_ALARM); }
static void use_clock(void)
{
	struct itimerspec spec;
	need(timerfd_gettime(clock_fd, &spec) == 0, "timerfd_gettime");
	say("%d", spec.it_value.tv_sec > 1800);
}
static void make_program(void)
{
	struct bpf_insn code[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K},
				  {.code = BPF_JMP | BPF_EXIT}};
	union bpf_attr about = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2};
	about.insns = (uintptr_t)code;
	about.license = (uintptr_t)"GPL";
	keep(syscall(SYS_bpf, BPF_PROG_LOAD, &about, sizeof about));
}
static void make_ruleset(void)
{
	struct landlock_ruleset_attr about = {.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE};
	keep(syscall(SYS_landlock_create_ruleset, &about, sizeof about, 0));
}
static void make_mount_context(void) { keep(syscall(SYS_fsopen, "tmpfs", 0)); }
static void make_raw_socket(void) { keep(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)); }
static void make_vsock(void) { keep(socket(AF_VSOCK, SOCK_STREAM, 0)); }

const struct object refused[] = {
	{"boot_clock", make_boot_clock, use_clock},
	{"alarm_clock", make_alarm_clock, use_clock},
	{"program", make_program, alive},
	{"ruleset", make_ruleset, alive},
	{"mount_context", make_mount_context, alive},
	{"raw_socket", make_raw_socket, alive},
	{"vsock", make_vsock, alive},
	{0},
};

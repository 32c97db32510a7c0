/* settings.c: what a process and its threads are set to. */
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/securebits.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/resource.h>

#include "objects.h"

static void say_file(const char *path)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY);
	ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	close(fd);
	say("%.*s", got < 0 ? 0 : (int)strcspn(text, "\n"), text);
}
static void put_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	need(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
	close(fd);
}

/* ---- signals ---- */

static char stack[65536];
static void nothing(int number) { (void)number; }
static void make_signal_state(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGRTMIN + 8);
	sigprocmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGHUP);
	for (int i = 0; i < 3; i++)
		sigqueue(getpid(), SIGRTMIN + 8, (union sigval){.sival_int = 40 + i});
	syscall(SYS_tgkill, getpid(), gettid(), SIGHUP);
	stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
	sigaltstack(&other, NULL);
	struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART | SA_ONSTACK};
	sigaddset(&action.sa_mask, SIGINT);
	sigaction(SIGUSR1, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
}
static void use_signal_state(void)
{
	sigset_t set, mask;
	stack_t other;
	struct sigaction action;
	sigprocmask(SIG_SETMASK, NULL, &mask);
	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGRTMIN + 8);
	siginfo_t info;
	while (sigtimedwait(&set, &info, &(struct timespec){0}) > 0)
		say("%d:%d", info.si_signo, info.si_value.sival_int);
	sigaltstack(NULL, &other);
	sigaction(SIGUSR1, NULL, &action);
	say("blocked %d, stack %d of %zu, flags %x, mask %d", sigismember(&mask, SIGHUP),
	    other.ss_sp == stack, other.ss_size, action.sa_flags & (SA_RESTART | SA_ONSTACK),
	    sigismember(&action.sa_mask, SIGINT));
	say("ignored %d", signal(SIGPIPE, SIG_DFL) == SIG_IGN);
}

/* ---- scheduling ---- */

static void make_priority(void)
{
	need(setpriority(PRIO_PROCESS, 0, 5) == 0, "setpriority");
	struct sched_param none = {0};
	need(sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none) == 0, "scheduler");
}
static void use_priority(void)
{
	say("%d %d", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0) & ~SCHED_RESET_ON_FORK);
}
static void make_affinity(void)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	need(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}
static void use_affinity(void)
{
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	say("%d %d", CPU_COUNT(&set), CPU_ISSET(0, &set));
}
#define IDLE_CLASS (3 << 13)
static void make_io_priority(void)
{
	need(syscall(SYS_ioprio_set, 1, 0, IDLE_CLASS) == 0, "ioprio_set");
}
static void use_io_priority(void) { say("%lx", syscall(SYS_ioprio_get, 1, 0)); }
static void make_slack(void) { need(prctl(PR_SET_TIMERSLACK, 123456UL) == 0, "slack"); }
static void use_slack(void) { say("%d", prctl(PR_GET_TIMERSLACK)); }

/* ---- limits ---- */

static void make_limits(void)
{
	struct rlimit files = {200, 300}, cores = {0, 4096};
	setrlimit(RLIMIT_NOFILE, &files);
	setrlimit(RLIMIT_CORE, &cores);
	put_file("/proc/self/oom_score_adj", "321");
	put_file("/proc/self/coredump_filter", "0x11");
	umask(027);
}
static void use_limits(void)
{
	struct rlimit files, cores;
	getrlimit(RLIMIT_NOFILE, &files);
	getrlimit(RLIMIT_CORE, &cores);
	say("%ld %ld %ld %ld, umask %o", (long)files.rlim_cur, (long)files.rlim_max,
	    (long)cores.rlim_cur, (long)cores.rlim_max, umask(0));
	say_file("/proc/self/oom_score_adj");
	say_file("/proc/self/coredump_filter");
}

/* ---- prctl and the like ---- */

static void make_name(void) { prctl(PR_SET_NAME, "a new name"); }
static void use_name(void)
{
	char name[16];
	prctl(PR_GET_NAME, name);
	say("%s", name);
}
static void make_dumpable(void) { prctl(PR_SET_DUMPABLE, 0); }
static void use_dumpable(void) { say("%d", prctl(PR_GET_DUMPABLE)); }
static pid_t heir;
static void make_death_signal(void)
{
	heir = fork();
	if (heir == 0) {
		prctl(PR_SET_PDEATHSIG, SIGUSR1);
		while (access("go", F_OK) != 0)
			usleep(10000);
		int number = 0;
		prctl(PR_GET_PDEATHSIG, &number);
		_exit(number);
	}
}
static void use_death_signal(void)
{
	int status = -1;
	waitpid(heir, &status, 0);
	say("%d", WEXITSTATUS(status));
}
static void make_privileges(void) { prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }
static void use_privileges(void) { say("%d", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)); }
static void make_subreaper(void) { prctl(PR_SET_CHILD_SUBREAPER, 1); }
static void use_subreaper(void)
{
	int on = -1;
	prctl(PR_GET_CHILD_SUBREAPER, &on);
	say("%d", on);
}
static void make_huge_pages(void) { need(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0, "THP"); }
static void use_huge_pages(void) { say("%d", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0)); }
static void make_barrier(void)
{
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
		lack();
}
static void use_barrier(void)
{
	say("%ld", syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
}

/* ---- privileges ---- */

static void make_filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof *code, code};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
}
static void use_filter(void)
{
	say("%ld", syscall(SYS_getpgid, 0));
	say("%d", errno);
}
static void make_capabilities(void)
{
	need(prctl(PR_CAPBSET_DROP, CAP_SYS_TIME) == 0, "PR_CAPBSET_DROP");
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	need(syscall(SYS_capget, &head, data) == 0, "capget");
	data[0].inheritable = 1 << CAP_NET_RAW;
	data[0].permitted &= ~(1u << CAP_SYS_TIME);
	data[0].effective &= ~(1u << CAP_SYS_TIME | 1u << CAP_NET_BIND_SERVICE);
	need(syscall(SYS_capset, &head, data) == 0, "capset");
	need(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_RAW, 0, 0) == 0, "ambient");
	need(prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_KEEP_CAPS) == 0, "securebits");
}
static void use_capabilities(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	syscall(SYS_capget, &head, data);
	say("%x %x %x %d %d %x", data[0].effective, data[0].permitted, data[0].inheritable,
	    prctl(PR_CAPBSET_READ, CAP_SYS_TIME),
	    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_NET_RAW, 0, 0),
	    prctl(PR_GET_SECUREBITS));
}

/* ---- threads ---- */

static pthread_mutex_t robust;
static volatile int dies;
static void *take(void *argument)
{
	pthread_mutex_lock(&robust);
	while (!dies)
		usleep(10000);
	return argument;
}
static pthread_t taker;
static void make_robust(void)
{
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&robust, &attributes);
	pthread_create(&taker, NULL, take, NULL);
	while (pthread_mutex_trylock(&robust) == 0) {
		pthread_mutex_unlock(&robust);
		usleep(1000);
	}
}
static void use_robust(void)
{
	dies = 1;
	pthread_join(taker, NULL);
	say("%d", pthread_mutex_lock(&robust));
}
static void make_rseq(void) {}
static void use_rseq(void)
{
	unsigned cpu = 0;
	for (int i = 0; i < 1000; i++) {
		getcpu(&cpu, NULL);
		if ((unsigned)sched_getcpu() == cpu) {
			say("agrees");
			return;
		}
	}
	say("%d is not %u", sched_getcpu(), cpu);
}

static void make_personality(void)
{
	need(personality(ADDR_NO_RANDOMIZE | SHORT_INODE) >= 0, "personality");
}
static void use_personality(void) { say("%x", (unsigned)personality(0xffffffff)); }

const struct object settings[] = {
	{"signal_state", make_signal_state, use_signal_state},
	{"priority", make_priority, use_priority},
	{"affinity", make_affinity, use_affinity},
	{"io_priority", make_io_priority, use_io_priority},
	{"slack", make_slack, use_slack},
	{"limits", make_limits, use_limits},
	{"name", make_name, use_name},
	{"dumpable", make_dumpable, use_dumpable},
	{"death_signal", make_death_signal, use_death_signal},
	{"privileges", make_privileges, use_privileges},
	{"subreaper", make_subreaper, use_subreaper},
	{"huge_pages", make_huge_pages, use_huge_pages},
	{"barrier", make_barrier, use_barrier},
	{"filter", make_filter, use_filter},
	{"capabilities", make_capabilities, use_capabilities},
	{"robust", make_robust, use_robust},
	{"rseq", make_rseq, use_rseq},
	{"personality", make_personality, use_personality},
	{0},
};

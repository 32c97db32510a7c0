/* memory.c: how memory is mapped, and what the kernel was advised of it. */
#include <linux/mempolicy.h>

#include "objects.h"

#define SIZE (64 << 10)

static char *map(int protection, int flags)
{
	char *at = mmap(NULL, SIZE, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	need(at != MAP_FAILED, "mmap");
	return at;
}

/* The flags that the kernel shows of the mapping at an address. */
static void say_flags(const char *at)
{
	char line[512];
	int found = 0;
	FILE *file = fopen("/proc/self/smaps", "r");
	need(file != NULL, "smaps");
	while (fgets(line, sizeof line, file)) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			found = from <= (unsigned long)at && (unsigned long)at < to;
		else if (found && strncmp(line, "VmFlags:", 8) == 0)
			say("%.*s;", (int)strcspn(line + 9, "\n"), line + 9);
	}
	fclose(file);
}

struct advice {
	int advice;
	char *at;
};
static struct advice advised[] = {
	{MADV_DONTFORK, 0}, {MADV_DONTDUMP, 0},   {MADV_WIPEONFORK, 0}, {MADV_MERGEABLE, 0},
	{MADV_HUGEPAGE, 0}, {MADV_NOHUGEPAGE, 0}, {MADV_SEQUENTIAL, 0}, {MADV_RANDOM, 0},
};
#define ADVISED (sizeof advised / sizeof *advised)
static void make_advised(void)
{
	for (size_t i = 0; i < ADVISED; i++) {
		advised[i].at = map(PROT_READ | PROT_WRITE, 0);
		memset(advised[i].at, 'a', SIZE);
		if (madvise(advised[i].at, SIZE, advised[i].advice) != 0)
			need(errno == EINVAL, "madvise");
	}
}
static void use_advised(void)
{
	for (size_t i = 0; i < ADVISED; i++)
		say_flags(advised[i].at);
}

static char *locked, *on_fault, *grows, *none, *kept;
static void make_locked(void)
{
	locked = map(PROT_READ | PROT_WRITE, 0);
	on_fault = map(PROT_READ | PROT_WRITE, 0);
	need(mlock(locked, SIZE) == 0, "mlock");
	need(mlock2(on_fault, SIZE, MLOCK_ONFAULT) == 0, "mlock2");
}
static void use_locked(void)
{
	say_flags(locked);
	say_flags(on_fault);
}
static void make_mapped(void)
{
	grows = map(PROT_READ | PROT_WRITE, MAP_GROWSDOWN);
	none = map(PROT_NONE, 0);
	kept = map(PROT_READ | PROT_WRITE, MAP_NORESERVE);
	strcpy(kept, "kept");
	mprotect(kept, SIZE, PROT_READ);
}
static void use_mapped(void)
{
	say_flags(grows);
	say_flags(none);
	say("%s", kept);
	say_flags(kept);
}
/* What is mapped later is locked, too. */
static void make_locked_ahead(void) { need(mlockall(MCL_FUTURE) == 0, "mlockall"); }
static void use_locked_ahead(void) { say_flags(map(PROT_READ, 0)); }

static void make_policy(void)
{
	unsigned long nodes = 1;
	if (syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 65) != 0)
		lack();
}
static void use_policy(void)
{
	int mode = -1;
	unsigned long nodes = 0;
	syscall(SYS_get_mempolicy, &mode, &nodes, 64, NULL, 0);
	say("%d %lx", mode, nodes);
}
static char *interleaved;
static void make_mapped_policy(void)
{
	unsigned long nodes = 1;
	interleaved = map(PROT_READ | PROT_WRITE, 0);
	if (syscall(SYS_mbind, interleaved, SIZE, MPOL_BIND, &nodes, 65, 0) != 0)
		lack();
	memset(interleaved, 'a', SIZE);
}
static void use_mapped_policy(void)
{
	int mode = -1;
	unsigned long nodes = 0;
	syscall(SYS_get_mempolicy, &mode, &nodes, 64, interleaved, MPOL_F_ADDR);
	say("%d %lx", mode, nodes);
}

static char *guarded;
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
static void make_guarded(void)
{
	guarded = map(PROT_READ | PROT_WRITE, 0);
	if (madvise(guarded + 4096, 4096, MADV_GUARD_INSTALL) != 0)
		lack();
}
static void use_guarded(void)
{
	int ends[2];
	need(pipe(ends) == 0, "pipe");
	say("%zd", write(ends[1], guarded, 1));
	say("%zd", write(ends[1], guarded + 4096, 1));
}

const struct object memory[] = {
	{"advised", make_advised, use_advised},
	{"locked", make_locked, use_locked},
	{"locked_ahead", make_locked_ahead, use_locked_ahead},
	{"mapped", make_mapped, use_mapped},
	{"policy", make_policy, use_policy},
	{"mapped_policy", make_mapped_policy, use_mapped_policy},
	{"guarded", make_guarded, use_guarded},
	{0},
};

/* memory.c: how memory is mapped, and what the kernel was advised of it. */
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

static char *grows, *none, *kept;
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
	{"mapped", make_mapped, use_mapped},
	{"guarded", make_guarded, use_guarded},
	{0},
};

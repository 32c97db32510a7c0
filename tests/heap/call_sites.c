/* call_sites.c: prints where calls come from: the name of the call, its site, its path; all of them
 * twice. Then how often the stack was walked for that, the first time and the second. */
#include <stdio.h>
#include <unwind.h>

#include "call_site.h"
#include "issue.h"

struct locked locks[LOCK_COUNT];

#define APART __attribute__((noinline))

static APART struct call_site allocate(void)
{
	struct call_site found = call_site();
	__asm__ volatile("");
	return found;
}

static APART struct call_site through(void)
{
	struct call_site found = allocate();
	__asm__ volatile("");
	return found;
}

static APART struct call_site sized(unsigned bytes)
{
	volatile char room[bytes];
	room[bytes - 1] = 0;
	struct call_site found = allocate();
	room[0] = room[bytes - 1];
	return found;
}

static APART struct call_site deep(unsigned left)
{
	struct call_site found = left ? deep(left - 1) : allocate();
	__asm__ volatile("");
	return found;
}

static int walks; /* the linker calls this one instead */
_Unwind_Reason_Code __real__Unwind_Backtrace(_Unwind_Trace_Fn, void *);
_Unwind_Reason_Code __wrap__Unwind_Backtrace(_Unwind_Trace_Fn step, void *into)
{
	walks++;
	return __real__Unwind_Backtrace(step, into);
}

static void show(const char *name, struct call_site found)
{
	printf("%s %016llx %016llx\n", name, (unsigned long long)found.site,
	       (unsigned long long)found.path);
}

int main(void)
{
	int walked[2];
	for (volatile int round = 0; round < 2; round++) {
		show("parameters", allocate());
		show("gradients", allocate());
		show("through", through());
		for (volatile unsigned bytes = 10; bytes < 20000; bytes *= 40)
			show("sized", sized(bytes));
		for (volatile unsigned left = 10; left < 42; left += 31)
			show(left == 10 ? "deep" : "deeper", deep(left));
		show("deepest", deep(60));
		walked[round] = walks;
	}
	printf("walked %d %d\n", walked[0], walked[1] - walked[0]);
	printf("loaded %p\n", (void *)main);
	return 0;
}

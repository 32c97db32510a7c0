/* call_site.c: walks the stack, and caches its frames.
 *
 * A walk with the unwind tables takes some microseconds, and programs allocate in loops. So the
 * cache records which return address was at which place on the stack, and where the caller's was.
 * The same address at the same place means the same frame: the address identifies the function
 * whose frame is above it, and so the frame's size. In a function whose frame has no fixed size,
 * something else may be there: an unknown frame is walked again, and a wrong one costs only speed,
 * as for everything that depends on call sites.
 *
 * Lock: SITES_LOCK around the cache. The stack is walked without it: a walk takes the dynamic
 * linker's lock, under which a program may call us.
 */
#include <dlfcn.h>
#include <string.h>
#include <unwind.h>

#include "call_site.h"
#include "issue.h"

#define CACHED_FRAMES 4096 /* frames */
#define PLACES 4           /* places at which a frame may be cached */

struct frame {
	const uint64_t *at; /* the place of the return address */
	uint64_t address;
	const uint64_t *next;      /* place of the caller's return address; NULL: outermost frame */
	uint64_t offset, function; /* relative to the module: of address, function */
};
struct walk {
	struct frame frames[CALL_SITE_FRAMES + 1]; /* one more, for the last one's `next` */
	uint32_t count;
	const uint64_t *first;
	bool certain; /* all return addresses are at the places where a look-up reads them */
};
static struct frame cached_frames[CACHED_FRAMES];

static uint64_t mix_hash(uint64_t hash, uint64_t next)
{
	hash = (hash ^ next) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* Under SITES_LOCK: the entry of this frame, or the entry to use for it, which may hold another
 * one. */
static struct frame *frame_entry(const uint64_t *at, uint64_t address)
{
	static uint32_t next;
	struct frame *places =
		&cached_frames[mix_hash((uint64_t)at, address) % (CACHED_FRAMES / PLACES) * PLACES];
	for (uint32_t i = 0; i < PLACES; i++)
		if (!places[i].at || (places[i].at == at && places[i].address == address))
			return &places[i];
	return &places[next++ % PLACES];
}

/* Reads any function's frame, including words that the address sanitizer poisons. */
__attribute__((no_sanitize_address)) static uint64_t word_at(const uint64_t *at) { return *at; }

static void follow_frames(struct call_site *found, const struct frame *f)
{
	found->site = mix_hash(found->site, f->offset);
	found->path = mix_hash(found->path, f->function);
}

/* Under SITES_LOCK: follows cached frames only. False: some frame is not cached. */
static bool follow_cached(struct call_site *found, const uint64_t *at)
{
	for (uint32_t i = 0; i < CALL_SITE_FRAMES && at; i++) {
		uint64_t address = word_at(at);
		const struct frame *f = frame_entry(at, address);
		if (f->at != at || f->address != address)
			return false;
		follow_frames(found, f);
		at = f->next;
	}
	return true;
}

static _Unwind_Reason_Code on_frame(struct _Unwind_Context *context, void *into)
{
	struct walk *k = into;
	struct frame *f = &k->frames[k->count];
	Dl_info module;
	/* On x86-64 a return address is just below the stack pointer to which it returns. */
	f->at = (const uint64_t *)_Unwind_GetCFA(context) - 1;
	f->address = _Unwind_GetIP(context);
	if (f->at < k->first)
		return _URC_NO_REASON; /* a frame of this file */
	if (!f->address)
		return _URC_NORMAL_STOP; /* the previous frame is the outermost */
	k->certain &= word_at(f->at) == f->address && (k->count || f->at == k->first);
	if (k->count) {
		k->certain &= f->at > f[-1].at;
		f[-1].next = f->at;
	}
	/* Code that was made at run time has no module: all of it counts as one place. */
	if (dladdr((void *)(f->address - 1), &module)) {
		f->offset = f->address - (uint64_t)module.dli_fbase;
		f->function = _Unwind_GetRegionStart(context) - (uint64_t)module.dli_fbase;
	}
	return ++k->count <= CALL_SITE_FRAMES ? _URC_NO_REASON : _URC_NORMAL_STOP;
}

__attribute__((noinline)) static struct call_site walk(const uint64_t *first)
{
	struct walk k = {.first = first, .certain = true};
	struct call_site found = {0};
	_Unwind_Backtrace(on_frame, &k);
	uint32_t count = k.count < CALL_SITE_FRAMES ? k.count : CALL_SITE_FRAMES;
	for (uint32_t i = 0; i < count; i++)
		follow_frames(&found, &k.frames[i]);
	lock(SITES_LOCK);
	for (uint32_t i = 0; i < count && k.certain; i++)
		*frame_entry(k.frames[i].at, k.frames[i].address) = k.frames[i];
	unlock(SITES_LOCK);
	return found;
}

__attribute__((noinline)) struct call_site call_site(void)
{
	const uint64_t *first = (const uint64_t *)__builtin_frame_address(0) + 1;
	struct call_site found = {0};
	lock(SITES_LOCK);
	bool known = follow_cached(&found, first);
	unlock(SITES_LOCK);
	return known ? found : walk(first);
}

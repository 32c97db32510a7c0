/* merge.c: what comparing the pages of ranks costs at a switch, in proxy/core/memory alone: a
 * device that does nothing, PAGES resident pages a rank, two to eight ranks (make bench-merge).
 *
 * Prints microseconds for one memory_merge, the median of many: when all is shared, when all pages
 * are each rank's own and nothing has changed since the last switch, and when all have changed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "memory/memory.h"

enum { PAGES = 200, RANKS = 8, ROUNDS = 401 };

static uint32_t chunks;
static uint64_t works;

static int create(struct hal_device *d, uint32_t *chunk) { return (void)d, *chunk = chunks++, 0; }
static void destroy(struct hal_device *d, uint32_t chunk) { (void)d, (void)chunk; }
static int space(struct hal_device *d, struct hal_space **out)
{
	return (void)d, *out = (void *)&chunks, 0;
}
static int map(struct hal_space *s, uint64_t a, uint32_t c, bool w)
{
	return (void)s, (void)a, (void)c, (void)w, 0;
}
static int unmap(struct hal_space *s, uint64_t a) { return (void)s, (void)a, 0; }
static int protect(struct hal_space *s, uint64_t a, uint32_t n, bool w)
{
	return (void)s, (void)a, (void)n, (void)w, 0;
}
static bool copied(struct hal_space *s, uint64_t *a, uint32_t *c)
{
	return (void)s, (void)a, (void)c, false;
}
static int host(struct hal_space *s, uint64_t a, int fd, uint64_t o, uint64_t b)
{
	return (void)s, (void)a, (void)fd, (void)o, (void)b, 0;
}
static int error(struct hal_space *s, char *t, uint32_t n) { return (void)s, (void)t, (void)n, 0; }
static int stream(struct hal_device *d, struct hal_stream **out)
{
	return (void)d, *out = (void *)&works, 0;
}
static uint32_t available(struct hal_stream *s) { return (void)s, 64; }
static uint64_t submit(struct hal_stream *s, const struct hal_work *w)
{
	return (void)s, (void)w, ++works;
}
static uint64_t completed(const struct hal_stream *s) { return (void)s, works; }

static const struct hal nothing = {.chunk_create = create,
				   .chunk_destroy = destroy,
				   .space_create = space,
				   .space_map = map,
				   .space_unmap = unmap,
				   .space_protect = protect,
				   .space_copied = copied,
				   .space_map_host = host,
				   .space_error = error,
				   .stream_create = stream,
				   .available = available,
				   .submit = submit,
				   .completed = completed};

static struct rank_memory ranks[RANKS];

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Each page has its own content: the same in all ranks, or one that no page ever had. */
static void write_all(struct rank_memory *m, bool same)
{
	static uint64_t written;
	for (uint64_t p = 0; p < PAGES; p++) {
		struct content c = {{p + 1, same ? 7 : 8 + written++}, 0, 0};
		content_is(m, page_addr((uint32_t)p), RF_CHUNK_BYTES, c);
	}
}

static double measure(uint32_t count, bool change)
{
	double us[ROUNDS];
	for (uint32_t i = 0; i < ROUNDS; i++) {
		for (uint32_t n = 0; n < count && change; n++)
			write_all(&ranks[n], false);
		double begun = now_us();
		memory_merge(&ranks[i % count]);
		us[i] = now_us() - begun;
	}
	qsort(us, ROUNDS, sizeof *us, by_size);
	return us[ROUNDS / 2];
}

static bool open_ranks(struct device_memory *d, uint32_t count, bool same)
{
	*d = (struct device_memory){.shares = true};
	chunks = 0;
	if (device_memory_open(d, &nothing, NULL, 2ull * RANKS * PAGES * RF_CHUNK_BYTES))
		return false;
	for (uint32_t n = 0; n < count; n++) {
		ranks[n] = (struct rank_memory){0};
		int fd = memfd_create("image", 0);
		struct rf_alloc a = {.addr = RF_DEV_BASE, .bytes = PAGES * RF_CHUNK_BYTES};
		if (ftruncate(fd, (off_t)RF_WINDOW_BYTES) ||
		    memory_open(&ranks[n], d, 1, n, fd, fd) || memory_alloc(&ranks[n], &a))
			return false;
		write_all(&ranks[n], same);
		struct memory_request all = {.purpose = PURPOSE_ACTIVATE};
		memory_request(&ranks[n], &all);
		while (!memory_resident(&ranks[n]))
			memory_turn(d);
	}
	return true;
}

int main(void)
{
	for (uint32_t count = 2; count <= RANKS; count *= 2) {
		struct device_memory shared, apart;
		if (!open_ranks(&shared, count, true))
			return 1;
		double same = measure(count, false);
		uint32_t page = ranks[0].live[0];
		if (ranks[1].pages[page].chunk != ranks[0].pages[page].chunk) {
			fprintf(stderr, "equal pages are not shared: nothing was measured\n");
			return 1;
		}
		if (!open_ranks(&apart, count, false))
			return 1;
		double unchanged = measure(count, false);
		double changed = measure(count, true);
		printf("%u ranks, %u pages: shared %.1f us, unchanged %.1f us, changed %.1f us\n",
		       count, PAGES, same, unchanged, changed);
	}
	return 0;
}

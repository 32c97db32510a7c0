/* coverage.c: a small coverage-guided fuzzer around LLVMFuzzerTestOneInput, for gcc.
 *
 * The proxy's core is compiled with -fsanitize-coverage=trace-pc: every block calls
 * __sanitizer_cov_trace_pc, which counts the edge in a map. Inputs come from the generator, and,
 * half of them, from inputs that reached something new. All of it follows from the seed, except
 * when the device's worker completes its work. The file that `--keep` names has the input being
 * run, so that a crash leaves it there; `coverage --replay FILE` runs it again.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

#define MAP_SIZE (1u << 16)
#define INPUT_MAX (96u << 10)
#define CORPUS_MAX 512u

static uint8_t hits[MAP_SIZE], seen[MAP_SIZE];
static _Thread_local uintptr_t previous;

__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
	uintptr_t here = (uintptr_t)__builtin_return_address(0);
	uintptr_t edge = ((here >> 1) * 0x9e3779b97f4a7c15ull) >> 48;
	hits[(edge ^ previous) % MAP_SIZE]++;
	previous = edge >> 1;
}

/* How often, in steps: 1, 2, 3, 4-7, 8-15, 16-31, 32-127, more. */
static uint8_t bucket(uint8_t n)
{
	return n == 0    ? 0
	       : n < 4   ? (uint8_t)(1u << (n - 1))
	       : n < 8   ? 8
	       : n < 16  ? 16
	       : n < 32  ? 32
	       : n < 128 ? 64
			 : 128;
}

static uint32_t news(void)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < MAP_SIZE; i++) {
		uint8_t b = bucket(hits[i]);
		count += (b & ~seen[i]) != 0;
		seen[i] |= b;
	}
	memset(hits, 0, sizeof hits);
	return count;
}

static uint32_t edges(void)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < MAP_SIZE; i++)
		count += seen[i] != 0;
	return count;
}

struct input {
	uint8_t *data;
	size_t size;
};
static struct input corpus[CORPUS_MAX];
static uint32_t corpus_count;

static void corpus_add(const uint8_t *data, size_t size, uint64_t draw)
{
	uint32_t at = corpus_count < CORPUS_MAX ? corpus_count++ : (uint32_t)(draw % CORPUS_MAX);
	free(corpus[at].data);
	corpus[at] = (struct input){malloc(size ? size : 1), size};
	if (!corpus[at].data)
		abort();
	memcpy(corpus[at].data, data, size);
}

static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	return z ^ (z >> 31);
}

/* The file's first 8 bytes: how long the input is; the input follows. */
static uint8_t *keep_open(const char *path)
{
	int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
	void *map;
	if (fd >= 0 && ftruncate(fd, INPUT_MAX + 8))
		abort();
	map = mmap(NULL, INPUT_MAX + 8, PROT_READ | PROT_WRITE,
		   fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	if (map == MAP_FAILED)
		abort();
	if (fd >= 0)
		close(fd);
	return map;
}

static int replay(const char *path)
{
	static uint8_t data[INPUT_MAX + 8];
	FILE *f = fopen(path, "rb");
	size_t got = f ? fread(data, 1, sizeof data, f) : 0;
	uint64_t size;
	if (f)
		fclose(f);
	if (got < 8) {
		fprintf(stderr, "%s: no input\n", path);
		return 2;
	}
	memcpy(&size, data, 8);
	LLVMFuzzerTestOneInput(data + 8, size < got - 8 ? size : got - 8);
	fuzz_end();
	return 0;
}

static void fuzz(uint64_t records, uint64_t seed, uint8_t *kept)
{
	uint64_t state = seed;
	while (fuzz_counters().records < records) {
		uint64_t size;
		if (corpus_count && next(&state) % 2) {
			const struct input *from = &corpus[next(&state) % corpus_count];
			memcpy(kept + 8, from->data, from->size);
			size = fuzz_mutate(next(&state), kept + 8, from->size, INPUT_MAX);
		} else {
			size = fuzz_generate(next(&state), kept + 8, next(&state) % INPUT_MAX);
		}
		memcpy(kept, &size, 8);
		LLVMFuzzerTestOneInput(kept + 8, size);
		if (news())
			corpus_add(kept + 8, size, next(&state));
	}
}

int main(int argc, char **argv)
{
	uint64_t records = 100000, seed = 1;
	const char *keep = NULL;
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--records"))
			records = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--keep"))
			keep = argv[i + 1];
		else if (!strcmp(argv[i], "--replay"))
			return replay(argv[i + 1]);
	}
	fuzz(records, seed, keep_open(keep));
	struct fuzz_counters c = fuzz_counters();
	fuzz_end();
	for (uint32_t i = 0; i < corpus_count; i++)
		free(corpus[i].data);
	printf("{\"inputs\": %llu, \"records\": %llu, \"controls\": %llu, \"moves\": %llu, "
	       "\"restarts\": %llu, \"edges\": %u, \"corpus\": %u}\n",
	       (unsigned long long)c.inputs, (unsigned long long)c.records,
	       (unsigned long long)c.controls, (unsigned long long)c.moves,
	       (unsigned long long)c.restarts, edges(), corpus_count);
	return 0;
}

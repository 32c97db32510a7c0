/* fuzz.h: what an input of fuzz_decoder.c is made of, for those who write inputs. */
#ifndef RANKFOLD_FUZZ_H
#define RANKFOLD_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* One step of an input: a record (its body follows), or something else that happens. */
enum fuzz_kind {
	FUZZ_RECORD,
	FUZZ_RAW,
	FUZZ_NUMBER,
	FUZZ_TURN,
	FUZZ_BARRIER,
	FUZZ_HURRY,
	FUZZ_EXIT,
	FUZZ_HEAD,
	FUZZ_HOST,
	FUZZ_MOVE,
	FUZZ_KINDS, /* RAW: of a wrong size, NUMBER: with a wrong number */
};
struct fuzz_step {
	uint8_t kind, rank;
	uint16_t opcode, slot, bytes; /* bytes of body behind this step */
};

/* records: those that the proxy has taken. restarts: jobs that had failed and were replaced. */
struct fuzz_counters {
	uint64_t inputs, records, controls, moves, restarts;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
struct fuzz_counters fuzz_counters(void);
void fuzz_end(void); /* lets go of everything that is kept between inputs */

/* generate.c: an input that a rank gone wrong might send, for a seed; its bytes. */
size_t fuzz_generate(uint64_t seed, uint8_t *out, size_t room);
/* Changes an input in a few places; its new size. */
size_t fuzz_mutate(uint64_t seed, uint8_t *data, size_t size, size_t room);

#endif

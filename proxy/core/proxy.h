/* proxy.h: the functions that the proxy's Python half calls. Plain C, because cffi parses this
 * file.
 *
 * proxy_open starts the loop thread, which owns all structures. Every other function runs in the
 * loop thread and returns when it has run there; none waits for a device, a rank or a peer. Later
 * results are reported as events: proxy_event_fd becomes readable, and proxy_next_event returns
 * them.
 */
#ifndef RANKFOLD_PROXY_H
#define RANKFOLD_PROXY_H

#include <stdint.h>

#pragma GCC visibility push(default)

struct proxy;

struct proxy_config {
	const char *hal; /* "soft", "nvidia" */
	uint64_t memory_bytes;
	uint32_t workers, cc_major, cc_minor;
	uint32_t index; /* nvidia: index of the GPU in the machine */
	double speed;
	uint64_t quantum_ns;  /* time a rank may keep the device while others wait; 0: 30 s */
	uint32_t share;       /* 1: ranks of a job share memory with equal content */
	uint32_t no_squash;   /* 1: each rank runs all of its work itself; nothing is squashed */
	uint32_t no_prefetch; /* 1: no rank's memory is prefetched */
	int moves_fd;         /* receives a line for each page swapped in or out; 0: none */
	/* The cross-check compares contents with equal versions at every so many collectives of a
	 * communicator; 0: never. */
	uint64_t validate;
	uint32_t opaque; /* 1: treat closed kernels as opaque: measure their reads and writes */
};

/* Returns NULL on failure, with the reason in `error`. */
struct proxy *proxy_open(const struct proxy_config *config, char *error, uint32_t error_bytes);
void proxy_close(struct proxy *proxy);
int proxy_event_fd(struct proxy *proxy);

enum proxy_event_kind {
	PROXY_EVENT_MODULE = 1,   /* load an image (data) or a stored module (text: its hash) */
	PROXY_EVENT_FUNCTION = 2, /* compile function `name` of module `text` (its hash) */
	PROXY_EVENT_JOB = 3,      /* the job's state changed; text: why it failed */
	PROXY_EVENT_SAVED = 4,    /* a save, leave or discard ended with state `state`; `bytes` */
	/* bytes were written to the images; text: why a save failed */
	PROXY_EVENT_RACE = 5,  /* two unordered accesses of the rank; data: a description */
	PROXY_EVENT_ALARM = 6, /* a cross-check of the job found different bytes: text */
	PROXY_EVENT_LOST = 7,  /* the device is lost: text; sent once */
	PROXY_EVENT_LINK = 8,  /* how sums of a communicator go between devices: text */
};
struct proxy_event {
	uint32_t kind;
	uint32_t rank;
	uint64_t job;
	uint64_t token;      /* to be passed back with the answer */
	uint32_t image_kind; /* enum rf_image */
	uint32_t state;      /* enum proxy_job_state */
	const uint8_t *data; /* valid until the next proxy_next_event */
	uint64_t bytes;
	char text[512];
	char name[4096];
};
/* 1: returned an event; 0: there is none. */
int proxy_next_event(struct proxy *proxy, struct proxy_event *event);

enum proxy_job_state {
	PROXY_JOB_RUNNING = 1,
	PROXY_JOB_STOPPING = 2,
	PROXY_JOB_CUT = 3,
	PROXY_JOB_SAVED = 4,
	PROXY_JOB_FAILED = 5,
};

/* Opens a job epoch on this device. The job has devices 0 … device_count - 1; this one is `device`.
 * segment_fd is the job's shared segment (-1 with one device). Returns 0, or -1 with `error`. */
int proxy_job_open(struct proxy *proxy, uint64_t job, uint64_t epoch, uint32_t device,
		   uint32_t device_count, uint32_t world_size, const uint32_t *rank_device,
		   int segment_fd, char *error, uint32_t error_bytes);
/* Reports accesses that no event, stream order or synchronisation orders, for ranks that are
 * attached from now on. */
enum proxy_races { PROXY_RACES_CERTAIN = 1, PROXY_RACES_POSSIBLE = 2 /* as well */ };
int proxy_job_check_order(struct proxy *proxy, uint64_t job, int races);
/* The job's bits may depend on its devices (determinism D0): a library of theirs may sum between
 * them. Before ranks are attached. */
int proxy_job_allow_links(struct proxy *proxy, uint64_t job);
/* Sets the names of the job's devices for alarms; each name ends with a newline. */
int proxy_job_names(struct proxy *proxy, uint64_t job, const char *names);
/* Closes a job. It must have no attached ranks (see proxy_job_leave, proxy_job_discard). */
int proxy_job_close(struct proxy *proxy, uint64_t job);
/* Each of these ends with PROXY_EVENT_SAVED; a later one replaces an earlier one that has not
 * ended. save, leave: -1 unless the job is at a cut.
 *   save     writes memory and state of all ranks to their images; the job stays at its cut. The
 *            images are valid until the cut is released: copy them before. A failed save
 *            changes nothing.
 *   leave    the same, and releases the ranks; if it fails, the job fails
 *   discard  releases the ranks immediately, whatever they do; saves nothing */
int proxy_job_save(struct proxy *proxy, uint64_t job);
int proxy_job_leave(struct proxy *proxy, uint64_t job);
int proxy_job_discard(struct proxy *proxy, uint64_t job);
int proxy_job_barrier(struct proxy *proxy, uint64_t job, int request);
/* To be called about once a second: resolves a barrier that makes no progress (barrier_hurry). */
int proxy_job_hurry(struct proxy *proxy, uint64_t job);
int proxy_job_fail(struct proxy *proxy, uint64_t job, const char *text);

/* Memory of a device of a job that other devices read directly (hal_outbox). */
struct proxy_outbox {
	int fd;
	uint64_t bytes;
	uint8_t gpu[16];
};
/* Returns this device's, which is made at the first call; `fd` stays the proxy's. -1: there is
 * none, and `error` has the reason. */
int proxy_job_outbox(struct proxy *proxy, uint64_t job, struct proxy_outbox *outbox, char *error,
		     uint32_t error_bytes);
/* Reads another device's directly from now on. -1: it is read through host memory, and `error` has
 * the reason. */
int proxy_job_outbox_open(struct proxy *proxy, uint64_t job, uint32_t device,
			  const struct proxy_outbox *outbox, char *error, uint32_t error_bytes);

/* Attaches a rank with its channel and image; duplicates the descriptors. */
int proxy_rank_attach(struct proxy *proxy, uint64_t job, uint32_t rank, int channel_fd,
		      int image_fd, char *error, uint32_t error_bytes);
/* Reports that the rank has ended. CLEAN: the proxy still serves what is left in its ring. CRASHED:
 * it does not. REPLACED: only the process that owned the channel has ended, and another process of
 * the rank has made a new channel. */
enum proxy_exit { PROXY_EXIT_CLEAN = 0, PROXY_EXIT_CRASHED = 1, PROXY_EXIT_REPLACED = 2 };
int proxy_rank_exited(struct proxy *proxy, uint64_t job, uint32_t rank, int how);

/* Answers to PROXY_EVENT_MODULE and _FUNCTION. error: CUresult; why: a description of the error, as
 * text. managed_count: of the globals, the first ones, which the host accesses, too. */
int proxy_module_ready(struct proxy *proxy, uint64_t token, int error, const char *why,
		       const char *hash, uint64_t globals_bytes, const uint8_t *globals_image,
		       uint32_t function_count, const char *function_names, uint32_t global_count,
		       uint32_t managed_count, const char *global_names,
		       const uint64_t *global_offsets, const uint64_t *global_sizes);
/* How a kernel uses memory that it reaches through an address. VALUE: it also compares, stores or
 * computes with the address itself; LOW_BITS: only with the lowest eight bits of it. */
enum proxy_use {
	PROXY_READ = 1,
	PROXY_WRITTEN = 2,
	PROXY_ATOMIC = 4,
	PROXY_VALUE = 8,
	PROXY_LOW_BITS = 16
};
/* An address among the kernel's parameters (8 bytes), or a variable in its module's globals. */
struct proxy_access {
	uint64_t at, bytes;
	uint32_t use;     /* enum proxy_use */
	uint32_t bounded; /* mask of PROXY_READ and PROXY_WRITTEN: `reached` gives the range of
			   * these accesses around the address; for a variable, they stay inside
			   * it */
};
/* The steps of a program (proxy/ptx/bounds.py) that computes these ranges. Each step results in a
 * range: all whole numbers between two limits, perhaps relative to an address among the parameters;
 * or an empty range, if no thread executes it. `bits`: width of the registers; `sign`: how their
 * bits are read (enum proxy_sign). */
enum proxy_step_op {
	PROXY_STEP_ANY = 0,       /* any number of this width, any address */
	PROXY_STEP_NUMBER = 1,    /* `number` */
	PROXY_STEP_UP_TO = 2,     /* 0 to `number` */
	PROXY_STEP_PARAMETER = 3, /* the parameter at offset `number` */
	PROXY_STEP_SPECIAL = 4,   /* tid 0-2, ntid 3-5, ctaid 6-8, nctaid 9-11 */
	PROXY_STEP_AS = 5,        /* a, converted to this width */
	PROXY_STEP_ADD = 6,       /* a and b */
	PROXY_STEP_SUBTRACT = 7,
	PROXY_STEP_MULTIPLY = 8,
	PROXY_STEP_SHIFT_UP = 9,
	PROXY_STEP_SHIFT_DOWN = 10,
	PROXY_STEP_AND = 11,
	PROXY_STEP_OR = 12,
	PROXY_STEP_XOR = 13,
	PROXY_STEP_DIVIDE = 14,
	PROXY_STEP_REST = 15,
	PROXY_STEP_LEAST = 16,
	PROXY_STEP_MOST = 17,
	PROXY_STEP_JOIN = 18,  /* a or b */
	PROXY_STEP_BOTH = 19,  /* what is in a and in b */
	PROXY_STEP_BELOW = 20, /* a, where it is below b */
	PROXY_STEP_AT_MOST = 21,
	PROXY_STEP_ABOVE = 22,
	PROXY_STEP_AT_LEAST = 23,
	PROXY_STEP_EQUAL = 24,
	PROXY_STEP_OTHER = 25,
	PROXY_STEP_RISING = 26, /* an estimate: from a to the end of b in steps of c */
	PROXY_STEP_FALLING = 27,
	PROXY_STEP_LOOP = 28,   /* for a loop: a or c (the value after a turn that begins in b), if
				 * both are in b */
	PROXY_STEP_TURNS = 29,  /* 0 to the loop's number of turns: across a in steps of b; c:
				 * the value after a turn */
	PROXY_STEP_STRIDE = 30, /* a plus b for each of c turns */
	PROXY_STEP_IF = 31,     /* a, or nothing if b is empty */
	/* a, if no number in b is negative as a signed one; otherwise anything */
	PROXY_STEP_IF_SIGNED = 32,
	/* c, if ((n * a >> 32) + n) >> b is n / c for all n < 2^31; otherwise anything */
	PROXY_STEP_DIVISOR = 33,
	PROXY_STEP_PLACE = 34, /* the address of the parameters, plus `number` */
	PROXY_STEP_FETCH = 35, /* the parameters' content at the address a; any number if that is
				* not one address */
	/* a shifted down by b bits, if no number in c is negative as a signed one; otherwise
	 * anything. a is what is left of c, which was shifted up. */
	PROXY_STEP_PART = 36,
	PROXY_STEP_LAST = PROXY_STEP_PART
};
enum proxy_sign { PROXY_SIGNLESS = 0, PROXY_SIGNED = 1, PROXY_UNSIGNED = 2 };
struct proxy_step {
	uint8_t op, bits, sign;
	uint16_t a, b, c; /* earlier steps */
	int64_t number;
};
/* An access to `bytes` bytes at `offset` from the result of `step`, through one of `count`
 * words or slots. */
struct proxy_reached {
	uint32_t step, use, first, count; /* first, count: in reached_words */
	int64_t offset;
	uint64_t bytes;
};
/* A load of a word whose place among the parameters `step` computes, in a parameter whose first and
 * last words are at these offsets. use, bounded: as in struct proxy_access. */
struct proxy_slot {
	uint32_t step, use, bounded, first, last;
};
/* Bytes of the parameters that the kernel reads: at an offset, or at the address that a step
 * computes. Without any, it may read all. */
struct proxy_load {
	uint32_t at, bytes;
};
/* If `closed`, the kernel reaches memory only through `words` and `variables`; if not, why_open is
 * the reason, as one line of text. A word that is not an address of a buffer is only a number. */
struct proxy_function {
	uint64_t address; /* struct hal_function * */
	uint32_t param_count, param_bytes;
	uint32_t static_shared_bytes, max_threads, registers, local_bytes, const_bytes, ptx_version;
	uint32_t closed, word_count, variable_count;
	const struct proxy_access *words, *variables;
	const char *why_open;
	uint32_t step_count, reached_count, reached_word_count;
	const struct proxy_step *steps;
	const struct proxy_reached *reached;
	const uint32_t *reached_words; /* indices in `words`; from word_count on, in `slots` */
	uint32_t slot_count, load_count, part_count;
	const struct proxy_slot *slots;
	const struct proxy_load *loads; /* `at`: the step */
	const struct proxy_load *parts; /* `at`: the offset */
};
int proxy_function_ready(struct proxy *proxy, uint64_t token, int error, const char *why,
			 const struct proxy_function *function, const uint32_t *params);

struct proxy_status {
	uint64_t used_bytes, swap_bytes, switches, swapped_in, swapped_out, kernels, wakeups;
	uint64_t swapped_alike;     /* of both: another rank had equal content at that address */
	uint64_t squashed;          /* works not run because another rank's execution served both */
	uint64_t shared_bytes;      /* of used_bytes: shared by several ranks */
	uint64_t not_swapped_bytes; /* not swapped, as another rank or the host had the content */
	uint64_t copies;            /* chunks copied before a write */
	uint64_t unforeseen;        /* chunks copied because of an unforeseen write of a kernel */
	uint64_t prepared;          /* prefetched chunks */
	uint32_t shares;            /* may ranks share memory? as configured */
	uint64_t checked;           /* parts of buffers that the cross-check compared */
};
void proxy_status(struct proxy *proxy, struct proxy_status *status);
struct proxy_job_status {
	uint32_t state;
	double cut_at, released_at; /* CLOCK_MONOTONIC seconds; 0: never */
	uint64_t round;
	uint64_t shared_bytes; /* of chunks shared by several of its ranks; each counts once */
	/* Time since the job was opened here, and the parts of it in which the device ran nothing
	 * because it switched ranks; because memory was swapped or copied; because ranks waited for
	 * others. */
	double seconds, switches_s, copies_s, waiting_s;
	/* The cross-check runs at every so many collectives; 0: never. It has compared `checked`
	 * parts of its ranks' buffers since the job was opened here. */
	uint64_t validate, checked;
	/* Ranks here that are no longer cross-checked, because they did not become quiet in
	 * time. */
	uint64_t unwatched;
	/* Measured launches of opaque kernels, and kinds of launches that do the same in all
	 * ranks. */
	uint64_t measured, alike;
	/* Devices, a bit for each, that read this one's memory directly; and the bytes of
	 * collectives that went to other devices through host memory, and from device to device. */
	uint64_t readers, through_host, direct;
	/* Communicators whose sums between devices a library computes (links); and that use none,
	 * where they may, and why; bytes that this device has given to the library. */
	uint64_t links_used, links_refused, links_bytes;
	char links_why_not[128];
	char reason[512];
};
int proxy_job_status(struct proxy *proxy, uint64_t job, struct proxy_job_status *status);
/* The cause of a rank's wait: its program, its own work on the device, its turn on the device (or
 * work of the proxy for it), calls of other ranks, or code that is being loaded or compiled. */
enum proxy_rank_at {
	PROXY_AT_HOST,
	PROXY_AT_DEVICE,
	PROXY_AT_TURN,
	PROXY_AT_OTHERS,
	PROXY_AT_CODE,
};
struct proxy_rank_status {
	uint32_t attached, exited, resident, error, at;
	uint64_t moves; /* progress: requests made, works submitted and works completed */
	uint64_t used_bytes, kernels, collectives, records, switches, squashed;
	uint64_t reads;        /* of records: the proxy reads a record that waits more than once */
	uint64_t shared_bytes; /* of used_bytes: shared with other ranks */
	uint64_t not_swapped_bytes, copies, unforeseen,
		prepared;      /* as in proxy_status, of this rank */
	char error_text[2048]; /* RF_FAULT_TEXT_BYTES */
};
int proxy_rank_status(struct proxy *proxy, uint64_t job, uint32_t rank,
		      struct proxy_rank_status *status);
/* Describes the loop's current state as text, for debugging (a hung test, `doctor`). */
void proxy_debug_text(struct proxy *proxy, char *text, uint32_t text_bytes);

#pragma GCC visibility pop

#endif

/* proxy.h: what the proxy's Python half calls. Kept plain, because cffi reads this file too.
 *
 * proxy_open starts the loop thread, which owns everything. Every other function runs in the
 * loop and returns when it has run there; none waits for a device, a rank or a peer. What
 * happens later comes as events: proxy_event_fd becomes readable, proxy_next_event gives them.
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
	uint32_t index; /* nvidia: which of the machine's GPUs */
	double speed;
	uint64_t quantum_ns; /* that a rank may keep the device while others want it; 0: 30 s */
	uint32_t share;      /* 1: ranks of a job share what they hold alike, and do it once */
	uint32_t apart;      /* 1: each rank does all of its work itself, none is squashed */
	uint32_t unprepared; /* 1: no rank's memory comes before its turn */
	int moves_fd;        /* gets a line for each page that is swapped in or out; 0: none */
	/* At each so many collectives of a communicator contents that should be equal are compared;
	 * 0: never. */
	uint64_t validate;
	uint32_t
		opaque; /* 1: what kernels read and write is found out as if they were machine code */
};

/* NULL on failure; `error` then says why. */
struct proxy *proxy_open(const struct proxy_config *config, char *error, uint32_t error_bytes);
void proxy_close(struct proxy *proxy);
int proxy_event_fd(struct proxy *proxy);

enum proxy_event_kind {
	PROXY_EVENT_MODULE = 1,   /* load an image (data) or a stored module (text is its hash) */
	PROXY_EVENT_FUNCTION = 2, /* compile function `name` of module `text` (its hash) */
	PROXY_EVENT_JOB = 3,      /* the job's state changed; text says why it failed */
	PROXY_EVENT_SAVED = 4,    /* a save, a leaving or a discarding ended: state says which, */
	/* bytes were written to the images; text says why a save failed */
	PROXY_EVENT_RACE = 5,  /* two accesses of the rank that nothing orders; data is a text */
	PROXY_EVENT_ALARM = 6, /* contents of the job that should be equal are not: text */
	PROXY_EVENT_LOST = 7,  /* the device serves nobody any more: text; once */
};
struct proxy_event {
	uint32_t kind;
	uint32_t rank;
	uint64_t job;
	uint64_t token;      /* to give back with the answer */
	uint32_t image_kind; /* enum rf_image */
	uint32_t state;      /* enum proxy_job_state */
	const uint8_t *data; /* valid until the next proxy_next_event */
	uint64_t bytes;
	char text[512];
	char name[4096];
};
/* 1: an event was taken; 0: there is none. */
int proxy_next_event(struct proxy *proxy, struct proxy_event *event);

enum proxy_job_state {
	PROXY_JOB_RUNNING = 1,
	PROXY_JOB_STOPPING = 2,
	PROXY_JOB_CUT = 3,
	PROXY_JOB_SAVED = 4,
	PROXY_JOB_FAILED = 5,
};

/* A job epoch on this device: devices 0 … device_count - 1, this one is `device`; segment_fd is
 * the job's shared segment (-1 with one device). Returns 0, or -1 with `error`. */
int proxy_job_open(struct proxy *proxy, uint64_t job, uint64_t epoch, uint32_t device,
		   uint32_t device_count, uint32_t world_size, const uint32_t *rank_device,
		   int segment_fd, char *error, uint32_t error_bytes);
/* Say which accesses of its ranks no event, stream order or synchronisation orders: of those that
 * are attached from now on. */
enum proxy_races { PROXY_RACES_CERTAIN = 1, PROXY_RACES_POSSIBLE = 2 /* too */ };
int proxy_job_check_order(struct proxy *proxy, uint64_t job, int races);
/* What its devices are called in alarms: their names, each with a line end behind it. */
int proxy_job_names(struct proxy *proxy, uint64_t job, const char *names);
/* Let go of a job; only without attached ranks (see proxy_job_leave, proxy_job_discard). */
int proxy_job_close(struct proxy *proxy, uint64_t job);
/* Each ends with PROXY_EVENT_SAVED; a later one takes the place of an earlier one that is not over.
 * save, leave: -1 unless the job stands at a cut.
 *   save     all ranks' memory and state into their images; the job stays at its cut. The images
 *            hold good until the cut is released: copy them before. One that fails changes nothing.
 *   leave    the same, and the ranks are released; where it fails, the job fails
 *   discard  the ranks are released as they are, whatever they do; nothing is saved */
int proxy_job_save(struct proxy *proxy, uint64_t job);
int proxy_job_leave(struct proxy *proxy, uint64_t job);
int proxy_job_discard(struct proxy *proxy, uint64_t job);
int proxy_job_barrier(struct proxy *proxy, uint64_t job, int request);
/* Called every second or so: lets a job on whose barrier nothing moves (see barrier_hurry). */
int proxy_job_hurry(struct proxy *proxy, uint64_t job);
int proxy_job_fail(struct proxy *proxy, uint64_t job, const char *text);

/* A rank's channel and image; the descriptors are duplicated. */
int proxy_rank_attach(struct proxy *proxy, uint64_t job, uint32_t rank, int channel_fd,
		      int image_fd, char *error, uint32_t error_bytes);
/* The rank has ended: cleanly (what is left in its ring is still served), or not; or only the
 * process that owned its channel has, and another one of the rank made a new channel. */
enum proxy_exit { PROXY_EXIT_CLEAN = 0, PROXY_EXIT_CRASHED = 1, PROXY_EXIT_REPLACED = 2 };
int proxy_rank_exited(struct proxy *proxy, uint64_t job, uint32_t rank, int how);

/* Answers to PROXY_EVENT_MODULE and _FUNCTION. error: CUresult; why: of an error, for people. */
int proxy_module_ready(struct proxy *proxy, uint64_t token, int error, const char *hash,
		       uint64_t globals_bytes, const uint8_t *globals_image,
		       uint32_t function_count, const char *function_names, uint32_t global_count,
		       const char *global_names, const uint64_t *global_offsets,
		       const uint64_t *global_sizes);
/* How a kernel uses memory that it reaches through an address. VALUE: the address itself matters
 * too, it is compared, stored or computed with; LOW_BITS: only its lowest eight bits do. */
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
	uint32_t use; /* enum proxy_use */
	uint32_t
		bounded; /* its reads (PROXY_READ), its writes (PROXY_WRITTEN): what is `reached` tells
			   * how far from the address they go; they stay within the variable */
};
/* How far that is, by a program of steps, proxy/ptx/bounds.py. Each gives a range: all whole
 * numbers between two, perhaps added to an address among the parameters; or nothing, of what no
 * thread executes. `bits`: of the registers; sign: how their bits are read (enum proxy_sign). */
enum proxy_step_op {
	PROXY_STEP_ANY = 0,       /* any number of so many bits, any address */
	PROXY_STEP_NUMBER = 1,    /* `number` */
	PROXY_STEP_UP_TO = 2,     /* 0 to `number` */
	PROXY_STEP_PARAMETER = 3, /* what lies at `number` in the parameters */
	PROXY_STEP_SPECIAL = 4,   /* tid 0-2, ntid 3-5, ctaid 6-8, nctaid 9-11 */
	PROXY_STEP_AS = 5,        /* a, as a number of so many bits */
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
	PROXY_STEP_RISING = 26, /* a guess: from a up to the end of b, in steps of c */
	PROXY_STEP_FALLING = 27,
	PROXY_STEP_LOOP = 28, /* of a loop: a, and c, if that lies in b, of which it was computed */
	PROXY_STEP_TURNS = 29,  /* 0 to how often it turns: all of a by steps of b; c comes next */
	PROXY_STEP_STRIDE = 30, /* a, and b for each of c turns */
	PROXY_STEP_LAST = PROXY_STEP_STRIDE
};
enum proxy_sign { PROXY_SIGNLESS = 0, PROXY_SIGNED = 1, PROXY_UNSIGNED = 2 };
struct proxy_step {
	uint8_t op, bits, sign;
	uint16_t a, b, c; /* earlier steps */
	int64_t number;
};
/* `bytes` from what a step gives and `offset` on, by way of one of `count` words. */
struct proxy_reached {
	uint32_t step, use, first, count; /* in reached_words */
	int64_t offset;
	uint64_t bytes;
};
/* `words` and `variables` are all that it reaches memory through if it is `closed`; if it is not,
 * why_open is a line for people. A word that is no address of a buffer is only a number. */
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
	const uint32_t *reached_words; /* each an index in `words` */
};
int proxy_function_ready(struct proxy *proxy, uint64_t token, int error, const char *why,
			 const struct proxy_function *function, const uint32_t *params);

struct proxy_status {
	uint64_t used_bytes, swap_bytes, switches, swapped_in, swapped_out, kernels, wakeups;
	uint64_t swapped_alike; /* bytes of both: another rank held the same at that address */
	uint64_t squashed;      /* works that were not done, as another rank's was for both */
	uint64_t shared_bytes;  /* of those used: of several ranks */
	uint64_t spared_bytes;  /* not moved in or out: another rank or the host had them */
	uint64_t copies;        /* of chunks, before they were written */
	uint64_t unforeseen;    /* and while a kernel wrote what nothing had said it would */
	uint64_t prepared;      /* chunks that came before their rank's turn */
	uint32_t shares;        /* may ranks share? as its configuration says */
	uint64_t checked;       /* parts of buffers whose bytes were compared with what is equal */
};
void proxy_status(struct proxy *proxy, struct proxy_status *status);
struct proxy_job_status {
	uint32_t state;
	double cut_at, released_at; /* CLOCK_MONOTONIC seconds; 0: never */
	uint64_t round;
	uint64_t shared_bytes; /* of chunks that several of its ranks have: each chunk once */
	/* Since it was opened here, and for how long of that the device ran nothing because it went
	 * from rank to rank; because memory was moved or copied; because ranks waited for others. */
	double seconds, switches_s, copies_s, waiting_s;
	/* At each so many collectives its ranks' buffers are compared with what should be equal; 0:
	 * never. So many parts of them were, since it was opened here. */
	uint64_t validate, checked;
	/* Ranks here that are not any more, because they do not become quiet. */
	uint64_t unwatched;
	/* Launches of hidden kernels that were measured, and kinds of them that do the same for all. */
	uint64_t measured, alike;
	char reason[512];
};
int proxy_job_status(struct proxy *proxy, uint64_t job, struct proxy_job_status *status);
/* What a rank gets on by next: its program, work of its own that the device has, its turn on the
 * device (or what the proxy does for it), or what other ranks call. */
enum proxy_rank_at { PROXY_AT_HOST, PROXY_AT_DEVICE, PROXY_AT_TURN, PROXY_AT_OTHERS };
struct proxy_rank_status {
	uint32_t attached, exited, resident, error, at;
	uint64_t moves; /* how often it called for something, and work was given away or was over */
	uint64_t used_bytes, kernels, collectives, records, switches, squashed;
	uint64_t reads;        /* of records: one that is held may be read again and again */
	uint64_t shared_bytes; /* of those used: other ranks have them, too */
	uint64_t spared_bytes, copies, unforeseen, prepared; /* as of the device */
	char error_text[256];
};
int proxy_rank_status(struct proxy *proxy, uint64_t job, uint32_t rank,
		      struct proxy_rank_status *status);
/* What the loop sees now, as text, for people (a hung test, `doctor`). */
void proxy_dump(struct proxy *proxy, char *text, uint32_t text_bytes);

#pragma GCC visibility pop

#endif

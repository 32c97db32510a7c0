/* state.c: a rank's state, to its image and back: this makes it movable between proxies.
 *
 * The state is written only at a cut, when nothing of the rank is queued, in flight or unanswered.
 * So it consists of live buffers, the list of chunks that have content, and the handles with their
 * contents. It is a sequence of records (saved.h) in the ring's own framing, kind after kind
 * (saved.c), and is checked by the same rules when it is restored. The memory itself is in the same
 * image by heap offset. All numbers are little-endian.
 *
 * The state contains no clock time, because the clocks of other machines differ: it has only
 * durations (the age of an event). Other times of the core start again with each attach (a rank's
 * silent_since_ns, its time slice) or belong to a job epoch, which never moves (cut_at,
 * released_at).
 */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "codes.h"
#include "loop/job.h"
#include "loop/saved.h"
#include "loop/state.h"
#include "rank/rank.h"

static struct state_header *header_of(const struct rank *r)
{
	return (void *)(r->memory.image + STATE_OFFSET);
}

static uint64_t checksum(const uint8_t *data, uint64_t bytes)
{
	uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
	for (uint64_t i = 0; i < bytes; i++)
		h = (h ^ data[i]) * 0x100000001b3ull;
	return h;
}

/* ---- saving ---- */

void *saved_put(struct writer *w, const struct saved_kind *kind, uint64_t extra)
{
	uint64_t all = (kind->bytes + extra + RF_RECORD_ALIGN - 1) & ~(RF_RECORD_ALIGN - 1ull);
	if (all > UINT32_MAX || all > (uint64_t)(w->end - w->at))
		return NULL;
	struct rf_record *r = (void *)w->at;
	memset(r, 0, all);
	r->bytes = (uint32_t)all;
	r->opcode = kind->opcode;
	w->at += all;
	return r;
}

static bool save_kind(struct writer *w, const struct saved_kind *kind, struct object *const *all,
		      uint32_t count)
{
	if (!kind->object)
		return kind->save(w, kind, NULL);
	for (uint32_t i = 0; i < count; i++)
		if (all[i]->kind == kind->object && !kind->save(w, kind, all[i]))
			return false;
	return true;
}

uint64_t state_save(struct rank *r, char *error, uint32_t error_bytes)
{
	struct state_header *h = header_of(r);
	uint8_t *first = (uint8_t *)(h + 1);
	struct writer w = {r, first, r->memory.image + STATE_OFFSET + STATE_BYTES_MAX, now_ns(), 0};
	uint32_t count = 0;
	struct object **all = table_sorted(&r->objects, &count);
	bool good = all != NULL;
	h->magic = 0; /* not valid until everything is written */
	for (uint32_t i = 0; i < saved_kind_count && good; i++)
		good = save_kind(&w, &saved_kinds[i], all, count);
	free(all);
	if (!good) {
		snprintf(error, error_bytes, "rank %u: its state cannot be saved: %s", r->rank,
			 coll_busy(r->job->world.coll)
				 ? "collectives are in progress"
				 : "it does not fit into the image, or the proxy is out of host "
				   "memory");
		return 0;
	}
	h->version = STATE_VERSION;
	h->elsewhere = w.elsewhere;
	h->bytes = (uint64_t)(w.at - first);
	h->checksum = checksum(first, h->bytes);
	h->magic = STATE_MAGIC;
	return sizeof *h + h->bytes;
}

void state_void(struct rank *r) { header_of(r)->magic = 0; }

/* ---- restoring ---- */

static const struct saved_kind *kind_of(const struct rf_record *record)
{
	for (uint32_t i = 0; i < saved_kind_count; i++)
		if (saved_kinds[i].opcode == record->opcode)
			return &saved_kinds[i];
	return NULL;
}

/* Returns CU_OK, CU_OUT_OF_MEMORY, or CU_INVALID_VALUE for records that state_save cannot have
 * written. */
static int restore_records(struct rank *r, const uint8_t *at, uint64_t left)
{
	const uint64_t now = now_ns();
	for (;;) {
		const struct rf_record *record = (const void *)at;
		const struct saved_kind *kind = left < sizeof *record ? NULL : kind_of(record);
		if (!kind || record->bytes > left || record->bytes < kind->bytes)
			return CU_INVALID_VALUE;
		if (record->opcode == STATE_END)
			return CU_OK;
		int error = kind->restore(r, record, now);
		if (error)
			return error;
		at += record->bytes;
		left -= record->bytes;
	}
}

/* True if the state is of an earlier process of the rank: this channel was never served, that
 * process's was. */
static bool of_earlier_process(const struct rank *r, const struct state_header *h)
{
	const struct state_rank *s = (const void *)(h + 1);
	return h->bytes >= sizeof *s && !r->ring.tail.bytes && s->r.opcode == STATE_RANK && s->tail;
}

static int refuse(const struct rank *r, const char *why, char *error, uint32_t error_bytes)
{
	snprintf(error, error_bytes, "rank %u: %s", r->rank, why);
	return -1;
}

/* Begins a fresh rank: its image has no state. */
static int begin_fresh(struct rank *r, char *error, uint32_t error_bytes)
{
	if (r->ring.tail.bytes)
		return refuse(r, "its device memory is lost", error, error_bytes);
	if (!memory_clear_image(&r->memory))
		return refuse(r, "its image cannot be emptied", error, error_bytes);
	return 0;
}

int state_restore(struct rank *r, char *error, uint32_t error_bytes)
{
	struct state_header *h = header_of(r);
	const uint8_t *first = (const uint8_t *)(h + 1);
	if (!h->magic)
		return begin_fresh(r, error, error_bytes);
	if (h->magic != STATE_MAGIC || h->version != STATE_VERSION || h->bytes > STATE_BYTES_MAX ||
	    checksum(first, h->bytes) != h->checksum) {
		snprintf(error, error_bytes, "rank %u: its saved state is damaged or of version %u",
			 r->rank, h->version);
		return -1;
	}
	if (of_earlier_process(r, h)) {
		h->magic = 0;
		return begin_fresh(r, error, error_bytes);
	}
	if (h->elsewhere)
		return refuse(r, "part of its memory is still in other ranks' images", error,
			      error_bytes);
	int code = restore_records(r, first, h->bytes);
	if (code == CU_OUT_OF_MEMORY)
		return refuse(r, "its saved state needs more memory than the device has", error,
			      error_bytes);
	if (code)
		return refuse(r, "its saved state has an invalid record", error, error_bytes);
	h->magic = 0; /* consumed: only the live rank is valid from now on */
	return 1;
}

/* tandem.c: a device's half of the tandem meta-allreduce. See barrier.c for the protocol.
 *
 * Rules: a round is offered once, when all living ranks of the device have issued it and the result
 * of the previous one is known.
 */
#include "barrier_parts.h"

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint32_t max32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Sums and sends this device's part of the meta-allreduce of the next round, if it is due. */
void tandem_offer(struct barrier *b)
{
	uint64_t n = b->verdict + 1, ack = 0, comm = 0;
	uint32_t living = 0;
	bool mismatch = false;

	if (b->off || b->offered == n)
		return;
	for (uint32_t i = 0; i < b->world_size; i++) {
		const struct barrier_rank *r = &b->ranks[i];

		if (!barrier_local(b, i) || r->exited)
			continue;
		if (r->round < n)
			return;
		living++;
		mismatch |= comm && comm != r->keys[n % KEYS];
		comm = r->keys[n % KEYS];
		if (b->stopping && r->round == n)
			ack++;
	}
	if (!living)
		return;
	b->offered = n;
	barrier_send(b, (struct barrier_message){.kind = TANDEM,
						 .comm = mismatch ? 0 : comm,
						 .a = n,
						 .b = b->requested ? living : 0,
						 .c = ack,
						 .d = b->generation});
}

/* Tracks, for each possible period, how long the signatures have repeated with it. The period is
 * the smallest that explains a whole repetition, and for longer than any that has proved wrong:
 * equal buckets in a row are not yet a mini-batch. */
static void learn_period(struct barrier_rank *r, uint64_t signature)
{
	r->signatures[r->round % KEYS] = signature;
	for (uint32_t p = 1; p <= WINDOW_MAX; p++) {
		bool match = r->round > p && r->signatures[(r->round - p) % KEYS] == signature;

		if (!match && p == r->period) {
			r->period = 0;
			r->longest = max32(r->longest, r->matches[p]);
		}
		r->matches[p] = match ? r->matches[p] + (r->matches[p] < WINDOW_MAX) : 0;
	}
	for (uint32_t p = 1; p <= WINDOW_MAX && !r->period; p++)
		if (r->matches[p] >= max32(p, r->longest))
			r->period = p;
}

uint32_t tandem_window(const struct barrier_rank *r)
{
	return r->period ? max32(r->period, WINDOW_MIN) : WINDOW_MAX;
}

bool tandem_allows(const struct barrier *b, const struct barrier_rank *r)
{
	uint64_t resolved = min64(b->verdict, r->complete);

	if (b->off)
		return true;
	if (b->stopping)
		return r->round <= resolved;
	return r->round < resolved + tandem_window(r);
}

void tandem_give_up(struct barrier *b)
{
	if (!b->off)
		barrier_send(b, (struct barrier_message){.kind = GIVE_UP});
	b->off = true;
}

void tandem_issue(struct barrier *b, struct barrier_rank *r, uint64_t comm, uint64_t signature)
{
	r->round++;
	r->keys[r->round % KEYS] = comm;
	learn_period(r, signature);
	if (r->round - b->verdict >= KEYS)
		tandem_give_up(b);
	tandem_offer(b);
}

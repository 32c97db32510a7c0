/* broken.c: each invariant of the proxy's core is broken once, in a child of its own, and must be
 * named (broken.h). Two ranks of one job share the device; they have buffers, streams, an event, a
 * module and communicators. Invariants that only a change of the code can break:
 * hostile/seeded_faults.py.
 */
#include "broken.h"

#include <stdlib.h>
#include <string.h>

#include "barrier/barrier_parts.h"
#include "broken_inside.h"
#include "client.h"
#include "invariant.h"
#include "clock.h"
#include "codes.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/python_request.h"
#include "queue/event.h"
#include "queue/fence.h"
#include "queue/item.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "rank/comm.h"
#include "rank/module.h"
#include "rank/rank.h"
#include "memory/memory_parts.h"
#include "queue/kinds.h"

void __sanitizer_cov_trace_pc(void) {} /* the core is compiled for coverage.c */

/* ---- the loop, turned by hand ---- */

bool __wrap_mailbox_start(struct proxy *p) { return p != NULL; }
void __wrap_mailbox_stop(struct proxy *p) { (void)p; }
void __wrap_in_loop(struct proxy *p, void (*run)(struct proxy *, void *), void *arg)
{
	run(p, arg);
}

static struct proxy *proxy;
static struct client clients[2];

static void serve(void)
{
	struct proxy_event e;
	loop_turn(proxy);
	while (proxy_next_event(proxy, &e))
		client_answer(proxy, &e);
}

static void ask(uint32_t rank, void *record, uint32_t bytes, uint16_t opcode)
{
	client_ask(&clients[rank], record, bytes, opcode);
	for (uint64_t end = now_ns() + 60000000000ull; !client_answered(&clients[rank]); serve())
		MUST(now_ns() < end);
	MUST(client_slot(&clients[rank])->error == CU_OK);
}
#define ASK(rank, record, OPCODE) ask(rank, &(record), sizeof(record), RF_OP_##OPCODE)

#define HEAP_AT (RF_DEV_BASE + 4 * RF_CHUNK_BYTES)
#define PAGE_HERE 4u  /* resident, with content */
#define PAGE_FREE 40u /* of no buffer */

static void furnish(uint32_t rank)
{
	struct rf_alloc heap = {.addr = HEAP_AT, .bytes = 3 * RF_CHUNK_BYTES};
	struct rf_alloc small = {.addr = HEAP_AT + 8 * RF_CHUNK_BYTES, .bytes = 4096};
	struct rf_stream_create stream = {.stream = 80, .flags = 1};
	struct rf_event_create event = {.event = 100};
	struct rf_event record = {.event = 100, .stream = 80};
	struct rf_module_data data = {.module = 50, .bytes = 64};
	struct rf_module_load load = {.module = 50, .bytes = 64, .image = RF_IMAGE_PTX};
	struct {
		struct rf_name n;
		char text[8];
	} name = {.n = {.module = 50, .handle = 60, .bulk = 1, .name_bytes = 7}, .text = "add_one"};
	struct {
		struct rf_launch l;
		uint64_t address;
	} launch = {.l = {.stream = 1,
			  .function = 60,
			  .grid = {1, 1, 1},
			  .block = {1, 1, 1},
			  .param_bytes = 8},
		    .address = HEAP_AT};
	struct rf_comm_init alone = {.comm = 22, .nranks = 1, .unique_id = {(uint8_t)(rank + 1)}};
	struct rf_record sync;
	ASK(rank, heap, ALLOC);
	ASK(rank, small, ALLOC);
	ASK(rank, stream, STREAM_CREATE);
	ASK(rank, event, EVENT_CREATE);
	ASK(rank, record, EVENT_RECORD);
	ASK(rank, data, MODULE_DATA);
	ASK(rank, load, MODULE_LOAD);
	ASK(rank, name, FUNCTION_GET);
	ASK(rank, launch, LAUNCH);
	ASK(rank, sync, DEVICE_SYNC);
	ASK(rank, alone, COMM_INIT);
}

/* ---- what is corrupted ---- */

static struct rank *r, *o; /* the two ranks */
static struct rank_memory *m;
static struct device_memory *d;
static struct page *page; /* of the first rank, resident */
static struct job *j;
static struct barrier *b;
static struct stream *s;
static struct event *event;
static struct module *module;

#define BREAK(text, ...) BREAKS(text, core_check(proxy), __VA_ARGS__)

static struct item *queued(enum item_kind kind)
{
	struct item *i = item_new(r, kind, 1000, 0);
	stream_push(r, s, i);
	return i;
}

static uint32_t chunk_not_held(void)
{
	uint32_t n = 0;
	while (d->chunks[n].held)
		n++;
	return n;
}

static void chunks_and_pages(void)
{
	struct chunk *c = NULL;
	BREAK("a new chunk has a number that no other chunk has",
	      for (uint32_t n = 0; n < HAL_CHUNK_NUMBERS(d->total * RF_CHUNK_BYTES); n++)
		      d->chunks[n]
			      .held = true;
	      chunk_new(d, true, &c));
	BREAK("a chunk that is given back has no pages", chunk_release(d, page->chunk));
	BREAK("a chunk has at most one page of each rank, and no more leave than there are",
	      page->chunk->leaving = 1;
	      page_leaves(m, PAGE_HERE));
	BREAK("a page that is mapped has no chunk yet", m->missing = 1;
	      page_map(m, PAGE_HERE, page->chunk));
	BREAK("a page that is unmapped is one of its chunk's pages", page->chunk->refs = 0;
	      page_unmap(m, PAGE_HERE));
	BREAK("a page that comes in was missing", m->missing = 0;
	      page_map(m, PAGE_FREE, page->chunk));
	BREAK("a page that is replaced has a chunk", page_copied(m, PAGE_FREE, chunk_not_held()));
	BREAK("a chunk that the device copied to has a number that no other chunk has",
	      page_copied(m, PAGE_HERE, chunk_number(d, page->chunk)));
	BREAK("a page that becomes read-only is resident and can be written",
	      pages_write_protect(m, PAGE_FREE, 1));
	BREAK("a page becomes writable for its rank alone if no other refers to it",
	      page_write_protect(m, PAGE_HERE);
	      page->chunk->refs = 2; page_open(m, PAGE_HERE, false));
	BREAK("a rank counts its write-protected pages", page_write_protect(m, PAGE_HERE);
	      m->write_protected = 0; page_open(m, PAGE_HERE, false));
	BREAK("a page leaves once, and was resident", page_leaves(m, PAGE_FREE));
	BREAK("a page is taken from a rank of the group that has it",
	      sharing_take(&o->memory, m, PAGE_FREE));
}

static void copies_and_buffers(void)
{
	struct copy *c = NULL;
	BREAK("a copy that a page refers to counts the page", c = copy_new(d, page->key);
	      copy_refer(m, PAGE_HERE, c); c->refs = 0; copy_forget(m, PAGE_HERE));
	BREAK("a page that is left to a copy is missing", page_common(m, PAGE_HERE));
	BREAK("a page on the host has no chunk, and a common one has a copy",
	      page_on_host(m, PAGE_HERE, false));
	BREAK("a page that is forgotten was missing", page_unmap(m, PAGE_HERE); m->missing = 0;
	      memory_free(m, HEAP_AT));
	BREAK("each page of a buffer counts it", page->buffers = 0; memory_free(m, HEAP_AT));
	BREAK("a page that is looked at is marked", d->shares = true; m->fresh_count = 1;
	      m->fresh = calloc(1, sizeof *m->fresh); copies_turn(d));
	BREAK("work that has completed was counted", memory_used(m));
	BREAK("a copy or a sum that has completed was counted", memory_used_exact(m));
}

static void moves_and_requests(void)
{
	const struct memory_request save = {.purpose = PURPOSE_SAVE, .stay = true};
	BREAK("a page that moves is in the heap", move_add(m, HEAP_PAGES, MOVE_SAVE));
	BREAK("moves that are done were submitted", move_add(m, PAGE_HERE, MOVE_SAVE);
	      m->move_submitted = m->move_done = 1; d->moving = 0; moves_drop(m));
	BREAK("a chunk that was promised to a move is reserved", move_add(m, PAGE_FREE, MOVE_IN);
	      d->reserved = 0; moves_drop(m));
	BREAK("a chunk that is not needed any more was reserved", move_add(m, PAGE_HERE, MOVE_OWN);
	      m->moves->promised = true; moves_pump(d));
	BREAK("a chunk that a move takes was reserved", move_add(m, PAGE_FREE, MOVE_IN);
	      d->reserved = 0; moves_pump(d));
	BREAK("moves are submitted and completed in their order", move_add(m, PAGE_HERE, MOVE_SAVE);
	      move_add(m, PAGE_HERE + 1, MOVE_SAVE); m->move_done = 1; moves_pump(d));
	BREAK("a request that ends is listed", memory_request(m, &save); d->requests = NULL;
	      memory_cancel(m));
	BREAK("a request is listed once", d->requests = &m->request; memory_request(m, &save));
	BREAK("transfers have a last one if they have a first one",
	      proxy->transfers.last = calloc(1, sizeof *proxy->transfers.last);
	      transfer_push(&proxy->transfers, proxy->transfers.last));
}

/* Faults that memory_invalid finds before a save. */
static void memory_as_a_whole(void)
{
	struct page *its = &o->memory.pages[PAGE_HERE];
	uint64_t group = m->group + 1;
	BREAK("ranks of two groups share", page_remap(&o->memory, PAGE_HERE, page->chunk);
	      page_write_protect(m, PAGE_HERE); o->memory.group = group);
	BREAK("what several have can be written by one",
	      page_remap(&o->memory, PAGE_HERE, page->chunk));
	BREAK("who refers to a chunk", page_write_protect(m, PAGE_HERE); page->chunk->refs++);
	BREAK("what several have can be written by two",
	      page_remap(&o->memory, PAGE_HERE, page->chunk);
	      its->write_protected = false; its->open = page->open = true; m->write_protected++);
	BREAK("content of a copy is here, or in the image", page->common = true);
	BREAK("ranks of two groups refer to a copy", page->copy = copy_new(d, page->key);
	      page->copy->refs = 2; its->copy = page->copy; o->memory.group = group);
	BREAK("who refers to a copy", page->copy = copy_new(d, page->key));
	BREAK("new content is listed without a reader", m->fresh_count = 2; d->fresh = false;
	      m->fresh = calloc(2, sizeof *m->fresh));
	BREAK("what an image has got is listed twice", m->fresh_count = 1;
	      m->fresh = calloc(1, sizeof *m->fresh); m->pages[0].fresh = false);
	BREAK("a page of nothing is live", page_unmap(m, PAGE_HERE); page->buffers = 0);
	BREAK("what is not here is leaving, write-protected, open or kept",
	      page_unmap(m, PAGE_HERE);
	      page->write_pending = true);
	BREAK("a page is write-protected and open", page_write_protect(m, PAGE_HERE);
	      page->open = true);
	BREAK("a page refers to no chunk of the device", page->chunk = (void *)d);
	BREAK("a page has an unheld chunk", page->chunk->held = false);
	BREAK("write-protected pages", m->write_protected++);
	BREAK("missing pages", m->missing++);
	BREAK("dying pages", m->dying++);
	BREAK("buffers overlap or are not sorted", m->buffers[0].bytes = RF_HEAP_BYTES);
	BREAK("how far accesses reach", m->buffers[0].whole.bytes = 1);
	BREAK("a buffer is joined to another", m->buffers[0].whole.addr--,
	      m->buffers[0].whole.bytes++);
	BREAK("the places in a list of moves", m->move_done++);
	BREAK("pages move while work uses them", move_add(m, PAGE_HERE, MOVE_SAVE); m->inflight++);
	BREAK("a page on its way out is not leaving", move_add(m, PAGE_HERE, MOVE_OUT);
	      page->leaving = false);
	BREAK("pages come in that no request needs", move_add(m, PAGE_HERE, MOVE_IN));
	BREAK("more pages of a chunk leave than it has", page->chunk->leaving = 2);
	BREAK("used chunks", d->used++);
	BREAK("references to chunks",
	      d->chunks[chunk_not_held()] = (struct chunk){.held = true, .refs = 1};
	      d->used++);
	BREAK("pages that are leaving", page->leaving = true);
	BREAK("chunks that are leaving", d->leaving++);
	BREAK("reserved chunks", d->reserved++);
	BREAK("unusable chunks", d->unusable++);
	BREAK("shared chunks", d->shared++);
	BREAK("more is promised than there is", d->total = d->used - 1);
	BREAK("the list of requests has a loop", d->requests = &m->request;
	      m->request.state = REQUEST_WAITING; m->request.next = &m->request);
	BREAK("a request that has not begun is listed", d->requests = &m->request);
	BREAK("the order of service", d->requests = &m->request;
	      m->request.next = &o->memory.request;
	      m->request.state = o->memory.request.state = REQUEST_WAITING;
	      m->request.purpose = PURPOSE_COPY; o->memory.request.purpose = PURPOSE_SAVE);
	BREAK("a request is not listed", m->request.state = REQUEST_WAITING; d->requests = NULL);
	BREAK("copies that several ranks refer to", d->copies_on_host++);
	BREAK("ranks whose pages move", d->moving++);
}

static void versions(void)
{
	struct versions *v = &m->versions;
	uint8_t *saved = malloc(versions_size(v));
	BREAK("a range with a new version is part of the map",
	      versions_private(v, RF_DEV_BASE + RF_HEAP_BYTES - 4096, 8192));
	BREAK("a map of versions that is saved is whole", v->begin++; versions_save(v, saved));
	BREAK("the extents' count", v->count = v->capacity + 1);
	BREAK("the map does not begin where it should", v->begin++);
	BREAK("extents are not in order, or leave the heap", v->end = v->begin);
	BREAK("an offset beyond what repeats", v->extents[0].content.period = 4;
	      v->extents[0].content.offset = 4);
	BREAK("two extents that are one", versions_private(v, HEAP_AT, 4096);
	      v->extents[0].content.period = 0; v->extents[1].content = v->extents[0].content;
	      v->extents[1].content.offset += v->extents[1].addr - v->extents[0].addr);
	free(saved);
}

static void streams_and_events(void)
{
	struct item *i = NULL;
	BREAK("a mark counts what refers to it", event->last->refs = 0; event_free(event));
	BREAK("a fence counts the streams it waits for", i = queued(ITEM_FENCE);
	      i->fence = fence_new(0); fence_drop(i));
	BREAK("an execution counts the items that complete on it", i = queued(ITEM_REPLY);
	      i->own.refs = 0; item_free(i));
	BREAK("an item that joins an execution had only its own", i = queued(ITEM_REPLY);
	      i->own.refs = 2; item_share(i, &i->own));
	BREAK("the works of a queue are numbered upwards", i = queued(ITEM_FILL);
	      item_on_device(r, s, i, 5); item_on_device(r, s, i, 5));
	BREAK("a stream that goes has no items", queued(ITEM_REPLY); stream_free(r, 0);
	      stream_free(r, 0));
	BREAK("an item that leaves a stream was counted", queued(ITEM_REPLY); r->queue->items = 0;
	      stream_pop(r, s));
	BREAK("an item that completed on another stream's work was counted", i = queued(ITEM_REPLY);
	      i->submitted = true; i->own.place = EXECUTION_DEVICE; stream_pop(r, s));
	BREAK("a stream has a next item when it is submitted", stream_submitted(s));
}

/* Faults that queue_invalid finds before a save. */
static void streams_as_a_whole(void)
{
	struct item *i = NULL, *k = NULL;
	BREAK("a stream has another handle", s->o.id++);
	BREAK("submitted items do not come first", queued(ITEM_REPLY)->submitted = true);
	BREAK("items are not in program order", queued(ITEM_REPLY); queued(ITEM_REPLY)->seq = 1);
	BREAK("items that complete on another stream's work", s->on_other_queue++);
	BREAK("the tail of a stream is not its last item", queued(ITEM_REPLY); s->tail = NULL);
	BREAK("the next item of a stream is not in it", i = queued(ITEM_REPLY);
	      s->head = s->tail = NULL);
	BREAK("items that complete on an execution", queued(ITEM_REPLY)->own.refs++);
	BREAK("references to a mark", event->last->refs++);
	BREAK("streams that a fence waits for", queued(ITEM_FENCE)->fence = fence_new(0));
	BREAK("frees are not in their order", fence_push_free(r, 1, 7, 0);
	      fence_push_free(r, 1, 7, 0));
	BREAK("the tail of the frees is not the last one", fence_push_free(r, 1, 7, 0);
	      r->queue->frees_tail = NULL);
	BREAK("a free that waits is not listed", queued(ITEM_REPLY); fence_push_free(r, 1, 1001, 0);
	      r->queue->frees = r->queue->frees_tail = NULL);
	BREAK("the weight of a rank's items", r->queue->items++);
	BREAK("streams", r->queue->stream_count--);
	BREAK("an item that shares an execution has one of its own", i = queued(ITEM_REPLY);
	      k = queued(ITEM_REPLY); item_share(k, i->execution); k->own.refs = 1);
	BREAK("what runs for several ranks uses the memory of a rank that is here",
	      queued(ITEM_REPLY)->own.memory = m);
}

static void squashing(void)
{
	struct footprint f = {.known = true};
	struct team team = {.count = 1, .members = {o}, .streams = {o->queue->streams[0]}};
	struct item *i = NULL;
	BREAK("a rank that takes part is of the group and has an item to submit",
	      i = queued(ITEM_FILL);
	      i->own.place = EXECUTION_DEVICE; squash_join(r, i, &f, &team));
	BREAK("an item before which nothing begins is next",
	      r->queue->squashing.first = item_new(r, ITEM_FILL, 1000, 0));
	BREAK("ranges that were considered for early opening", r->queue->squashing.early = 1000);
	BREAK("a rank skips no more waits than the last backoff says",
	      r->queue->squashing.backoffs[3].skip = 9);
	BREAK("a rank knows that it has shared pages open", page_write_protect(m, PAGE_HERE);
	      page_open(m, PAGE_HERE, true));
}

static void handles_and_rings(void)
{
	struct python_request *a = NULL;
	BREAK("a module that has arrived was counted", module->image_bytes = 64; r->arriving = 0;
	      module_answered(r, module, 0, &(struct module_contents){.hash = ""}));
	BREAK("a module counts its uses", module_release(r, module));
	BREAK("a request that is taken back was counted", ring_cancel_reply(r, 1));
	BREAK("a ring is consumed forwards", ring_consume(r, (struct place){0, 0}));
	BREAK("a table counts its objects", r->objects.count = 0; table_remove(&r->objects, 80));
	BREAK("a request that is answered was counted", a = python_request_new(r, 50, 1, 0);
	      r->pending = 0; python_request_take(proxy, a->token));
}

/* Faults that the loop's checker finds before a save. */
static void loop_as_a_whole(void)
{
	struct transfer *t = NULL;
	struct job *other = NULL;
	BREAK("uses of a module", module->uses++);
	BREAK("an unloaded module without uses is still there", module->doomed = true);
	BREAK("a loaded module keeps its image", module->image = malloc(1));
	BREAK("bytes of modules that arrive", r->arriving++);
	BREAK("works in flight", m->inflight++);
	BREAK("works in flight that write where they say", m->exact++);
	BREAK("requests whose replies the client awaits", r->pending++);
	BREAK("requests that are not answered", r->ring.replies++);
	BREAK("a rank has another's place in its job", j->world.ranks[0] = o;
	      j->world.ranks[1] = r);
	BREAK("a rank of a job that is gone", other = malloc(sizeof *other); *other = *j;
	      other->id = 99; r->job = other);
	BREAK("rounds of a communicator that its rank has aborted",
	      ((struct comm *)(void *)table_get(&r->objects, 22, OBJ_COMM))->aborted = true);
	BREAK("a job's rank is not the device's", j->world.ranks[0] = (void *)page);
	BREAK("attached ranks of a job", j->world.attached++);
	BREAK("a job is being saved that does not stand at a cut", j->goal = GOAL_SAVE);
	BREAK("a job has gone and its ranks are here", j->world.state = PROXY_JOB_SAVED);
	BREAK("the next transfer is not listed", proxy->transfers.next = calloc(1, sizeof *t));
	BREAK("the last transfer is not the last one",
	      proxy->transfers.last = calloc(1, sizeof *t));
	BREAK("a request of a rank that is gone", python_request_new(r, 50, 0, 0)->rank = NULL);
	BREAK("a request that has not been made", python_request_new(r, 50, 0, 0)->token++);
	BREAK("the active rank is gone", proxy->device.active = (void *)page);
	BREAK("the next active rank is gone", proxy->slice.target = (void *)page);
	BREAK("ranks that have memory here", proxy->device.active = proxy->slice.target = NULL;
	      proxy->device.rank_count--);
	BREAK("ranks are not in their order", proxy->device.ranks[0] = o;
	      proxy->device.ranks[1] = r);
	BREAK("attached ranks of the device", proxy->jobs = NULL);
	BREAK("a job that is closed is listed and has no ranks", job_close(proxy, j));
	BREAK("a rank takes a place of its job that is free", job_attached(r));
	BREAK("a rank that leaves has its place in its job", j->world.ranks[0] = NULL;
	      job_detached(r));
}

static void measured(void)
{
	BREAK("the places in a list of parts to check", r->check.submitted = 1);
	BREAK("parts are checked while a check runs", r->check.count = r->check.capacity = 1);
	BREAK("a measurement is of an item", r->measure.item = page);
	BREAK("checksums are computed for a measurement", r->measure.check.state = CHECK_WAITS);
	BREAK("measured parts have space", r->measure.it.before.count = 1);
}

/* An entry of the barrier: a communicator of the first rank, at a cut if `frozen`. */
static struct entry *member(bool frozen)
{
	struct entry *e = rounds_put(b, &b->members, 0, 77), *target;
	b->frozen = frozen;
	target = frozen ? rounds_put(b, &b->targets, 0, 77) : NULL;
	if (target)
		target->issued = 1;
	return e;
}

static void barriers(void)
{
	struct entry *e = NULL;
	BREAK("a message has space in the queue", b->queue_count = b->queue_capacity + 1;
	      barrier_send(b, (struct barrier_message){0}));
	BREAK("a rank counts what it joins", member(false)->joining = 1;
	      barrier_comm_end(b, 0, 77));
	BREAK("a rank counts what it owes", e = member(true); barrier_comm_end(b, 0, 77));
	BREAK("a rank counts what it owes", e = member(true); barrier_abort(b, 0, 77));
	BREAK("a rank counts what it owes", e = member(true); e->issued = 1;
	      rounds_get(&b->targets, 0, 77)->broken = true; barrier_complete(b, 0, 77));
	BREAK("an entry of a table of rounds is found by its key", member(false)->comm = 78);
	BREAK("a table of rounds has space", member(false); b->members.count = b->members.capacity);
	BREAK("the rank of a member entry is here", rounds_put(b, &b->members, 9, 77));
	BREAK("a round is complete once it is issued", member(false)->complete = 1);
	BREAK("a member that has gone waits for nothing", e = member(false); e->ended = true;
	      e->joining = 1);
	BREAK("joinings of a rank", b->ranks[0].joining++);
	BREAK("communicators on which a rank is below the target", b->frozen = true;
	      b->ranks[0].behind_count++);
}

static void check_core(void) { core_check(proxy); }

static void end(void)
{
	MUST(!proxy_job_discard(proxy, 1));
	for (uint64_t until = now_ns() + 60000000000ull; proxy_job_close(proxy, 1); serve())
		MUST(now_ns() < until);
	proxy_close(proxy);
	client_close(&clients[0]);
	client_close(&clients[1]);
}

int main(void)
{
	const struct proxy_config config = {.hal = "soft",
					    .memory_bytes = 64 * RF_CHUNK_BYTES,
					    .workers = 1,
					    .cc_major = 8,
					    .speed = 1.0};
	const uint32_t here[2] = {0, 0};
	char error[512];
	proxy = proxy_open(&config, error, sizeof error);
	MUST(proxy && !proxy_job_open(proxy, 1, 1, 0, 1, 2, here, -1, error, sizeof error));
	for (uint32_t n = 0; n < 2; n++) {
		client_open(&clients[n], n, 2);
		MUST(!proxy_rank_attach(proxy, 1, n, clients[n].channel, clients[n].image, error,
					sizeof error));
	}
	furnish(0);
	furnish(1);
	j = proxy->jobs;
	r = j->world.ranks[0];
	o = j->world.ranks[1];
	m = &r->memory;
	d = m->device;
	b = j->world.barrier;
	page = &m->pages[PAGE_HERE];
	s = (void *)table_get(&r->objects, 80, OBJ_STREAM);
	event = (void *)table_get(&r->objects, 100, OBJ_EVENT);
	module = (void *)table_get(&r->objects, 50, OBJ_MODULE);
	MUST(page->chunk && page->chunk->refs == 1 && o->memory.pages[PAGE_HERE].chunk && s &&
	     event && module && !m->inflight);
	core_check(proxy);
	chunks_and_pages();
	copies_and_buffers();
	moves_and_requests();
	memory_as_a_whole();
	versions();
	streams_and_events();
	streams_as_a_whole();
	squashing();
	handles_and_rings();
	loop_as_a_whole();
	measured();
	barriers();
	broken_peers();
	broken_launches(&j->world.launches, check_core);
	broken_collectives(j->world.coll, check_core);
	core_check(proxy);
	end();
	return 0;
}

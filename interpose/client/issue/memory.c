/* memory.c: device memory, copies and fills.
 *
 * Device addresses are ours to give (heap.c); the server only learns of them. Pageable data travels
 * inline (small) or through bulk slots.
 *
 * Lock: heap_lock around the heap and the records that announce its changes, so that the order of
 * frees is the order of their numbers. Nothing is awaited under it: what the device waits for may
 * need it. Blocking, without the lock: malloc when memory is short (until frees are retired) and
 * at the first allocation (grant); malloc and free when the ring is full; copies that move pageable
 * data to the host, or that are synchronous by definition.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"
#include "graph.h"
#include "heap.h"

#define INLINE_BYTES 4096u /* smaller pageable data travels in the record itself */
#define PIPELINE 8u        /* bulk slots one device-to-host copy keeps in flight */

pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER;
static struct heap heap;
static bool heap_ready;
static _Atomic bool launched;

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- device memory ---- */

void memory_first_launch(void)
{
	if (!atomic_load_explicit(&launched, memory_order_relaxed))
		atomic_store(&launched, true);
}

/* Will it live on, like parameters and optimizer state? What a program allocates before its first
 * kernel or collective mostly does. The place to learn from call sites: a hash of the call stack,
 * and what allocations from there did before, belong here. A wrong guess costs speed only. */
static bool predict_stable(void) { return !atomic_load_explicit(&launched, memory_order_relaxed); }

/* Wait until the server has retired the free with this number. A device synchronisation is answered
 * when all earlier work is done, retirement follows at once. (Not by channel_call: it is none of
 * the program's synchronisations.) */
static void wait_retired(uint64_t seq)
{
	struct rf_record sync;
	struct timespec nap = {0, 50000};
	if (atomic_load_explicit(&channel_header->retired_free, memory_order_acquire) < seq)
		channel_finish(channel_begin(&sync, RF_OP_DEVICE_SYNC, sizeof sync, NULL, 0), NULL,
			       0);
	int kept = errno;
	while (atomic_load_explicit(&channel_header->retired_free, memory_order_acquire) < seq)
		nanosleep(&nap, NULL);
	errno = kept;
}

/* Under heap_lock: the free that must be retired before the next ALLOC, 0: none. `after` is that of
 * the place itself; and the server must not hold more than the device has. */
static uint64_t due(uint64_t after)
{
	heap_retire(&heap, atomic_load(&channel_header->retired_free));
	if (heap.retired_seq < after)
		return after;
	return heap.held_chunks > heap.capacity_chunks && heap.retired < heap.freed_count
		       ? heap.freed[heap.retired].seq
		       : 0;
}

static int ask_grant(uint64_t want)
{
	struct rf_grant m = {.want_bytes = want};
	return channel_call(&m.r, RF_OP_GRANT, sizeof m, NULL, 0, NULL, 0);
}

/* Under heap_lock. */
static int open_heap(void)
{
	const struct rf_welcome *welcome;
	if (heap_ready)
		return CUDA_OK;
	int error = channel_welcome(&welcome);
	if (!error)
		error = heap_init(&heap, welcome->device.memory_bytes) ? CUDA_OK : OUT_OF_MEMORY;
	heap_ready = !error;
	return error;
}

/* Under heap_lock, but for the waiting: announce what heap_alloc has placed. Nobody else knows the
 * address yet. */
static int announce(uint64_t address, uint64_t bytes, bool stable, uint64_t after)
{
	struct rf_alloc m = {.addr = address, .bytes = bytes, .stable = stable};
	int error = CUDA_OK;
	while (!error) {
		uint64_t seq = due(after), want = heap.held_chunks * RF_CHUNK_BYTES;
		bool granted = want <= atomic_load(&channel_header->grant_bytes);
		if (!seq && granted && channel_try_post(&m.r, RF_OP_ALLOC, sizeof m))
			return CUDA_OK;
		pthread_mutex_unlock(&heap_lock);
		if (seq)
			wait_retired(seq);
		else if (!granted)
			error = ask_grant(want);
		else
			channel_wait_room(sizeof m);
		pthread_mutex_lock(&heap_lock);
	}
	heap_free(&heap, address, 0);
	return error;
}

int memory_alloc(uint64_t bytes, uint64_t *address) { return memory_alloc_for(0, bytes, address); }

int memory_alloc_for(uint64_t owner, uint64_t bytes, uint64_t *address)
{
	int error = channel_use_device();
	if (error)
		return error;
	uint64_t after;
	bool stable = predict_stable();
	pthread_mutex_lock(&heap_lock);
	error = open_heap();
	if (!error) {
		(void)due(0); /* what is retired by now is free */
		error = heap_alloc(&heap, bytes, stable, address, &after)
				? announce(*address, bytes, stable, after)
				: OUT_OF_MEMORY;
	}
	if (!error && owner)
		heap_own(&heap, *address, owner);
	pthread_mutex_unlock(&heap_lock);
	return error;
}

int memory_free(const void *address)
{
	int error = channel_open();
	if (error)
		return error;
	struct rf_free m = {.addr = (uint64_t)address};
	uint64_t owner = 0, bytes = 0;
	bool freed = false;
	pthread_mutex_lock(&heap_lock);
	while (!freed && !error) {
		const struct heap_extent *e = heap_find(&heap, m.addr);
		uint64_t seq = 0;
		if (!e || e->addr != m.addr)
			error = INVALID_VALUE;
		else
			seq = channel_try_post(&m.r, RF_OP_FREE, sizeof m);
		if (seq) {
			owner = e->owner;
			bytes = e->bytes;
			heap_free(&heap, m.addr, seq);
			freed = true;
		} else if (!error) {
			pthread_mutex_unlock(&heap_lock);
			channel_wait_room(sizeof m);
			pthread_mutex_lock(&heap_lock);
		}
	}
	pthread_mutex_unlock(&heap_lock);
	if (owner)
		pool_got_back(owner, bytes);
	int sticky = channel_enter();
	return sticky ? sticky : error;
}

/* Addresses of the owner's allocations, to be freed. False: host memory is short. */
static bool memory_of(uint64_t owner, uint64_t **out, uint32_t *count)
{
	*count = 0;
	pthread_mutex_lock(&heap_lock);
	*out = malloc((heap.count + 1) * sizeof **out);
	for (uint32_t i = 0; *out && i < heap.count; i++)
		if (heap.extents[i].state == HEAP_LIVE && heap.extents[i].owner == owner)
			(*out)[(*count)++] = heap.extents[i].addr;
	pthread_mutex_unlock(&heap_lock);
	return *out;
}

int memory_info(uint64_t *free_bytes, uint64_t *total_bytes)
{
	const struct rf_welcome *welcome;
	int error = channel_welcome(&welcome);
	if (error)
		return error;
	*total_bytes = welcome->device.memory_bytes;
	pthread_mutex_lock(&heap_lock);
	*free_bytes = *total_bytes - min(*total_bytes, heap.live_chunks * RF_CHUNK_BYTES);
	pthread_mutex_unlock(&heap_lock);
	*free_bytes -= pool_kept(*free_bytes);
	return CUDA_OK;
}

/* What is queued must not use any of it any more. */
int memory_end(uint64_t owner)
{
	uint64_t *addresses;
	uint32_t count;
	if (!memory_of(owner, &addresses, &count))
		return OUT_OF_MEMORY;
	for (uint32_t i = 0; i < count; i++)
		memory_free((void *)addresses[i]);
	free(addresses);
	pinned_end(owner);
	return CUDA_OK;
}

/* ---- what an address is ---- */

enum where memory_where(const void *address)
{
	if ((uint64_t)address - RF_DEV_BASE < RF_HEAP_BYTES)
		return AT_DEVICE;
	return pinned_is(address) ? AT_PINNED : AT_PAGEABLE;
}

bool memory_find(const void *address, struct allocation *out)
{
	if (memory_where(address) != AT_DEVICE)
		return pinned_find(address, out);
	pthread_mutex_lock(&heap_lock);
	const struct heap_extent *e = heap_find(&heap, (uint64_t)address);
	if (e)
		*out = (struct allocation){e->addr, e->asked, e->owner, 0};
	pthread_mutex_unlock(&heap_lock);
	return e;
}

static bool in_allocation(const void *address, uint64_t bytes, uint64_t granule)
{
	struct allocation a;
	if (!memory_find(address, &a))
		return false;
	uint64_t offset = (uint64_t)address - a.base;
	uint64_t whole = (a.bytes + granule - 1) / granule * granule;
	return offset <= whole && bytes <= whole - offset;
}

bool memory_on_device(const void *address, uint64_t bytes)
{
	return in_allocation(address, bytes, 1);
}

bool memory_reachable(const void *address, uint64_t bytes)
{
	return in_allocation(address, bytes, RF_ALLOC_ALIGN);
}

/* ---- copies ---- */

/* Bytes from the first of a copy's rows to the end of its last. */
static uint64_t span(const struct copy *c, uint64_t pitch)
{
	return (c->height - 1) * pitch + c->width;
}

static struct rf_copy record_of(const struct copy *c)
{
	return (struct rf_copy){.stream = c->stream,
				.dst = (uint64_t)c->dst,
				.src = (uint64_t)c->src,
				.dst_pitch = c->dst_pitch,
				.src_pitch = c->src_pitch,
				.width = c->width,
				.height = c->height};
}

/* Both sides in the window. */
static int copy_window(const struct copy *c, bool wait)
{
	struct rf_copy m = record_of(c);
	if (wait)
		return channel_call(&m.r, RF_OP_COPY, sizeof m, NULL, 0, NULL, 0);
	channel_post(&m.r, RF_OP_COPY, sizeof m, NULL, 0);
	return CUDA_OK;
}

static void gather(uint8_t *to, const struct copy *c)
{
	for (uint64_t row = 0; row < c->height; row++)
		memcpy(to + row * c->width, (const uint8_t *)c->src + row * c->src_pitch, c->width);
}

static void scatter(const struct copy *c, const uint8_t *from)
{
	for (uint64_t row = 0; row < c->height; row++)
		memcpy((uint8_t *)c->dst + row * c->dst_pitch, from + row * c->width, c->width);
}

/* Cut the next piece of at most RF_BULK_BYTES off c: whole rows, or a part of one. */
static bool next_piece(struct copy *c, uint64_t *column, struct copy *piece)
{
	if (!c->height)
		return false;
	*piece = *c;
	piece->dst = (uint8_t *)c->dst + *column;
	piece->src = (const uint8_t *)c->src + *column;
	uint64_t rows = 1;
	if (c->width <= RF_BULK_BYTES) {
		rows = piece->height = min(c->height, RF_BULK_BYTES / c->width);
	} else {
		piece->height = 1;
		piece->width = min(c->width - *column, RF_BULK_BYTES);
		*column += piece->width;
		if (*column < c->width)
			return true;
		*column = 0;
	}
	c->dst = (uint8_t *)c->dst + rows * c->dst_pitch;
	c->src = (const uint8_t *)c->src + rows * c->src_pitch;
	c->height -= rows;
	return true;
}

/* The data are with us, or have arrived. */
static int send_in(struct rf_copy *m, const void *tail, size_t bytes, bool wait)
{
	if (wait)
		return channel_call(&m->r, RF_OP_COPY, sizeof *m, tail, bytes, NULL, 0);
	channel_post(&m->r, RF_OP_COPY, sizeof *m, tail, bytes);
	return CUDA_OK;
}

/* Pageable memory to the window. CUDA allows a synchronous copy to be still on its way when it
 * returns; real devices are so fast that programs let streams read it which do not wait for it. */
static int copy_in(struct copy c)
{
	struct copy piece;
	uint64_t column = 0;
	int error = CUDA_OK;
	if (c.width * c.height <= INLINE_BYTES) {
		uint8_t small[INLINE_BYTES];
		struct rf_copy m = record_of(&c);
		gather(small, &c);
		m.src_place = RF_AT_INLINE;
		m.src = 0;
		m.src_pitch = c.width;
		return send_in(&m, small, c.width * c.height, !c.async);
	}
	while (next_piece(&c, &column, &piece)) {
		uint32_t bulk = bulk_claim(true);
		struct rf_copy m = record_of(&piece);
		gather(bulk_data(bulk), &piece);
		m.src_place = RF_AT_BULK;
		m.src = (uint64_t)bulk * RF_BULK_BYTES;
		m.src_pitch = piece.width;
		m.release_bulk = 1;
		error = send_in(&m, NULL, 0, !c.async && !c.height);
	}
	return error;
}

struct flight {
	struct copy piece;
	uint32_t bulk, slot;
};

static void send_out(struct flight *f)
{
	struct rf_copy m = record_of(&f->piece);
	m.dst_place = RF_AT_BULK;
	m.dst = (uint64_t)f->bulk * RF_BULK_BYTES;
	m.dst_pitch = f->piece.width;
	f->slot = channel_begin(&m.r, RF_OP_COPY, sizeof m, NULL, 0);
}

/* The window to pageable memory: some pieces in flight, each copied out when it is answered. */
static int copy_out(struct copy c)
{
	struct flight flights[PIPELINE];
	uint32_t first = 0, count = 0;
	uint64_t column = 0;
	bool more = true;
	int error = CUDA_OK;
	for (;;) {
		while (more && !error && count < PIPELINE) {
			struct flight *f = &flights[(first + count) % PIPELINE];
			/* Blocks only while it holds none: the others can always go on. */
			if ((f->bulk = bulk_claim(count == 0)) == BULK_NONE)
				break;
			if (!(more = next_piece(&c, &column, &f->piece))) {
				bulk_release(f->bulk);
				break;
			}
			send_out(f);
			count++;
		}
		if (!count) {
			print_kernels_output();
			return error;
		}
		struct flight *f = &flights[first];
		int failed = channel_finish(f->slot, NULL, 0);
		if (!failed && !error)
			scatter(&f->piece, bulk_data(f->bulk));
		error = error ? error : failed;
		bulk_release(f->bulk);
		first = (first + 1) % PIPELINE;
		count--;
	}
}

static int copy_on_host(const struct copy *c)
{
	struct rf_handle m = {.handle = c->stream};
	int error = channel_call(&m.r, RF_OP_STREAM_SYNC, sizeof m, NULL, 0, NULL, 0);
	for (uint64_t row = 0; !error && row < c->height; row++)
		memmove((uint8_t *)c->dst + row * c->dst_pitch,
			(const uint8_t *)c->src + row * c->src_pitch, c->width);
	return error;
}

/* Does what the caller says of its pointers agree with what they are? */
static bool kind_fits(int kind, enum where dst, enum where src)
{
	switch (kind) {
	case HOST_TO_HOST: return dst != AT_DEVICE && src != AT_DEVICE;
	case HOST_TO_DEVICE: return dst != AT_PAGEABLE && src != AT_DEVICE;
	case DEVICE_TO_HOST: return dst != AT_DEVICE && src != AT_PAGEABLE;
	case DEVICE_TO_DEVICE: return dst != AT_PAGEABLE && src != AT_PAGEABLE;
	default: return kind == BY_ADDRESS;
	}
}

int memory_copy(const struct copy *given)
{
	struct copy c = *given;
	int error = channel_enter();
	if (error || !c.width || !c.height)
		return error;
	if (c.kind < HOST_TO_HOST || c.kind > BY_ADDRESS)
		return INVALID_DIRECTION;
	if (c.height > 1 && (c.dst_pitch < c.width || c.src_pitch < c.width))
		return INVALID_VALUE;
	if (c.height > 1 && c.dst_pitch == c.width && c.src_pitch == c.width) {
		c.width *= c.height;
		c.height = 1;
	}
	c.dst = registered_reached(c.dst, span(&c, c.dst_pitch));
	c.src = registered_reached(c.src, span(&c, c.src_pitch));
	enum where dst = memory_where(c.dst), src = memory_where(c.src);
	if (!c.dst || !c.src || !kind_fits(c.kind, dst, src) ||
	    (dst != AT_PAGEABLE && !memory_on_device(c.dst, span(&c, c.dst_pitch))) ||
	    (src != AT_PAGEABLE && !memory_on_device(c.src, span(&c, c.src_pitch))))
		return INVALID_VALUE;
	error = c.async ? CUDA_OK : capture_forbids();
	if (error)
		return error;
	if (capturing(c.stream))
		return c.async ? capture_add(c.stream, node_copy(&c)) : capture_refuse(c.stream);
	if (dst != AT_DEVICE && src != AT_DEVICE)
		return copy_on_host(&c);
	if (src == AT_PAGEABLE) {
		error = c.async ? CUDA_OK : stream_before_reading(c.stream);
		return error ? error : copy_in(c);
	}
	if (dst == AT_PAGEABLE)
		return copy_out(c);
	return copy_window(&c, !c.async && (dst == AT_PINNED || src == AT_PINNED));
}

int memory_copy_1d(void *dst, const void *src, uint64_t bytes, int kind, const void *stream,
		   bool async)
{
	struct copy c = {dst, src, bytes, bytes, bytes, 1, kind, 0, async};
	int error = stream_number(stream, &c.stream);
	return error ? error : memory_copy(&c);
}

int memory_get(void *to, uint64_t from, uint64_t bytes, uint64_t stream)
{
	return copy_out((struct copy){to, (void *)from, bytes, bytes, bytes, 1, DEVICE_TO_HOST,
				      stream, false});
}

int memory_put(uint64_t to, const void *from, uint64_t bytes, uint64_t stream)
{
	return copy_in((struct copy){(void *)to, from, bytes, bytes, bytes, 1, HOST_TO_DEVICE,
				     stream, false});
}

int memory_fill(const void *dst, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
		uint64_t height, const void *stream)
{
	struct rf_fill m = {.dst = (uint64_t)dst,
			    .pitch = pitch,
			    .width = width,
			    .height = height,
			    .value = value,
			    .element = element};
	int error = stream_number(stream, &m.stream);
	if (!error)
		error = channel_enter();
	if (error || !width || !height)
		return error;
	m.dst = (uint64_t)registered_reached(dst, width * element);
	if (width > RF_HEAP_BYTES || (height > 1 && pitch < width * element) || m.dst % element ||
	    (height > 1 && pitch % element) ||
	    !memory_on_device((void *)m.dst, (height - 1) * pitch + width * element))
		return INVALID_VALUE;
	if (height == 1)
		m.pitch = width * element;
	if (capturing(m.stream))
		return capture_add(m.stream,
				   node_fill(&(CUDA_MEMSET_NODE_PARAMS){m.dst, m.pitch, value,
									element, width, height}));
	channel_post(&m.r, RF_OP_FILL, sizeof m, NULL, 0);
	return CUDA_OK;
}

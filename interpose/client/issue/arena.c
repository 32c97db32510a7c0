/* arena.c: host memory that the device reaches at the address that the program uses.
 *
 * It is the arena part of the memfd, mapped at the same address here and in the device's window. So
 * it moves with the rank, and no page is copied.
 *
 * A GPU reaches the chunks that are in use directly, and for that it knows their physical pages. So
 * the channel says which chunks these are (RF_OFF_PINS), and the pages of a chunk that is not used
 * any more are given back only when the server knows that (pinned_announce). Memory that is
 * allocated again before that keeps its pages.
 *
 * Lock: PINNED_LOCK around the blocks. Blocks: pinned_announce, which waits for the server.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "arena.h"
#include "invariant.h"

static struct block *blocks;
static uint32_t block_count, block_capacity;
/* Under PINNED_LOCK, a bit per chunk as in the channel: */
static uint64_t announced[RF_PIN_WORDS]; /* in use when the server was last asked */
static uint64_t emptied[RF_PIN_WORDS];   /* no longer in use; its pages are still there */
static uint64_t asked[RF_PIN_WORDS];     /* and not used since the server is asked */

static _Atomic uint64_t *pins(void)
{
	return (_Atomic uint64_t *)((uint8_t *)channel_header + RF_OFF_PINS);
}

/* ---- chunks of the arena ---- */

static bool bit_of(const uint64_t *bits, uint64_t chunk)
{
	return bits[chunk / 64] >> chunk % 64 & 1;
}

/* Under PINNED_LOCK: a block of these bytes is in use. */
static void use_chunks(uint64_t offset, uint64_t bytes)
{
	for (uint64_t i = offset / RF_CHUNK_BYTES; i <= (offset + bytes - 1) / RF_CHUNK_BYTES;
	     i++) {
		uint64_t bit = 1ull << i % 64;
		if (bit_of(emptied, i)) /* it reads as zero */
			memset(arena_start() + i * RF_CHUNK_BYTES, 0, RF_CHUNK_BYTES);
		emptied[i / 64] &= ~bit;
		asked[i / 64] &= ~bit;
		atomic_fetch_or(&pins()[i / 64], bit);
	}
}

/* Under PINNED_LOCK. */
static bool chunk_used(uint64_t chunk)
{
	uint64_t first = chunk * RF_CHUNK_BYTES, end = first + RF_CHUNK_BYTES;
	for (uint32_t i = 0; i < block_count; i++)
		if (blocks[i].requested && blocks[i].offset < end &&
		    blocks[i].offset + blocks[i].bytes > first)
			return true;
	return false;
}

/* Under PINNED_LOCK: a block of these bytes is free. In chunks that other blocks use, its bytes are
 * cleared, because the pages stay. */
static void leave_chunks(uint64_t offset, uint64_t bytes)
{
	for (uint64_t at = offset, n; at < offset + bytes; at += n) {
		uint64_t i = at / RF_CHUNK_BYTES, end = (i + 1) * RF_CHUNK_BYTES;
		n = (end < offset + bytes ? end : offset + bytes) - at;
		if (chunk_used(i)) {
			memset(arena_start() + at, 0, n);
			continue;
		}
		emptied[i / 64] |= 1ull << i % 64;
		atomic_fetch_and(&pins()[i / 64], ~(1ull << i % 64));
	}
}

/* Under PINNED_LOCK: gives back the pages of unused chunks. The server knows that they are. */
static void give_back_chunks(void)
{
	int saved_errno = errno;
	for (uint64_t i = 0; i < RF_PIN_WORDS * 64; i++)
		if (bit_of(asked, i)) {
			madvise(arena_start() + i * RF_CHUNK_BYTES, RF_CHUNK_BYTES, MADV_REMOVE);
			emptied[i / 64] &= ~(1ull << i % 64);
		}
	errno = saved_errno;
}

/* Under PINNED_LOCK: true if the server does not know them. */
static bool note_changes(void)
{
	bool differ = false;
	for (uint32_t i = 0; i < RF_PIN_WORDS; i++) {
		uint64_t now = atomic_load(&pins()[i]);
		differ |= announced[i] != now;
		announced[i] = now;
		asked[i] = emptied[i];
	}
	return differ;
}

/* One thread at a time: a reply is about the chunks as they were when it was requested. */
void pinned_announce(void)
{
	struct rf_record m = {0};
	if (!device_is_gpu() || channel_enter())
		return;
	lock(PINS_LOCK);
	lock(PINNED_LOCK);
	bool differ = note_changes();
	unlock(PINNED_LOCK);
	if (differ && !channel_call(&m, RF_OP_PINNED, sizeof m, NULL, 0, NULL, 0)) {
		lock(PINNED_LOCK);
		give_back_chunks();
		unlock(PINNED_LOCK);
	}
	unlock(PINS_LOCK);
}

/* ---- blocks ---- */

uint8_t *arena_start(void)
{
	return channel_header ? (uint8_t *)RF_PINNED_BASE(channel_header->rank) : NULL;
}

static bool insert_block(uint32_t at, struct block b)
{
	if (block_count == block_capacity) {
		uint32_t capacity = block_capacity ? block_capacity * 2 : 16;
		struct block *more = realloc(blocks, capacity * sizeof *more);
		if (!more)
			return false;
		blocks = more;
		block_capacity = capacity;
	}
	memmove(blocks + at + 1, blocks + at, (block_count++ - at) * sizeof *blocks);
	blocks[at] = b;
	return true;
}

static void remove_block(uint32_t at)
{
	memmove(blocks + at, blocks + at + 1, (--block_count - at) * sizeof *blocks);
}

/* Under PINNED_LOCK: allocates a block, first fit. */
static void *allocate_block(uint64_t requested, uint64_t owner, unsigned flags)
{
	uint64_t bytes = (requested + PAGE - 1) & ~(PAGE - 1);
	if (!block_count && !insert_block(0, (struct block){.bytes = RF_PINNED_SLOT_BYTES}))
		return NULL;
	for (uint32_t i = 0; i < block_count; i++) {
		if (blocks[i].requested || blocks[i].bytes < bytes)
			continue;
		INVARIANT(blocks[i].offset + blocks[i].bytes <= RF_PINNED_SLOT_BYTES,
			  "a block is in the pinned arena");
		struct block rest = {.offset = blocks[i].offset + bytes,
				     .bytes = blocks[i].bytes - bytes};
		if (rest.bytes && !insert_block(i + 1, rest))
			return NULL;
		blocks[i].bytes = bytes;
		blocks[i].requested = requested;
		blocks[i].owner = owner;
		blocks[i].flags = flags;
		if (device_is_gpu())
			use_chunks(blocks[i].offset, bytes);
		return arena_start() + blocks[i].offset;
	}
	return NULL;
}

/* Under PINNED_LOCK: the index of the block that contains address, or block_count. */
static uint32_t find_block(const void *address)
{
	uint64_t offset = (uint64_t)((const uint8_t *)address - arena_start());
	uint32_t i = 0;
	while (i < block_count && offset - blocks[i].offset >= blocks[i].bytes)
		i++;
	return i < block_count && blocks[i].requested ? i : block_count;
}

int pinned_alloc(uint64_t bytes, uint64_t owner, unsigned flags, void **address)
{
	int error = channel_enter();
	if (error)
		return error;
	if (!bytes || bytes > RF_PINNED_SLOT_BYTES)
		return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
	lock(PINNED_LOCK);
	*address = allocate_block(bytes, owner, flags);
	unlock(PINNED_LOCK);
	return *address ? CUDA_OK : OUT_OF_MEMORY;
}

bool pinned_is(const void *address)
{
	return channel_header &&
	       (uint64_t)((const uint8_t *)address - arena_start()) < RF_PINNED_SLOT_BYTES;
}

bool pinned_find(const void *address, struct allocation *out)
{
	if (!pinned_is(address))
		return false;
	lock(PINNED_LOCK);
	uint32_t i = find_block(address);
	bool found = i < block_count;
	if (found)
		*out = (struct allocation){.base = (uint64_t)arena_start() + blocks[i].offset,
					   .bytes = blocks[i].requested,
					   .owner = blocks[i].owner,
					   .flags = blocks[i].flags};
	unlock(PINNED_LOCK);
	return found;
}

/* Under PINNED_LOCK: marks a block as free and joins it with its free neighbours. */
static void merge_block(uint32_t i)
{
	free(blocks[i].notes);
	blocks[i].notes = NULL;
	blocks[i].requested = 0;
	INVARIANT(i + 1 == block_count ||
			  blocks[i].offset + blocks[i].bytes == blocks[i + 1].offset,
		  "blocks of the pinned arena have no gaps");
	if (i + 1 < block_count && !blocks[i + 1].requested) {
		blocks[i].bytes += blocks[i + 1].bytes;
		remove_block(i + 1);
	}
	if (i > 0 && !blocks[i - 1].requested) {
		blocks[i - 1].bytes += blocks[i].bytes;
		remove_block(i);
	}
}

/* Under PINNED_LOCK. */
static void drop_block(uint32_t i)
{
	int saved_errno = errno;
	INVARIANT(i < block_count && blocks[i].requested,
		  "pinned memory that is freed was allocated");
	uint64_t offset = blocks[i].offset, bytes = blocks[i].bytes;
	blocks[i].requested = 0;
	if (device_is_gpu())
		leave_chunks(offset, bytes);
	else
		madvise(arena_start() + offset, bytes, MADV_REMOVE);
	errno = saved_errno;
	merge_block(i);
}

/* The caller ensures that no queued work still reads or writes the memory. */
int pinned_release(void *address)
{
	int error = CUDA_OK;
	lock(PINNED_LOCK);
	uint32_t i = find_block(address);
	if (i < block_count && arena_start() + blocks[i].offset == (uint8_t *)address) {
		drop_block(i);
	} else {
		error = INVALID_VALUE;
	}
	unlock(PINNED_LOCK);
	return error;
}

/* The caller ensures that no queued work still uses any of the memory. */
void pinned_end(uint64_t owner)
{
	lock(PINNED_LOCK);
	for (uint32_t i = 0; i < block_count;) {
		bool its = blocks[i].requested && blocks[i].owner == owner;
		if (its)
			drop_block(i);
		i = its ? 0 : i + 1; /* the block has joined its neighbours: start again */
	}
	unlock(PINNED_LOCK);
}

struct block *arena_block(const void *address)
{
	uint32_t i = pinned_is(address) ? find_block(address) : block_count;
	return i < block_count ? &blocks[i] : NULL;
}

void arena_drop(struct block *b) { drop_block((uint32_t)(b - blocks)); }

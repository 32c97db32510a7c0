/* virtual_memory.c: memory that a program maps itself (cuMemCreate, cuMemAddressReserve, cuMemMap),
 * as PyTorch's expandable segments and JAX do.
 *
 * A range of addresses costs no memory. A piece of memory counts from cuMemCreate on, and the
 * server has it from the time when it is mapped: it knows memory only at an address. So a piece
 * that is unmapped and not released stays where it was. If another piece is mapped there, or this
 * one elsewhere, its content is set aside in the host's memory until it is mapped again. One piece
 * at two addresses is refused by name, and so is a part of a piece.
 *
 * VIRTUAL_LOCK: the list of pieces. No call waits for the server under it: a piece whose content is
 * being moved is `busy` meanwhile, and other threads wait until it no longer is.
 */
#include <stdlib.h>

#include "issue.h"

#define MULTIPLE RF_CHUNK_BYTES                       /* of all sizes and addresses */
enum { PINNED = 1, ON_A_DEVICE = 1, READ_WRITE = 3 }; /* as the driver has them */

struct piece {
	struct piece *next;
	uint64_t bytes;
	uint64_t handles; /* how often the program must release it */
	cudaMemLocation location;
	int handle_types;
	uint64_t at; /* where its content is; 0: at no address */
	void *aside; /* its content meanwhile; NULL: it has none */
	bool mapped, accessible, busy;
};

static struct piece *pieces;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

enum refusal { OF_THE_HOST, ALIGNED_FURTHER, IN_PARTS, AT_TWO_ADDRESSES, READ_ONLY };

/* Each is reported once. */
static int not_supported(enum refusal which)
{
	static const char *const what[] = {
		[OF_THE_HOST] = "memory of the host that is mapped by hand",
		[ALIGNED_FURTHER] = "a range of addresses that is aligned to more than 2 MiB",
		[IN_PARTS] = "a part of a piece of memory that is mapped without the rest",
		[AT_TWO_ADDRESSES] = "a piece of memory that is mapped at two addresses",
		[READ_ONLY] = "memory of the device that may only be read",
	};
	static _Atomic bool reported[sizeof what / sizeof *what];
	if (!atomic_exchange(&reported[which], true))
		log_message("%s is not supported by rankfold: allocate memory with cuMemAlloc",
			    what[which]);
	return NOT_SUPPORTED;
}

static bool is_whole(uint64_t bytes) { return bytes && bytes % MULTIPLE == 0; }

static bool is_reserved(uint64_t addr, uint64_t bytes)
{
	uint64_t first, whole;
	return addresses_find(addr, &first, &whole) && bytes <= first + whole - addr;
}

static int location_check(const cudaMemLocation *location)
{
	if (location->type == ON_A_DEVICE)
		return device_check(location->id);
	return not_supported(OF_THE_HOST);
}

int virtual_granularity(size_t *out, const CUmemAllocationProp *prop)
{
	if (!out || !prop)
		return INVALID_VALUE;
	*out = MULTIPLE;
	return location_check(&prop->location);
}

/* ---- pieces; under VIRTUAL_LOCK ---- */

static struct piece *piece_of(CUmemGenericAllocationHandle handle)
{
	struct piece *p = pieces;
	while (p && ((uint64_t)(uintptr_t)p != handle || !p->handles))
		p = p->next;
	return p;
}

/* The first one in the list that has content in [addr, +bytes), other than `except`. */
static struct piece *piece_in(uint64_t addr, uint64_t bytes, const struct piece *except)
{
	struct piece *p = pieces;
	while (p && (p == except || !p->at || p->at >= addr + bytes || addr >= p->at + p->bytes))
		p = p->next;
	return p;
}

static struct piece *piece_mapped(uint64_t addr)
{
	struct piece *p = piece_in(addr, 1, NULL);
	return p && p->mapped && !p->busy ? p : NULL;
}

/* Takes it from the list if nothing refers to it any more; the caller then discards it, without
 * the lock. A busy one is left to the thread that moves it. */
static bool piece_unlink(struct piece *p)
{
	struct piece **at = &pieces;
	if (p->handles || p->mapped || p->busy)
		return false;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	p->next = NULL;
	return true;
}

/* ---- content; without the lock ---- */

static void discard(struct piece *p)
{
	while (p) {
		struct piece *next = p->next;
		if (p->at)
			memory_unmap(p->at, false);
		else
			memory_unpromise(p->bytes);
		free(p->aside);
		free(p);
		p = next;
	}
}

/* Copies between a piece's address and host memory, on a stream of its own: it may happen during a
 * capture. */
static int copy_content(struct piece *p, bool out)
{
	struct rf_stream_create own = {.stream = handle_number(), .flags = RF_STREAM_NON_BLOCKING};
	struct rf_handle destroy = {.handle = own.stream};
	channel_post(&own.r, RF_OP_STREAM_CREATE, sizeof own, NULL, 0);
	int error = out ? memory_get(p->aside, p->at, p->bytes, own.stream)
			: memory_put(p->at, p->aside, p->bytes, own.stream);
	channel_post(&destroy.r, RF_OP_STREAM_DESTROY, sizeof destroy, NULL, 0);
	return error;
}

static int set_aside(struct piece *p)
{
	p->aside = malloc(p->bytes);
	int error = p->aside ? wait_for_device() : OUT_OF_MEMORY;
	if (!error)
		error = copy_content(p, true);
	if (!error)
		error = memory_unmap(p->at, true);
	if (error) {
		free(p->aside);
		p->aside = NULL;
	}
	return error;
}

static int bring_back(struct piece *p)
{
	int error = memory_map(p->at, p->bytes);
	if (!error && p->aside)
		error = copy_content(p, false);
	if (!error) {
		free(p->aside);
		p->aside = NULL;
	}
	return error;
}

/* ---- moving content; under VIRTUAL_LOCK, which they release meanwhile ---- */

static int move_piece(struct piece *p, int (*move)(struct piece *))
{
	p->busy = true;
	unlock(VIRTUAL_LOCK);
	int error = move(p);
	lock(VIRTUAL_LOCK);
	p->busy = false;
	pthread_cond_broadcast(&moved);
	return error;
}

/* The piece's content leaves its address. The caller looks again whether anything is there. */
static int move_away(struct piece *p)
{
	if (p->busy) {
		lock_wait(&moved, VIRTUAL_LOCK);
		return CUDA_OK;
	}
	int error = move_piece(p, set_aside);
	if (!error)
		p->at = 0;
	if (piece_unlink(p)) { /* it was released meanwhile */
		unlock(VIRTUAL_LOCK);
		discard(p);
		lock(VIRTUAL_LOCK);
	}
	return error;
}

/* The piece is mapped at addr, where nothing is. */
static int move_in(struct piece *p, uint64_t addr)
{
	p->mapped = true;
	p->at = addr;
	int error = move_piece(p, bring_back);
	if (error) {
		p->mapped = false;
		p->at = 0;
	}
	return error;
}

/* ---- ranges of addresses ---- */

int virtual_reserve(uint64_t *out, uint64_t bytes, uint64_t alignment)
{
	if (!out || !is_whole(bytes) || (alignment & (alignment - 1)))
		return INVALID_VALUE;
	if (alignment > MULTIPLE)
		return not_supported(ALIGNED_FURTHER);
	int error = addresses_reserve(bytes, out);
	if (error == OUT_OF_MEMORY)
		LOG_ONCE("%llu MiB of addresses are not available: a rank has 512 GiB of them",
			 (unsigned long long)(bytes >> 20));
	return error;
}

int virtual_free(uint64_t addr, uint64_t bytes)
{
	uint64_t first, whole;
	struct piece *p;
	int error = channel_open();
	if (error)
		return error;
	if (!addresses_find(addr, &first, &whole) || first != addr || whole != bytes)
		return INVALID_VALUE;
	lock(VIRTUAL_LOCK);
	while (!error && (p = piece_in(addr, bytes, NULL)))
		error = p->mapped ? INVALID_VALUE : move_away(p);
	if (!error && !addresses_free(addr))
		error = INVALID_VALUE;
	unlock(VIRTUAL_LOCK);
	return error;
}

/* ---- memory ---- */

int virtual_create(CUmemGenericAllocationHandle *out, uint64_t bytes,
		   const CUmemAllocationProp *prop)
{
	if (!out || !prop || !is_whole(bytes) || prop->type != PINNED)
		return INVALID_VALUE;
	struct piece *p = NULL;
	int error = location_check(&prop->location);
	if (!error)
		error = channel_enter();
	if (!error && !(p = calloc(1, sizeof *p)))
		error = OUT_OF_MEMORY;
	if (!error)
		error = memory_promise(bytes);
	if (error) {
		free(p);
		return error;
	}
	p->bytes = bytes;
	p->handles = 1;
	p->location = prop->location;
	p->handle_types = prop->requestedHandleTypes;
	lock(VIRTUAL_LOCK);
	p->next = pieces;
	pieces = p;
	unlock(VIRTUAL_LOCK);
	*out = (uint64_t)(uintptr_t)p;
	return CUDA_OK;
}

int virtual_release(CUmemGenericAllocationHandle handle)
{
	int error = channel_open();
	if (error)
		return error;
	lock(VIRTUAL_LOCK);
	struct piece *p = piece_of(handle);
	if (p)
		p->handles--;
	bool gone = p && piece_unlink(p);
	unlock(VIRTUAL_LOCK);
	if (gone)
		discard(p);
	return p ? CUDA_OK : INVALID_VALUE;
}

/* Under VIRTUAL_LOCK, which it may release meanwhile: *out can be mapped at addr, where no other
 * piece has content, and its own content is there or aside. */
static int prepare_map(uint64_t addr, uint64_t bytes, CUmemGenericAllocationHandle handle,
		       struct piece **out)
{
	int error = CUDA_OK;
	while (!error) {
		struct piece *p = piece_of(handle), *other;
		if (!p || bytes > p->bytes)
			return INVALID_VALUE;
		if (bytes != p->bytes)
			return not_supported(IN_PARTS);
		if (p->mapped)
			return p->at == addr ? INVALID_VALUE : not_supported(AT_TWO_ADDRESSES);
		other = piece_in(addr, bytes, p);
		if (other && other->mapped)
			return INVALID_VALUE;
		if (!other && (p->busy || (p->at && p->at != addr)))
			other = p;
		*out = p;
		if (!other)
			return CUDA_OK;
		error = move_away(other);
	}
	return error;
}

int virtual_map(uint64_t addr, uint64_t bytes, uint64_t offset, CUmemGenericAllocationHandle handle)
{
	struct piece *p;
	if (offset || !is_whole(bytes) || addr % MULTIPLE || !is_reserved(addr, bytes))
		return INVALID_VALUE;
	int error = channel_enter();
	if (error)
		return error;
	lock(VIRTUAL_LOCK);
	error = prepare_map(addr, bytes, handle, &p);
	if (!error) {
		p->accessible = false;
		if (p->at)
			p->mapped = true;
		else
			error = move_in(p, addr);
	}
	unlock(VIRTUAL_LOCK);
	return error;
}

/* Under VIRTUAL_LOCK: returns whether [addr, +bytes) consists of whole mapped pieces. */
static bool all_mapped(uint64_t addr, uint64_t bytes)
{
	uint64_t end = addr + bytes;
	while (addr < end) {
		struct piece *p = piece_mapped(addr);
		if (!p || p->at != addr)
			return false;
		addr += p->bytes;
	}
	return addr == end;
}

int virtual_unmap(uint64_t addr, uint64_t bytes)
{
	struct piece *gone = NULL, *p;
	int error = channel_open();
	if (error)
		return error;
	lock(VIRTUAL_LOCK);
	bool good = is_whole(bytes) && is_reserved(addr, bytes) && all_mapped(addr, bytes);
	for (uint64_t end = addr + bytes; good && addr < end; addr += MULTIPLE) {
		if (!(p = piece_mapped(addr)))
			continue; /* the rest of a piece */
		p->mapped = false;
		if (piece_unlink(p)) {
			p->next = gone;
			gone = p;
		}
	}
	unlock(VIRTUAL_LOCK);
	discard(gone);
	return good ? CUDA_OK : INVALID_VALUE;
}

int virtual_set_access(uint64_t addr, uint64_t bytes, const cudaMemAccessDesc *list, size_t count)
{
	if (!list || !count || !is_whole(bytes) || addr % MULTIPLE || !is_reserved(addr, bytes))
		return INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		int error = location_check(&list[i].location);
		if (!error && list[i].flags != READ_WRITE)
			error = not_supported(READ_ONLY);
		if (error)
			return error;
	}
	lock(VIRTUAL_LOCK);
	bool good = all_mapped(addr, bytes);
	for (uint64_t end = addr + bytes; good && addr < end; addr += MULTIPLE)
		piece_mapped(addr)->accessible = true;
	unlock(VIRTUAL_LOCK);
	return good ? CUDA_OK : INVALID_VALUE;
}

int virtual_get_access(unsigned long long *flags, const cudaMemLocation *location, uint64_t addr)
{
	if (!flags || !location)
		return INVALID_VALUE;
	lock(VIRTUAL_LOCK);
	struct piece *p = piece_mapped(addr);
	*flags = p && p->accessible ? READ_WRITE : 0;
	unlock(VIRTUAL_LOCK);
	return p ? location_check(location) : INVALID_VALUE;
}

int virtual_retain(CUmemGenericAllocationHandle *out, const void *address)
{
	if (!out)
		return INVALID_VALUE;
	lock(VIRTUAL_LOCK);
	struct piece *p = piece_mapped((uint64_t)address);
	if (p) {
		p->handles++;
		*out = (uint64_t)(uintptr_t)p;
	}
	unlock(VIRTUAL_LOCK);
	return p ? CUDA_OK : INVALID_VALUE;
}

int virtual_properties(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle)
{
	lock(VIRTUAL_LOCK);
	struct piece *p = piece_of(handle);
	if (p && out)
		*out = (CUmemAllocationProp){.type = PINNED,
					     .requestedHandleTypes = p->handle_types,
					     .location = p->location};
	unlock(VIRTUAL_LOCK);
	return p && out ? CUDA_OK : INVALID_VALUE;
}

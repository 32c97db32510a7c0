/* virtual_memory.c: memory that a program maps itself (cuMemCreate, cuMemAddressReserve, cuMemMap),
 * as JAX does for each of its buffers.
 *
 * A range of addresses is an allocation from the time when it is reserved: the server knows memory
 * only at an address. So a range may have one piece of memory, of its own size; and memory that was
 * mapped stays where it is until another piece is mapped there. Everything else is refused by name:
 * several pieces in one range, as PyTorch's expandable segments have, and one piece in two ranges.
 *
 * VIRTUAL_LOCK: the lists of ranges and pieces. No call waits under it.
 */
#include <stdlib.h>

#include "issue.h"

#define MULTIPLE RF_CHUNK_BYTES                       /* of all sizes and addresses */
enum { PINNED = 1, ON_A_DEVICE = 1, READ_WRITE = 3 }; /* as the driver has them */

struct range {
	struct range *next;
	uint64_t addr, bytes, base; /* base: of the allocation, which may begin earlier */
	struct piece *holds;        /* whose content is there; NULL: of none */
	bool mapped;
};
struct piece {
	struct piece *next;
	uint64_t bytes, references; /* of the program, and of the mapping */
	cudaMemLocation location;
	int handle_types;
	struct range *at; /* where its content is; NULL: it has none */
};

static struct range *ranges;
static struct piece *pieces;

enum refusal { OF_THE_HOST, ALIGNED_FURTHER, IN_PIECES, AT_TWO_ADDRESSES, EXCHANGED, READ_ONLY };

/* Each is reported once. */
static int not_supported(enum refusal which)
{
	static const char *const what[] = {
		[OF_THE_HOST] = "memory of the host that is mapped by hand",
		[ALIGNED_FURTHER] = "a range of addresses that is aligned to more than 2 MiB",
		[IN_PIECES] = "a range of addresses with several pieces of memory",
		[AT_TWO_ADDRESSES] = "a piece of memory that is mapped at two addresses",
		[EXCHANGED] = "a range of addresses whose memory is exchanged",
		[READ_ONLY] = "memory of the device that may only be read",
	};
	static _Atomic bool reported[sizeof what / sizeof *what];
	if (!atomic_exchange(&reported[which], true))
		log_message("%s is not supported by rankfold: allocate memory with cuMemAlloc (in "
			    "PyTorch, without expandable_segments)",
			    what[which]);
	return NOT_SUPPORTED;
}

/* All under VIRTUAL_LOCK. */
static struct range *range_at(uint64_t addr)
{
	struct range *r = ranges;
	while (r && addr - r->addr >= r->bytes)
		r = r->next;
	return r;
}

static struct piece *piece_of(CUmemGenericAllocationHandle handle)
{
	struct piece *p = pieces;
	while (p && (uint64_t)(uintptr_t)p != handle)
		p = p->next;
	return p;
}

static void piece_drop(struct piece *p)
{
	struct piece **at = &pieces;
	if (--p->references)
		return;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->at)
		p->at->holds = NULL;
	free(p);
}

static bool is_whole(uint64_t bytes) { return bytes && bytes % MULTIPLE == 0; }

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

/* At the beginning of a chunk: the driver's ranges are at multiples of its granularity. */
static int allocate(uint64_t bytes, uint64_t *base, uint64_t *addr)
{
	int error = memory_alloc_for(0, bytes, base);
	if (!error && *base % MULTIPLE) {
		allocation_free((void *)*base);
		error = memory_alloc_for(0, bytes + MULTIPLE, base);
	}
	*addr = (*base + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
	return error;
}

int virtual_reserve(uint64_t *out, uint64_t bytes, uint64_t alignment)
{
	if (!out || !is_whole(bytes) || (alignment & (alignment - 1)))
		return INVALID_VALUE;
	if (alignment > MULTIPLE)
		return not_supported(ALIGNED_FURTHER);
	struct range *r = calloc(1, sizeof *r);
	int error = r ? allocate(bytes, &r->base, &r->addr) : OUT_OF_MEMORY;
	if (error) {
		free(r);
		LOG_ONCE("reserving addresses takes device memory under rankfold, and there is not "
			 "enough of it: in PyTorch, do not use expandable_segments");
		return error;
	}
	r->bytes = bytes;
	lock(VIRTUAL_LOCK);
	r->next = ranges;
	ranges = r;
	unlock(VIRTUAL_LOCK);
	*out = r->addr;
	return CUDA_OK;
}

int virtual_free(uint64_t addr, uint64_t bytes)
{
	lock(VIRTUAL_LOCK);
	struct range **at = &ranges, *r;
	while (*at && (*at)->addr != addr)
		at = &(*at)->next;
	r = *at;
	bool good = r && r->bytes == bytes && !r->mapped;
	if (good) {
		*at = r->next;
		if (r->holds)
			r->holds->at = NULL;
	}
	unlock(VIRTUAL_LOCK);
	if (!good)
		return INVALID_VALUE;
	int error = allocation_free((void *)r->base);
	free(r);
	return error;
}

int virtual_create(CUmemGenericAllocationHandle *out, uint64_t bytes,
		   const CUmemAllocationProp *prop)
{
	uint64_t available, total;
	if (!out || !prop || !is_whole(bytes) || prop->type != PINNED)
		return INVALID_VALUE;
	int error = location_check(&prop->location);
	if (!error)
		error = memory_info(&available, &total);
	if (!error && bytes > total)
		error = OUT_OF_MEMORY;
	if (error)
		return error;
	struct piece *p = calloc(1, sizeof *p);
	if (!p)
		return OUT_OF_MEMORY;
	p->bytes = bytes;
	p->references = 1;
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
	lock(VIRTUAL_LOCK);
	struct piece *p = piece_of(handle);
	if (p)
		piece_drop(p);
	unlock(VIRTUAL_LOCK);
	return p ? CUDA_OK : INVALID_VALUE;
}

static int map_range(struct range *r, uint64_t addr, uint64_t bytes, struct piece *p)
{
	if (!r || !p || !is_whole(bytes) || addr % MULTIPLE || bytes > r->addr + r->bytes - addr ||
	    bytes > p->bytes || (r->mapped && r->bytes == bytes))
		return INVALID_VALUE;
	if (bytes != r->bytes || bytes != p->bytes)
		return not_supported(IN_PIECES);
	if (p->at && p->at != r)
		return not_supported(AT_TWO_ADDRESSES);
	if (r->holds && r->holds != p)
		return not_supported(EXCHANGED);
	r->holds = p;
	r->mapped = true;
	p->at = r;
	p->references++;
	return CUDA_OK;
}

int virtual_map(uint64_t addr, uint64_t bytes, uint64_t offset, CUmemGenericAllocationHandle handle)
{
	if (offset)
		return INVALID_VALUE;
	lock(VIRTUAL_LOCK);
	int error = map_range(range_at(addr), addr, bytes, piece_of(handle));
	unlock(VIRTUAL_LOCK);
	return error;
}

int virtual_unmap(uint64_t addr, uint64_t bytes)
{
	lock(VIRTUAL_LOCK);
	struct range *r = range_at(addr);
	bool good = r && r->mapped && r->addr == addr && r->bytes == bytes;
	if (good) {
		r->mapped = false;
		piece_drop(r->holds);
	}
	unlock(VIRTUAL_LOCK);
	return good ? CUDA_OK : INVALID_VALUE;
}

int virtual_set_access(uint64_t addr, uint64_t bytes, const cudaMemAccessDesc *list, size_t count)
{
	lock(VIRTUAL_LOCK);
	struct range *r = range_at(addr);
	bool mapped = r && r->mapped && bytes <= r->addr + r->bytes - addr;
	unlock(VIRTUAL_LOCK);
	int error = mapped && list && count ? CUDA_OK : INVALID_VALUE;
	for (size_t i = 0; !error && i < count; i++) {
		error = location_check(&list[i].location);
		if (!error && list[i].flags != READ_WRITE)
			error = not_supported(READ_ONLY);
	}
	return error;
}

int virtual_get_access(unsigned long long *flags, const cudaMemLocation *location, uint64_t addr)
{
	if (!flags || !location)
		return INVALID_VALUE;
	lock(VIRTUAL_LOCK);
	struct range *r = range_at(addr);
	bool mapped = r && r->mapped;
	unlock(VIRTUAL_LOCK);
	*flags = READ_WRITE;
	return mapped ? location_check(location) : INVALID_VALUE;
}

int virtual_retain(CUmemGenericAllocationHandle *out, const void *address)
{
	lock(VIRTUAL_LOCK);
	struct range *r = range_at((uint64_t)address);
	bool mapped = out && r && r->mapped;
	if (mapped) {
		r->holds->references++;
		*out = (uint64_t)(uintptr_t)r->holds;
	}
	unlock(VIRTUAL_LOCK);
	return mapped ? CUDA_OK : INVALID_VALUE;
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

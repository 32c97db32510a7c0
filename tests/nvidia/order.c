/* order.c: of the fake driver: the order of what processes do to memory that they share.
 *
 * A process has a lock (fcntl) on the bytes of such memory that its queued work touches. If another
 * process has one that excludes it, no one has ordered the two works, and that is noted as a fault.
 * The kernel takes back the locks of a process that is killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fake.h"

#define WORKS 4096

static struct access {
	const void *work; /* NULL: none */
	int file;
	uint64_t offset, bytes;
	bool write;
} accesses[WORKS];

static bool set_lock(const struct access *a, short type)
{
	struct flock lock = {.l_type = type,
			     .l_whence = SEEK_SET,
			     .l_start = (off_t)a->offset,
			     .l_len = (off_t)a->bytes};

	return fcntl(a->file, F_SETLK, &lock) == 0;
}

static bool meet(const struct access *a, const struct access *b)
{
	return a->file == b->file && a->offset < b->offset + b->bytes &&
	       b->offset < a->offset + a->bytes;
}

/* Gives the bytes of `like` the locks that all works of this process need, the writes last. */
static bool lock_again(const struct access *like)
{
	bool done = true;

	for (int write = 0; write < 2; write++)
		for (size_t i = 0; i < WORKS; i++)
			if (accesses[i].work && accesses[i].write == write &&
			    meet(&accesses[i], like))
				done &= set_lock(&accesses[i], write ? F_WRLCK : F_RDLCK);
	return done;
}

bool fake_order_begin(const void *work, CUdeviceptr at, uint64_t bytes, bool write)
{
	struct access a = {.work = work, .bytes = bytes, .write = write};
	size_t i = 0;

	a.file = bytes ? fake_shared_file(at, bytes, &a.offset) : -1;
	if (a.file < 0)
		return false;
	while (i < WORKS && accesses[i].work)
		i++;
	if (i == WORKS)
		return true;
	accesses[i] = a;
	if (!lock_again(&a))
		fake_fault("%s of %llu bytes at %llu of shared memory: a work of another process "
			   "is not over",
			   write ? "a write" : "a read", (unsigned long long)bytes,
			   (unsigned long long)a.offset);
	return true;
}

void fake_order_forget(void) { memset(accesses, 0, sizeof accesses); }

void fake_order_end(const void *work)
{
	for (size_t i = 0; i < WORKS; i++) {
		struct access a = accesses[i];

		if (a.work != work)
			continue;
		accesses[i].work = NULL;
		set_lock(&a, F_UNLCK);
		lock_again(&a);
	}
}

bool fake_order_touches(CUdeviceptr at, uint64_t bytes)
{
	struct access a = {.bytes = bytes};

	a.file = fake_shared_file(at, bytes, &a.offset);
	for (size_t i = 0; a.file >= 0 && i < WORKS; i++)
		if (accesses[i].work && meet(&accesses[i], &a))
			return true;
	return false;
}

/* channel.c: the memfd a rank shares with the product, and the way into it.
 *
 * Opened by the first call that needs the device, never by a constructor: this library is
 * loaded into every child of a job. The launcher is asked twice (who am I; here is my memfd) and
 * the connection closed; afterwards there is no descriptor of ours, only the mapping.
 *
 * Locks: opening_lock around the meeting with the launcher; ring_lock around the copy of a record.
 * What blocks: a full ring, a missing bulk or reply slot, a reply. All are futex loops that check
 * again, without deadline, so that a rank may stand still for as long as its server is away.
 * After fork the child's mapping is gone and every call says "not initialised".
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client.h"
#include "doorbell.h"
#include "spin.h"

#define AHEAD 2048     /* bytes of the ring: some records */
#define SPINS 300      /* a few microseconds of pauses, most replies come then */
#define SPIN_NS 50000u /* then it gives way at each look, before it sleeps */

struct rf_header *channel_header;

static uint8_t *map; /* [0, RF_OFF_PINNED) of the memfd */
static struct rf_welcome welcome;
static _Atomic int bound_device = -1; /* the virtual device this process uses */
_Thread_local bool in_host_function;
static _Atomic bool welcomed, ready, forked;
static int refusal; /* error of a launcher that said no; final */
static int spins;
pthread_mutex_t opening_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t ring_head; /* under ring_lock: bytes produced, records numbered */
static uint64_t ring_seq;
static uint64_t ring_tail; /* as it was when we looked last: no later than it is */
static _Atomic uint64_t slots_busy;
static _Atomic uint32_t slots_bell; /* a reply slot was let go */
static _Atomic uint32_t slots_waiters;

/* ---- the meeting with the launcher ---- */

static int refused(int error)
{
	refusal = error;
	return error;
}

static int connect_launcher(void)
{
	const char *path = getenv(RF_ENV_LAUNCHER);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (!path || !*path) {
		SAY_ONCE(
			"no device: this program was not started by rankfold (%s is not set); start "
			"it with `rankfold run`",
			RF_ENV_LAUNCHER);
		return -1;
	}
	if (strlen(path) >= sizeof address.sun_path) {
		SAY_ONCE("no device: the launcher's socket has too long a path: %s", path);
		return -1;
	}
	strcpy(address.sun_path, path);
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock >= 0 && connect(sock, (struct sockaddr *)&address, sizeof address)) {
		SAY_ONCE("no device: the launcher does not answer at %s: %s", path,
			 strerror(errno));
		close(sock);
		return -1;
	}
	return sock;
}

static bool send_hello(int sock, uint32_t pid, int memfd)
{
	struct rf_hello hello = {RF_MAGIC, RF_MAJOR, RF_MINOR, pid, 0};
	struct iovec part = {&hello, sizeof hello};
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (memfd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof control.space;
		struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof memfd);
		memcpy(CMSG_DATA(rights), &memfd, sizeof memfd);
	}
	ssize_t sent;
	do
		sent = sendmsg(sock, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)sizeof hello;
}

static bool receive_welcome(int sock, struct rf_welcome *out)
{
	size_t have = 0;
	while (have < sizeof *out) {
		ssize_t got = recv(sock, (char *)out + have, sizeof *out - have, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		have += (size_t)got;
	}
	out->message[sizeof out->message - 1] = 0;
	out->device.name[sizeof out->device.name - 1] = 0;
	return out->magic == RF_MAGIC;
}

/* One question and its answer: 0, or why there is no device. */
static int ask(int sock, uint32_t pid, int memfd, struct rf_welcome *out)
{
	if (!send_hello(sock, pid, memfd) || !receive_welcome(sock, out)) {
		say("no device: the launcher closed the connection");
		return NO_DEVICE;
	}
	if (out->error) {
		say("no device: %s", out->message);
		return NO_DEVICE;
	}
	return CUDA_OK;
}

/* Under `opening_lock`. */
static int get_welcome(void)
{
	if (refusal || atomic_load(&welcomed))
		return refusal;
	int sock = connect_launcher();
	if (sock < 0)
		return refused(NO_DEVICE);
	int error = ask(sock, 0, -1, &welcome);
	close(sock);
	if (error)
		return refused(error);
	atomic_store_explicit(&welcomed, true, memory_order_release);
	return CUDA_OK;
}

/* ---- the memfd ---- */

static int create_memfd(void)
{
	int fd = memfd_create("rankfold", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)RF_MEMFD_BYTES) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool map_memfd(int fd)
{
	void *pinned = (void *)RF_PINNED_BASE(welcome.rank);
	map = mmap(NULL, RF_OFF_PINNED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (map == MAP_FAILED)
		return false;
	void *got = mmap(pinned, RF_PINNED_SLOT_BYTES, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd,
			 (off_t)RF_OFF_PINNED);
	if (got != pinned) {
		if (got != MAP_FAILED)
			munmap(got, RF_PINNED_SLOT_BYTES);
		return false;
	}
	madvise(map, RF_OFF_PINNED, MADV_DONTFORK);
	madvise(pinned, RF_PINNED_SLOT_BYTES, MADV_DONTFORK);
	return true;
}

static void write_header(void)
{
	struct rf_header *header = (struct rf_header *)(void *)map;
	header->major = RF_MAJOR;
	header->minor = RF_MINOR;
	header->memfd_bytes = RF_MEMFD_BYTES;
	header->pid = (uint32_t)getpid();
	header->rank = welcome.rank;
	header->world_size = welcome.world_size;
	header->magic = RF_MAGIC;
}

/* Only a child whose parent used the device is cut off; one forked earlier may open its own. */
void channel_forked(void)
{
	if (atomic_load(&ready))
		atomic_store(&forked, true);
}

static int hand_over(void)
{
	int fd = create_memfd();
	if (fd < 0 || !map_memfd(fd)) {
		say("no device: cannot make the shared memory of this rank: %s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return NO_DEVICE;
	}
	write_header();
	int sock = connect_launcher();
	struct rf_welcome again;
	int error = sock < 0 ? NO_DEVICE : ask(sock, (uint32_t)getpid(), fd, &again);
	if (sock >= 0)
		close(sock);
	close(fd);
	return error;
}

/* Under `opening_lock`. */
static int open_locked(void)
{
	if (atomic_load(&ready))
		return CUDA_OK;
	int error = get_welcome();
	if (error)
		return error;
	error = hand_over();
	if (error)
		return refused(error);
	spins = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? SPINS : 0;
	channel_header = (struct rf_header *)(void *)map;
	atomic_store_explicit(&ready, true, memory_order_release);
	return CUDA_OK;
}

static int not_after_fork(void)
{
	SAY_ONCE("a child made by fork cannot use the device its parent uses (CUDA says "
		 "\"initialization error\"): use the spawn start method, or exec");
	return NOT_INITIALIZED;
}

/* It would wait for itself: the stream goes on when the function returns. */
static int not_in_host_function(void)
{
	SAY_ONCE(
		"a host function (cudaLaunchHostFunc, cudaStreamAddCallback) calls CUDA, which CUDA "
		"does not allow: let it tell a thread of yours, which calls");
	return NOT_PERMITTED;
}

int channel_welcome(const struct rf_welcome **out)
{
	*out = &welcome;
	if (atomic_load_explicit(&forked, memory_order_relaxed))
		return not_after_fork();
	if (atomic_load_explicit(&welcomed, memory_order_acquire))
		return CUDA_OK;
	int kept = errno;
	pthread_mutex_lock(&opening_lock);
	int error = get_welcome();
	pthread_mutex_unlock(&opening_lock);
	errno = kept;
	return error;
}

int channel_open(void)
{
	if (atomic_load_explicit(&forked, memory_order_relaxed))
		return not_after_fork();
	if (in_host_function)
		return not_in_host_function();
	if (!atomic_load_explicit(&ready, memory_order_acquire)) {
		int kept = errno;
		pthread_mutex_lock(&opening_lock);
		int error = open_locked();
		pthread_mutex_unlock(&opening_lock);
		errno = kept;
		if (error)
			return error;
	}
	return CUDA_OK;
}

int channel_enter(void)
{
	int error = channel_open();
	if (error)
		return error;
	if (atomic_load_explicit(&channel_header->async_error, memory_order_relaxed))
		return sticky_error();
	return CUDA_OK;
}

int channel_device(void)
{
	bool mine = !atomic_load_explicit(&forked, memory_order_relaxed);
	return mine ? atomic_load_explicit(&bound_device, memory_order_relaxed) : -1;
}

int channel_use_device(void)
{
	int error = channel_enter();
	int bound = atomic_load_explicit(&bound_device, memory_order_relaxed);
	if (error || bound == current_device || (bound >= 0 && !context_current()))
		return error; /* without a context it is a stream that is used, and its device */
	if (bound < 0 && atomic_compare_exchange_strong(&bound_device, &bound, current_device))
		return CUDA_OK;
	if (bound == current_device)
		return CUDA_OK;
	SAY_ONCE(
		"rank %u uses device %d already and cannot use device %d too: a rank has one device; "
		"start as many ranks as there are devices",
		welcome.rank, bound, current_device);
	return NOT_SUPPORTED;
}

/* ---- the ring ---- */

/* Under ring_lock: until `bytes` are free. Our own place is ahead of what the server sees. */
static void wait_for_room(uint64_t bytes)
{
	struct rf_header *h = channel_header;
	while (ring_head + bytes - ring_tail > RF_RING_BYTES) {
		ring_tail = atomic_load_explicit(&h->tail, memory_order_acquire);
		if (ring_head + bytes - ring_tail <= RF_RING_BYTES)
			return;
		uint32_t seen = doorbell_seen(&h->space_seq);
		doorbell_enter(&h->space_waiters);
		if (ring_head + bytes - atomic_load(&h->tail) > RF_RING_BYTES)
			doorbell_sleep(&h->space_seq, seen);
		doorbell_leave(&h->space_waiters);
	}
}

void channel_wake(void)
{
	doorbell_ring(&channel_header->doorbell, &channel_header->server_sleeping);
}

static void publish(void)
{
	atomic_store_explicit(&channel_header->head, ring_head, memory_order_release);
	channel_wake();
}

/* What lies ahead is in the server's cache since it read it: have as much brought here, writable,
 * as was just written, early enough for the records that come there. Without it each record
 * waits for its lines (150 ns and more). */
static void fetch_ahead(const uint8_t *ring, uint64_t bytes)
{
	for (uint64_t line = 0; line < bytes && line < AHEAD; line += 64) {
		const uint8_t *at = ring + (ring_head + AHEAD + line) % RF_RING_BYTES;
#if defined(__x86_64__)
		__asm__ volatile("prefetchw %0" : : "m"(*at)); /* a builtin needs -mprfchw */
#else
		__builtin_prefetch(at, 1);
#endif
	}
}

/* Under ring_lock: what a record takes of the ring, with what has to be skipped before it. */
static uint64_t taken_by(size_t bytes)
{
	uint64_t whole = (bytes + RF_RECORD_ALIGN - 1) & ~(uint64_t)(RF_RECORD_ALIGN - 1);
	uint64_t left = RF_RING_BYTES - ring_head % RF_RING_BYTES;
	return left < whole ? left + whole : whole;
}

/* Under ring_lock: one record, whole and published. */
static void put(struct rf_record *record, size_t bytes, const void *tail, size_t tail_bytes)
{
	uint8_t *ring = map + RF_OFF_RING;
	uint64_t whole = (bytes + tail_bytes + RF_RECORD_ALIGN - 1) &
			 ~(uint64_t)(RF_RECORD_ALIGN - 1);
	uint64_t left = RF_RING_BYTES - ring_head % RF_RING_BYTES;
	if (left < whole) {
		wait_for_room(left);
		struct rf_record pad = {(uint32_t)left, RF_OP_PAD, 0, 0};
		memcpy(ring + ring_head % RF_RING_BYTES, &pad, sizeof pad);
		ring_head += left;
		publish();
	}
	wait_for_room(whole);
	record->bytes = (uint32_t)whole;
	record->seq = ++ring_seq;
	uint8_t *at = ring + ring_head % RF_RING_BYTES;
	memcpy(at, record, bytes);
	if (tail_bytes)
		memcpy(at + bytes, tail, tail_bytes);
	ring_head += whole;
	publish();
	fetch_ahead(ring, whole);
}

static uint64_t post(struct rf_record *record, enum rf_opcode opcode, uint16_t slot, size_t bytes,
		     const void *tail, size_t tail_bytes)
{
	record->opcode = (uint16_t)opcode;
	record->slot = slot;
	pthread_mutex_lock(&ring_lock);
	put(record, bytes, tail, tail_bytes);
	uint64_t seq = record->seq;
	pthread_mutex_unlock(&ring_lock);
	return seq;
}

uint64_t channel_post(struct rf_record *record, enum rf_opcode opcode, size_t bytes,
		      const void *tail, size_t tail_bytes)
{
	return post(record, opcode, 0, bytes, tail, tail_bytes);
}

uint64_t channel_try_post(struct rf_record *record, enum rf_opcode opcode, size_t bytes)
{
	uint64_t seq = 0;
	if (pthread_mutex_trylock(&ring_lock))
		return 0; /* who has it may wait for room */
	ring_tail = atomic_load_explicit(&channel_header->tail, memory_order_acquire);
	if (ring_head + taken_by(bytes) - ring_tail <= RF_RING_BYTES) {
		record->opcode = (uint16_t)opcode;
		record->slot = 0;
		put(record, bytes, NULL, 0);
		seq = record->seq;
	}
	pthread_mutex_unlock(&ring_lock);
	return seq;
}

void channel_wait_room(size_t bytes)
{
	pthread_mutex_lock(&ring_lock);
	wait_for_room(taken_by(bytes));
	pthread_mutex_unlock(&ring_lock);
}

void channel_post_group(struct rf_collective *records, uint32_t count)
{
	pthread_mutex_lock(&ring_lock);
	for (uint32_t i = 0; i < count; i++) {
		records[i].group_left = count - 1 - i;
		records[i].r.opcode = RF_OP_COLLECTIVE;
		records[i].r.slot = 0;
		put(&records[i].r, sizeof records[i], NULL, 0);
	}
	pthread_mutex_unlock(&ring_lock);
}

/* ---- reply slots ---- */

static struct rf_slot *slot_at(uint32_t index)
{
	return (struct rf_slot *)(void *)(map + RF_OFF_SLOTS + (uint64_t)index * RF_SLOT_BYTES);
}

/* The lowest clear bit of a 64-bit word, set by us; 64 if none is clear. */
static uint32_t claim_bit(_Atomic uint64_t *word)
{
	uint64_t busy = atomic_load(word);
	while (~busy) {
		uint32_t bit = (uint32_t)__builtin_ctzll(~busy);
		if (atomic_compare_exchange_weak(word, &busy, busy | 1ull << bit))
			return bit;
	}
	return 64;
}

static uint32_t slot_claim(void)
{
	_Static_assert(RF_SLOT_COUNT == 64 && RF_BULK_COUNT == 64, "one bit each");
	for (;;) {
		uint32_t seen = doorbell_seen(&slots_bell);
		uint32_t index = claim_bit(&slots_busy);
		if (index < RF_SLOT_COUNT)
			return index;
		doorbell_enter(&slots_waiters);
		if (!~atomic_load(&slots_busy))
			doorbell_sleep(&slots_bell, seen);
		doorbell_leave(&slots_waiters);
	}
}

uint32_t channel_begin(struct rf_record *record, enum rf_opcode opcode, size_t bytes,
		       const void *tail, size_t tail_bytes)
{
	uint32_t index = slot_claim();
	struct rf_slot *slot = slot_at(index);
	/* Released by the ring's head. */
	atomic_store_explicit(&slot->state, RF_SLOT_WAITING, memory_order_relaxed);
	post(record, opcode, (uint16_t)(index + 1), bytes, tail, tail_bytes);
	return index;
}

int channel_finish(uint32_t index, void *reply, size_t reply_bytes)
{
	struct rf_slot *slot = slot_at(index);
	for (int n = 0; n < spins && !slot_answered(slot); n++)
		spin_relax();
	struct spin spin = {0};
	while (!slot_answered(slot) && spin_on(&spin, SPIN_NS))
		(void)sched_yield();
	slot_await(slot);
	int error = slot->error;
	if (reply)
		memcpy(reply, slot->data, reply_bytes);
	atomic_store_explicit(&slot->state, RF_SLOT_FREE, memory_order_relaxed);
	atomic_fetch_and(&slots_busy, ~(1ull << index));
	doorbell_ring(&slots_bell, &slots_waiters);
	return error;
}

int channel_call(struct rf_record *record, enum rf_opcode opcode, size_t bytes, const void *tail,
		 size_t tail_bytes, void *reply, size_t reply_bytes)
{
	int error = channel_finish(channel_begin(record, opcode, bytes, tail, tail_bytes), reply,
				   reply_bytes);
	bool sync = opcode == RF_OP_STREAM_SYNC || opcode == RF_OP_DEVICE_SYNC ||
		    opcode == RF_OP_EVENT_SYNC;
	if (sync)
		pool_synchronised();
	if (sync || opcode == RF_OP_COPY)
		print_kernels_output();
	if (error)
		(void)sticky_error(); /* says what it is about */
	return error;
}

/* ---- bulk slots ---- */

uint32_t bulk_claim(bool wait)
{
	struct rf_header *h = channel_header;
	for (;;) {
		uint32_t seen = doorbell_seen(&h->bulk_seq);
		uint32_t index = claim_bit(&h->bulk_busy);
		if (index < RF_BULK_COUNT)
			return index;
		if (!wait)
			return BULK_NONE;
		doorbell_enter(&h->bulk_waiters);
		if (!~atomic_load(&h->bulk_busy))
			doorbell_sleep(&h->bulk_seq, seen);
		doorbell_leave(&h->bulk_waiters);
	}
}

uint8_t *bulk_data(uint32_t slot) { return map + RF_OFF_BULK + (uint64_t)slot * RF_BULK_BYTES; }

/* A slot that brought data here: the server does not let it go, we do. */
void bulk_release(uint32_t slot)
{
	struct rf_header *h = channel_header;
	atomic_fetch_and(&h->bulk_busy, ~(1ull << slot));
	doorbell_ring(&h->bulk_seq, &h->bulk_waiters);
}

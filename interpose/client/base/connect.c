/* connect.c: creates the memfd that a rank shares with its server, and connects the two.
 *
 * The first call that needs the device opens the channel, never a constructor: this library is
 * loaded into every child of a job. The client sends the launcher two messages (a request for its
 * identity; the memfd) and closes the connection. Afterwards it has no descriptor, only the
 * mapping. After fork the child lacks the mapping, and every call returns "not initialised".
 *
 * Lock: OPENING_LOCK, around the hand-over. Blocks until the launcher answers.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base.h"

#define OTHER_USER                                                                                 \
	" (this process has become another user, for whom rankfold opens its socket only where "   \
	"it may make namespaces: make the first CUDA call before that, or give rankfold "          \
	"CAP_SYS_ADMIN)"
#define ANSWER_S 5 /* without an answer of the launcher, before it is reported */
#define SPINS 300  /* a few microseconds of pauses; most replies arrive in that time */

struct rf_header *channel_header;
int channel_spins;
_Thread_local bool in_host_function;

static struct rf_welcome welcome;
static _Atomic bool welcomed, ready, forked;
static int refusal; /* error after a launcher's refusal; final */

static int keep_refusal(int error)
{
	refusal = error;
	return error;
}

static void limit_wait(int sock, int which)
{
	struct timeval late = {.tv_sec = ANSWER_S};
	setsockopt(sock, SOL_SOCKET, which, &late, sizeof late);
}

/* After a call that the launcher has to answer has failed: true if it is to be repeated. A stopped
 * launcher is reported, and waited for; if the launcher exits, the call fails in another way. */
static bool must_wait(void)
{
	if (errno == EAGAIN)
		LOG_ONCE("the rank's launcher is unresponsive: no answer for %d s; it is stopped "
			 "or stuck; waiting",
			 ANSWER_S);
	return errno == EAGAIN || errno == EINTR;
}

/* Blocks while the launcher's queue of connections is full. */
static bool connect_socket(int sock, const struct sockaddr_un *address)
{
	int failed;
	limit_wait(sock, SO_SNDTIMEO);
	do
		failed = connect(sock, (const struct sockaddr *)address, sizeof *address);
	while (failed && must_wait());
	return !failed;
}

static int connect_launcher(void)
{
	const char *path = inside_environment(RF_ENV_LAUNCHER);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (!path || !*path) {
		LOG_ONCE(
			"no device: this program was not started by rankfold (%s is not set); start "
			"it with `rankfold run`",
			RF_ENV_LAUNCHER);
		return -1;
	}
	if (strlen(path) >= sizeof address.sun_path) {
		LOG_ONCE("no device: the launcher's socket has a path that is too long: %s", path);
		return -1;
	}
	strcpy(address.sun_path, path);
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock >= 0 && !connect_socket(sock, &address)) {
		LOG_ONCE("no device: the launcher is unresponsive at %s: %s%s", path,
			 strerror(errno), errno == EACCES ? OTHER_USER : "");
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

/* False if the launcher exits, which closes the connection. */
static bool receive_welcome(int sock, struct rf_welcome *out)
{
	size_t have = 0;
	limit_wait(sock, SO_RCVTIMEO);
	while (have < sizeof *out) {
		ssize_t got = recv(sock, (char *)out + have, sizeof *out - have, 0);
		if (got < 0 && must_wait())
			continue;
		if (got <= 0)
			return false;
		have += (size_t)got;
	}
	out->message[sizeof out->message - 1] = 0;
	out->device.name[sizeof out->device.name - 1] = 0;
	return out->magic == RF_MAGIC;
}

/* One request and its reply: 0, or the reason why there is no device. */
static int request_welcome(int sock, uint32_t pid, int memfd, struct rf_welcome *out)
{
	if (!send_hello(sock, pid, memfd) || !receive_welcome(sock, out)) {
		log_message("no device: the launcher closed the connection");
		return NO_DEVICE;
	}
	if (out->error) {
		log_message("no device: %s", out->message);
		return NO_DEVICE;
	}
	return CUDA_OK;
}

/* Under OPENING_LOCK. */
static int get_welcome(void)
{
	if (refusal || atomic_load(&welcomed))
		return refusal;
	int sock = connect_launcher();
	if (sock < 0)
		return keep_refusal(NO_DEVICE);
	int error = request_welcome(sock, 0, -1, &welcome);
	close(sock);
	if (error)
		return keep_refusal(error);
	atomic_store_explicit(&welcomed, true, memory_order_release);
	return CUDA_OK;
}

/* ---- the memfd ---- */

/* True if the limit is below `bytes`. A signal ends a process that makes a larger file. */
static bool limit_below(int limit, uint64_t bytes)
{
	struct rlimit found;
	return !getrlimit(limit, &found) && found.rlim_cur < bytes;
}

static int create_memfd(void)
{
	if (limit_below(RLIMIT_FSIZE, RF_MEMFD_BYTES)) {
		errno = EFBIG;
		return -1;
	}
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

/* Maps the part before the pinned arena, and the arena; NULL: one of them cannot be mapped. */
static void *map_memfd(int fd)
{
	void *pinned = (void *)RF_PINNED_BASE(welcome.rank);
	void *map = mmap(NULL, RF_OFF_PINNED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			 fd, 0);
	if (map == MAP_FAILED)
		return NULL;
	/* Not libc's mmap: the thread sanitizer's version reserves these addresses and ends the
	 * program. */
	void *got = (void *)syscall(SYS_mmap, pinned, RF_PINNED_SLOT_BYTES, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd,
				    (off_t)RF_OFF_PINNED);
	if (got != pinned) {
		if (got != MAP_FAILED)
			munmap(got, RF_PINNED_SLOT_BYTES);
		return NULL;
	}
	madvise(map, RF_OFF_PINNED, MADV_DONTFORK);
	madvise(pinned, RF_PINNED_SLOT_BYTES, MADV_DONTFORK);
	return map;
}

static void write_header(struct rf_header *header)
{
	header->major = RF_MAJOR;
	header->minor = RF_MINOR;
	header->memfd_bytes = RF_MEMFD_BYTES;
	header->pid = (uint32_t)getpid();
	header->rank = welcome.rank;
	header->world_size = welcome.world_size;
	header->magic = RF_MAGIC;
}

/* Cuts off only a child whose parent used the device; a child forked earlier may open its own. */
static void in_child(void)
{
	if (atomic_load(&ready))
		atomic_store(&forked, true);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

bool channel_forked(void) { return atomic_load_explicit(&forked, memory_order_relaxed); }

static int hand_over(struct rf_header **header)
{
	int fd = create_memfd();
	*header = fd < 0 ? NULL : map_memfd(fd);
	if (!*header) {
		int why = errno;
		log_message("no device: cannot make the shared memory of this rank: %s%s",
			    strerror(why),
			    why == EFBIG    ? " (raise ulimit -f)"
			    : why == EEXIST ? " (its addresses are taken, as by -fsanitize=thread)"
			    : limit_below(RLIMIT_AS, RLIM_INFINITY) ? " (raise ulimit -v)"
								    : "");
		if (fd >= 0)
			close(fd);
		return NO_DEVICE;
	}
	write_header(*header);
	int sock = connect_launcher();
	struct rf_welcome again;
	int error = sock < 0 ? NO_DEVICE : request_welcome(sock, (uint32_t)getpid(), fd, &again);
	if (sock >= 0)
		close(sock);
	close(fd);
	return error;
}

/* Under OPENING_LOCK. */
static int open_locked(void)
{
	struct rf_header *header;
	if (atomic_load(&ready))
		return CUDA_OK;
	int error = get_welcome();
	if (error)
		return error;
	error = hand_over(&header);
	if (error)
		return keep_refusal(error);
	channel_spins = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? SPINS : 0;
	channel_header = header;
	atomic_store_explicit(&ready, true, memory_order_release);
	return CUDA_OK;
}

static int not_after_fork(void)
{
	LOG_ONCE("a child made by fork cannot use the device its parent uses (CUDA says "
		 "\"initialization error\"): use the spawn start method, or exec");
	return NOT_INITIALIZED;
}

/* It would wait for itself: the stream continues only when the function returns. */
static int not_in_host_function(void)
{
	LOG_ONCE("a host function (cudaLaunchHostFunc, cudaStreamAddCallback) calls CUDA, which "
		 "CUDA does not allow: let it notify another thread, which makes the call");
	return NOT_PERMITTED;
}

int channel_welcome(const struct rf_welcome **out)
{
	*out = &welcome;
	if (atomic_load_explicit(&forked, memory_order_relaxed))
		return not_after_fork();
	if (atomic_load_explicit(&welcomed, memory_order_acquire))
		return CUDA_OK;
	int saved_errno = errno;
	lock(OPENING_LOCK);
	int error = get_welcome();
	unlock(OPENING_LOCK);
	errno = saved_errno;
	return error;
}

int channel_open(void)
{
	if (atomic_load_explicit(&forked, memory_order_relaxed))
		return not_after_fork();
	if (in_host_function)
		return not_in_host_function();
	if (!atomic_load_explicit(&ready, memory_order_acquire)) {
		int saved_errno = errno;
		lock(OPENING_LOCK);
		int error = open_locked();
		unlock(OPENING_LOCK);
		errno = saved_errno;
		if (error)
			return error;
	}
	return CUDA_OK;
}

void channel_fault(char text[RF_FAULT_TEXT_BYTES])
{
	const struct rf_header *h = channel_header;

	snprintf(text, RF_FAULT_TEXT_BYTES, "%.*s%.*s", (int)sizeof h->fault - 1, h->fault,
		 (int)sizeof h->fault_rest - 1, h->fault_rest);
}

static void log_fault_once(int error)
{
	static _Atomic bool logged;
	char text[RF_FAULT_TEXT_BYTES];

	if (atomic_exchange(&logged, true))
		return;
	channel_fault(text);
	log_message("%s; this and all later calls fail (%s)", text, error_name(error));
}

/* Errors of a context that is beyond repair are returned until the process ends. */
int sticky_error(void)
{
	int error = CUDA_OK;

	if (channel_header && !channel_forked()) /* a forked child has no mapping */
		error = (int)atomic_load_explicit(&channel_header->async_error,
						  memory_order_acquire);
	if (error)
		log_fault_once(error);
	return error;
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

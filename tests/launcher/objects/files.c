/* files.c: open files, locks, memfds, and what System V and POSIX share by name. */
#include <dirent.h>
#include <mqueue.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "objects.h"

static int new_file(const char *name, const char *text)
{
	int fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0640);
	need(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), name);
	return fd;
}

static int position, same, path_only, folder, appended;
static void make_opened(void)
{
	position = new_file("opened", "0123456789");
	lseek(position, 4, SEEK_SET);
	same = dup(position);
	path_only = open("opened", O_PATH);
	folder = open(".", O_RDONLY | O_DIRECTORY);
	appended = open("opened", O_WRONLY | O_APPEND);
}
static void use_opened(void)
{
	char got[4] = "";
	need(read(same, got, 3) == 3, "read");
	say("%s, at %ld", got, (long)lseek(position, 0, SEEK_CUR));
	say("path %x, folder %d", fcntl(path_only, F_GETFL) & O_PATH,
	    faccessat(folder, "opened", R_OK, 0));
	say("flags %x %x %x", fcntl(position, F_GETFD), fcntl(same, F_GETFD),
	    fcntl(appended, F_GETFL) & O_APPEND);
}

static int deleted, unnamed;
static void make_deleted(void)
{
	deleted = new_file("deleted", "deleted");
	unlink("deleted");
	unnamed = open(".", O_TMPFILE | O_RDWR, 0600);
	need(unnamed >= 0 && write(unnamed, "unnamed", 7) == 7, "O_TMPFILE");
}
static void use_deleted(void)
{
	char got[8] = "";
	need(pread(deleted, got, 7, 0) == 7, "pread");
	say("%s", got);
	need(pread(unnamed, got, 7, 0) == 7, "pread");
	say("%s", got);
}

/* ---- locks: another process says whether it could have them ---- */

static const char *other_says(const char *name, int (*try)(int))
{
	pid_t other = fork();
	if (other == 0) {
		int fd = open(name, O_RDWR | O_NONBLOCK);
		_exit(fd < 0 || try(fd) != 0);
	}
	int status = -1;
	waitpid(other, &status, 0);
	return status == 0 ? "free" : "locked";
}
static int try_flock(int fd) { return flock(fd, LOCK_EX | LOCK_NB); }
static int try_posix(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = 5, .l_len = 1};
	return fcntl(fd, F_SETLK, &lock);
}
static int try_nothing(int fd) { return fd < 0; }

static int flocked;
static void make_flock(void)
{
	flocked = new_file("flock", "x");
	need(flock(flocked, LOCK_SH) == 0, "flock");
}
static void use_flock(void)
{
	say("%s", other_says("flock", try_flock));
	flock(flocked, LOCK_UN);
	say("%s", other_says("flock", try_flock));
}
static void make_posix_lock(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = 2, .l_len = 10};
	int fd = new_file("posix", "0123456789abcdef");
	need(fcntl(fd, F_SETLK, &lock) == 0, "F_SETLK");
}
static void use_posix_lock(void) { say("%s", other_says("posix", try_posix)); }
static void make_ofd_lock(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = 2, .l_len = 10};
	int fd = new_file("ofd", "0123456789abcdef");
	need(fcntl(fd, F_OFD_SETLK, &lock) == 0, "F_OFD_SETLK");
}
static void use_ofd_lock(void) { say("%s", other_says("ofd", try_posix)); }
static int leased;
static void make_lease(void)
{
	signal(SIGIO, SIG_IGN);
	close(new_file("leased", "x"));
	leased = open("leased", O_RDONLY);
	need(fcntl(leased, F_SETLEASE, F_RDLCK) == 0, "F_SETLEASE");
}
static void use_lease(void)
{
	say("%d", fcntl(leased, F_GETLEASE));
	say("%s", other_says("leased", try_nothing));
}

/* ---- memfds ---- */

static int sealed;
static char *mapped;
static void make_memfd(void)
{
	sealed = memfd_create("named so", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	need(ftruncate(sealed, 1 << 20) == 0 && pwrite(sealed, "content", 7, 70000) == 7, "memfd");
	mapped = mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, sealed, 0);
	need(mapped != MAP_FAILED, "mmap");
	need(fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE) == 0, "F_ADD_SEALS");
}
static void use_memfd(void)
{
	char link[64] = "", path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", sealed);
	need(readlink(path, link, sizeof link - 1) > 0, "readlink");
	say("%s, seals %x, '%s'", link, fcntl(sealed, F_GET_SEALS), mapped + 70000);
	say("write %zd", pwrite(sealed, "x", 1, 0));
	struct stat about;
	fstat(sealed, &about);
	say("size %ld, holes %d", (long)about.st_size, about.st_blocks < 100);
}

/* ---- System V and POSIX ---- */

static int memory_id, semaphores, queue;
static char *attached, *removed;
static void make_system_v(void)
{
	memory_id = shmget(0x4711, 8192, IPC_CREAT | 0640);
	attached = shmat(memory_id, NULL, 0);
	strcpy(attached, "shared");
	int gone = shmget(IPC_PRIVATE, 4096, 0600);
	removed = shmat(gone, NULL, 0);
	strcpy(removed, "removed");
	shmctl(gone, IPC_RMID, NULL);
	semaphores = semget(0x4712, 3, IPC_CREAT | 0600);
	unsigned short values[] = {1, 22, 333};
	need(semctl(semaphores, 0, SETALL, values) == 0, "semctl");
	queue = msgget(0x4713, IPC_CREAT | 0600);
	struct {
		long type;
		char text[8];
	} message = {9, "message"};
	need(msgsnd(queue, &message, sizeof message.text, 0) == 0, "msgsnd");
}
static void use_system_v(void)
{
	struct shmid_ds about;
	need(shmctl(memory_id, IPC_STAT, &about) == 0, "shmctl");
	say("%s of %ld, %o, %s;", attached, (long)about.shm_nattch, about.shm_perm.mode & 0777,
	    removed);
	unsigned short values[3] = {0};
	semctl(semaphores, 0, GETALL, values);
	say("%d %d %d;", values[0], values[1], values[2]);
	struct {
		long type;
		char text[8];
	} message = {0};
	ssize_t got = msgrcv(queue, &message, sizeof message.text, 0, IPC_NOWAIT);
	say("%zd %ld %s", got, message.type, message.text);
}

static mqd_t messages;
static void make_queue(void)
{
	struct mq_attr about = {.mq_maxmsg = 4, .mq_msgsize = 32};
	messages = mq_open("/objects", O_CREAT | O_RDWR | O_NONBLOCK, 0600, &about);
	if (messages < 0)
		lack();
	need(mq_send(messages, "queued", 6, 3) == 0, "mq_send");
}
static void use_queue(void)
{
	char got[32] = "";
	unsigned priority = 0;
	ssize_t size = mq_receive(messages, got, sizeof got, &priority);
	say("%zd %s %u", size, got, priority);
	mq_unlink("/objects");
}

static void make_unopened_queue(void)
{
	make_queue();
	mq_close(messages);
}
static void use_unopened_queue(void)
{
	messages = mq_open("/objects", O_RDWR | O_NONBLOCK);
	use_queue();
}

const struct object files[] = {
	{"opened", make_opened, use_opened},
	{"deleted", make_deleted, use_deleted},
	{"flock", make_flock, use_flock},
	{"posix_lock", make_posix_lock, use_posix_lock},
	{"ofd_lock", make_ofd_lock, use_ofd_lock},
	{"lease", make_lease, use_lease},
	{"memfd", make_memfd, use_memfd},
	{"system_v", make_system_v, use_system_v},
	{"queue", make_queue, use_queue},
	{"unopened_queue", make_unopened_queue, use_unopened_queue},
	{0},
};

// A static program without a library's help for files: each step is a system call of its own.
// Says "ready" when it has written, and changes all of it when it receives "on".

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void put(const char *path, const char *text, unsigned long length)
{
	long fd = syscall(SYS_open, path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	syscall(SYS_write, fd, text, length);
	syscall(SYS_close, fd);
}

static void await(const char *path)
{
	while (syscall(SYS_access, path, F_OK) != 0) {
		usleep(1000);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3 || chdir(argv[2]) != 0) {
		return 1;
	}
	char path[4096];
	put("written", "first", 5);
	syscall(SYS_mkdirat, AT_FDCWD, "made", 0750);
	put("made/inside", "inside", 6);
	syscall(SYS_renameat2, AT_FDCWD, "made/inside", AT_FDCWD, "made/renamed", 0);
	syscall(SYS_linkat, AT_FDCWD, "written", AT_FDCWD, "again", 0);
	long fd = syscall(SYS_open, "mapped", O_RDWR | O_CREAT, 0600);
	syscall(SYS_ftruncate, fd, 4096);
	char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
	syscall(SYS_close, fd);
	memory[0] = 'a';
	snprintf(path, sizeof path, "%s/ready", argv[1]);
	put(path, "x", 1);
	snprintf(path, sizeof path, "%s/on", argv[1]);
	await(path);
	memory[0] = 'b';
	syscall(SYS_unlink, "made/renamed");
	syscall(SYS_rmdir, "made");
	syscall(SYS_truncate, "written", 2);
	put("later", "later", 5);
	snprintf(path, sizeof path, "%s/changed", argv[1]);
	put(path, "x", 1);
	snprintf(path, sizeof path, "%s/go", argv[1]);
	await(path);
	printf("%c\n", memory[0]);
	return 0;
}

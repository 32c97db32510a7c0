/* libraries.c: finds NVIDIA's libraries, other than the driver.
 *
 * A library has one of its SONAMEs of libraries.def: the newest one that is in a folder that
 * RANKFOLD_LIBRARIES names, or where the system looks. rankfold's own library of that name is
 * refused, for the reason given in driver.c. Libraries are large, so one is loaded when it is first
 * needed, and stays.
 */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvidia_hal.h"

static const struct {
	const char *library, *soname;
} sonames[] = {
#define RF_SONAME(name, cuda, soname) {#name, soname},
#include "../../../interpose/api/libraries.def"
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	const char *name;
	void *handle;
} loaded[16];
static uint32_t loaded_count;

/* To load a file that ends before its last segment would kill this process (SIGBUS). */
static bool is_cut_off(const char *path)
{
	Elf64_Ehdr head;
	Elf64_Phdr segment;
	struct stat file;
	bool cut = false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	if (!fstat(fd, &file) && pread(fd, &head, sizeof head, 0) == sizeof head &&
	    !memcmp(head.e_ident, ELFMAG, SELFMAG) && head.e_phentsize == sizeof segment)
		for (uint32_t i = 0; i < head.e_phnum && !cut; i++)
			cut = pread(fd, &segment, sizeof segment,
				    (off_t)(head.e_phoff + i * sizeof segment)) != sizeof segment ||
			      segment.p_filesz > (uint64_t)file.st_size ||
			      segment.p_offset > (uint64_t)file.st_size - segment.p_filesz;
	close(fd);
	return cut;
}

/* In each of the folders, then where the system looks. If a file is there and cannot be loaded, for
 * example because a library that it needs is missing, `why` says so. */
static void *open_in(const char *folders, const char *soname, char *why, uint32_t why_bytes)
{
	char path[4096];
	void *handle = NULL;

	for (const char *end; folders && *folders && !handle; folders = end + !!*end) {
		end = strchrnul(folders, ':');
		snprintf(path, sizeof path, "%.*s/%s", (int)(end - folders), folders, soname);
		if (is_cut_off(path)) {
			snprintf(why, why_bytes, "%.*s: the file is cut off", CUDA_TEXT_BYTES / 2,
				 path);
			continue;
		}
		handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!handle && !why[0] && !access(path, F_OK))
			snprintf(why, why_bytes, "%s", dlerror());
	}
	return handle ? handle : dlopen(soname, RTLD_NOW | RTLD_LOCAL);
}

static void *load(const char *name, char *text, uint32_t text_bytes)
{
	char why[CUDA_TEXT_BYTES] = "";
	const char *newest = NULL;
	void *handle = NULL;

	for (size_t i = 0; i < sizeof sonames / sizeof *sonames && !handle; i++) {
		if (strcmp(sonames[i].library, name) != 0)
			continue;
		newest = newest ? newest : sonames[i].soname;
		handle = open_in(getenv("RANKFOLD_LIBRARIES"), sonames[i].soname, why, sizeof why);
	}
	if (handle && !dlsym(handle, "api_nccl_any")) /* only the client library has it */
		return handle;
	if (handle)
		snprintf(
			text, text_bytes,
			"%s is rankfold's client library: start the proxy without it in LD_PRELOAD "
			"or LD_LIBRARY_PATH",
			newest);
	else if (why[0])
		snprintf(
			text, text_bytes,
			"the device's proxy cannot load NVIDIA's %s, which RANKFOLD_LIBRARIES names: %s",
			newest, why);
	else
		snprintf(text, text_bytes,
			 "the device's proxy does not find NVIDIA's %s: install it where the proxy "
			 "runs, or name its folder in RANKFOLD_LIBRARIES",
			 newest);
	return NULL;
}

void *nvidia_library(const char *name, char *text, uint32_t text_bytes)
{
	void *handle = NULL;
	uint32_t i = 0;

	pthread_mutex_lock(&lock);
	while (i < loaded_count && strcmp(loaded[i].name, name) != 0)
		i++;
	if (i < loaded_count) {
		handle = loaded[i].handle;
	} else {
		handle = load(name, text, text_bytes);
		if (handle) { /* one that is missing may be installed later */
			loaded[loaded_count].name = name;
			loaded[loaded_count++].handle = handle;
		}
	}
	pthread_mutex_unlock(&lock);
	return handle;
}

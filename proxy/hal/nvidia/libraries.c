/* libraries.c: finds NVIDIA's libraries, other than the driver.
 *
 * A library has one of its SONAMEs of libraries.def: the newest one in the first folder of
 * RANKFOLD_LIBRARIES that has any, or else where the system looks. rankfold's own library of that
 * name is refused, for the reason given in driver.c. Libraries are large, so one is loaded when it
 * is first needed, and stays.
 */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <glob.h>
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

/* Loads PATH. If the file is there and cannot be loaded, for example because a library that it
 * needs is missing, `why` says so. */
static void *open_file(const char *path, char *why, uint32_t why_bytes)
{
	void *handle = NULL;

	if (is_cut_off(path)) {
		snprintf(why, why_bytes, "%.*s: the file is cut off", CUDA_TEXT_BYTES / 2, path);
		return NULL;
	}
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle && !why[0] && !access(path, F_OK))
		snprintf(why, why_bytes, "%s", dlerror());
	return handle;
}

/* NVRTC, with which cuDNN and cuFFT compile kernels, loads its builtins by their name alone. In
 * packages of CUDA 13 nothing tells it the folder, so they are loaded before. */
static void open_builtins(const char *folder)
{
	char path[4096], why[CUDA_TEXT_BYTES] = "";
	glob_t found;

	snprintf(path, sizeof path, "%s/libnvrtc-builtins.so.*", folder);
	if (glob(path, 0, NULL, &found))
		return;
	for (size_t i = 0; i < found.gl_pathc; i++)
		open_file(found.gl_pathv[i], why, sizeof why);
	globfree(&found);
}

/* In a folder, the newest version that is there. */
static void *open_in(const char *folder, const char *name, char *why, uint32_t why_bytes)
{
	char path[4096];
	void *handle = NULL;

	for (size_t i = 0; i < sizeof sonames / sizeof *sonames && !handle; i++) {
		if (strcmp(sonames[i].library, name) != 0)
			continue;
		snprintf(path, sizeof path, "%s/%s", folder, sonames[i].soname);
		handle = open_file(path, why, why_bytes);
	}
	return handle;
}

/* In each of the folders, then where the system looks. So a program's own version goes before a
 * newer one of the system. */
static void *find(const char *folders, const char *name, char *why, uint32_t why_bytes)
{
	char folder[4000];
	void *handle = NULL;

	for (const char *at = folders, *end; at && *at; at = end + !!*end) {
		end = strchrnul(at, ':');
		snprintf(folder, sizeof folder, "%.*s", (int)(end - at), at);
		open_builtins(folder);
	}
	for (const char *at = folders, *end; at && *at && !handle; at = end + !!*end) {
		end = strchrnul(at, ':');
		snprintf(folder, sizeof folder, "%.*s", (int)(end - at), at);
		handle = open_in(folder, name, why, why_bytes);
	}
	for (size_t i = 0; i < sizeof sonames / sizeof *sonames && !handle; i++)
		if (strcmp(sonames[i].library, name) == 0)
			handle = dlopen(sonames[i].soname, RTLD_NOW | RTLD_LOCAL);
	return handle;
}

static const char *newest_of(const char *name)
{
	size_t i = 0;

	while (strcmp(sonames[i].library, name) != 0)
		i++;
	return sonames[i].soname;
}

static void *load(const char *name, char *text, uint32_t text_bytes)
{
	char why[CUDA_TEXT_BYTES] = "";
	const char *newest = newest_of(name);
	void *handle = find(getenv("RANKFOLD_LIBRARIES"), name, why, sizeof why);

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

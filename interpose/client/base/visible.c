/* visible.c: the UUIDs of the job's devices, and which devices this process sees, in which order:
 * CUDA_VISIBLE_DEVICES, read once, at the first call that needs it, as the driver reads it in
 * cuInit.
 *
 * The syntax is the driver's: numbers, or prefixes of UUIDs, separated by commas. Text after a
 * number is ignored; an entry that names no device ends the list; a device that is named twice
 * makes the list empty. NVML ignores the variable. No lock: a second thread uses what the first one
 * has read.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

struct visible {
	int count;
	int numbers[DEVICES_MAX];
};

static _Atomic(const struct visible *) read_once;

void device_uuid(unsigned char uuid[16], int number)
{
	memcpy(uuid, "rankfold-device", 15);
	uuid[15] = (unsigned char)number;
}

void device_uuid_text(char text[DEVICE_UUID_TEXT], int number)
{
	unsigned char uuid[16];
	char *at = text + sprintf(text, "GPU-");
	device_uuid(uuid, number);
	for (int i = 0; i < 16; i++) {
		const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
		at += sprintf(at, "%s%02x", dash, uuid[i]);
	}
}

/* The job's device whose UUID begins with `name`; -1: none, or several. */
static int by_uuid(const char *name, size_t length, int total)
{
	char text[DEVICE_UUID_TEXT];
	int found = -1;
	for (int i = 0; i < total; i++) {
		device_uuid_text(text, i);
		if (strncmp(text, name, length))
			continue;
		if (found >= 0)
			return -1;
		found = i;
	}
	return found;
}

/* The device that an entry names; -1: none. */
static int device_named(const char *entry, size_t length, int total)
{
	if (length >= 4 && !strncmp(entry, "GPU-", 4))
		return by_uuid(entry, length, total);
	char *end;
	long number = strtol(entry, &end, 10); /* 0 if there are no digits */
	return end != entry && number >= 0 && number < total ? (int)number : -1;
}

static void parse_list(const char *text, int total, struct visible *v)
{
	for (const char *at = text; at; at = strchr(at, ','), at += at != NULL) {
		at += strspn(at, " \t");
		size_t length = strcspn(at, ", \t");
		int number = device_named(at, length, total);
		if (number < 0 || v->count == DEVICES_MAX)
			return;
		for (int i = 0; i < v->count; i++) {
			if (v->numbers[i] == number) {
				v->count = 0;
				return;
			}
		}
		v->numbers[v->count++] = number;
	}
}

static const struct visible *visible_devices(int total)
{
	const struct visible *have = atomic_load_explicit(&read_once, memory_order_acquire);
	if (have)
		return have;
	int saved_errno = errno;
	struct visible *v = calloc(1, sizeof *v);
	if (!v)
		return NULL;
	const char *text = inside_visible_devices();
	if (text)
		parse_list(text, total < DEVICES_MAX ? total : DEVICES_MAX, v);
	else
		v->count = -1;
	errno = saved_errno; /* strtol changes it for numbers that are too large */
	if (atomic_compare_exchange_strong(&read_once, &have, v))
		return v;
	free(v);
	return have;
}

int visible_count(int total)
{
	const struct visible *v = visible_devices(total);
	return !v ? 0 : v->count < 0 ? total : v->count;
}

int visible_number(int ordinal)
{
	const struct visible *v = atomic_load_explicit(&read_once, memory_order_acquire);
	return !v || v->count < 0 || ordinal < 0 || ordinal >= v->count ? ordinal
									: v->numbers[ordinal];
}

int visible_ordinal(int number, int total)
{
	int count = visible_count(total);
	for (int i = 0; i < count; i++)
		if (visible_number(i) == number)
			return i;
	return -1;
}

/* client.c: see client.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"
#include "doorbell.h"
#include "loop/internal.h"
#include "kernel.h"

static void must(bool good, const char *what)
{
	if (good)
		return;
	perror(what);
	abort();
}

/* ---- a rank's end of a channel ---- */

void client_open(struct client *c, uint32_t rank, uint32_t world_size)
{
	*c = (struct client){.channel = memfd_create("channel", MFD_ALLOW_SEALING | MFD_CLOEXEC),
			     .image = memfd_create("image", MFD_CLOEXEC)};
	must(!ftruncate(c->channel, (off_t)RF_MEMFD_BYTES), "the channel's size");
	must(!fcntl(c->channel, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), "the channel's seals");
	must(!ftruncate(c->image, (off_t)RF_WINDOW_BYTES), "the image's size");
	c->map = mmap(NULL, RF_OFF_PINNED, PROT_READ | PROT_WRITE, MAP_SHARED, c->channel, 0);
	must(c->map != MAP_FAILED, "the channel's mapping");
	c->header = (void *)c->map;
	c->header->magic = RF_MAGIC;
	c->header->major = RF_MAJOR;
	c->header->memfd_bytes = RF_MEMFD_BYTES;
	c->header->rank = rank;
	c->header->world_size = world_size;
}

void client_close(struct client *c)
{
	munmap(c->map, RF_OFF_PINNED);
	close(c->channel);
	close(c->image);
}

bool client_room(const struct client *c, uint64_t bytes)
{
	return c->head + bytes - atomic_load(&c->header->tail) <= RF_RING_BYTES;
}

void client_raw(struct client *c, const void *record, uint32_t bytes)
{
	uint64_t padded = (bytes + 63ull) / 64 * 64, place = c->head % RF_RING_BYTES;
	if (place + padded > RF_RING_BYTES) {
		struct rf_record pad = {.bytes = (uint32_t)(RF_RING_BYTES - place)};
		memcpy(c->map + RF_OFF_RING + place, &pad, sizeof pad);
		c->head += pad.bytes;
		place = 0;
	}
	memset(c->map + RF_OFF_RING + place, 0, padded);
	memcpy(c->map + RF_OFF_RING + place, record, bytes);
	c->head += padded;
	doorbell_publish(&c->header->head, c->head);
	doorbell_ring(&c->header->doorbell, &c->header->server_sleeping);
}

void client_post(struct client *c, void *record, uint32_t bytes, uint16_t opcode, uint16_t slot)
{
	struct rf_record *r = record;
	*r = (struct rf_record){
		.bytes = (bytes + 63) / 64 * 64, .opcode = opcode, .slot = slot, .seq = ++c->seq};
	client_raw(c, record, bytes);
}

struct rf_slot *client_slot(const struct client *c) { return (void *)(c->map + RF_OFF_SLOTS); }

void client_ask(struct client *c, void *record, uint32_t bytes, uint16_t opcode)
{
	atomic_store(&client_slot(c)->state, RF_SLOT_WAITING);
	client_post(c, record, bytes, opcode, 1);
}

bool client_answered(const struct client *c) { return slot_answered(client_slot(c)); }

/* ---- a kernel and its module ---- */

/* A bad address causes a fault. */
static uint64_t kernel_body(const struct soft_block *b, uint32_t t0, uint32_t t1, uint32_t row,
			    uint32_t tid_y, uint32_t tid_z)
{
	uint64_t address;
	(void)t0;
	(void)t1;
	(void)row;
	(void)tid_y;
	(void)tid_z;
	memcpy(&address, b->params, sizeof address);
	volatile uint8_t *at = b->base + ((address - RF_DEV_BASE) & (RF_WINDOW_BYTES - 1));
	*at = (uint8_t)(*at + 1);
	return SOFT_EXIT;
}

static const struct soft_cut kernel_cuts[] = {
	{.kind = SOFT_CUT_NONE},
	{.run = kernel_body, .step = kernel_body, .flags = SOFT_FLAT | SOFT_LOCKSTEP_FLAT}};
static const struct hal_function kernel = {.name = "add_one",
					   .cuts = kernel_cuts,
					   .abi = SOFT_KERNEL_ABI,
					   .cut_count = 2,
					   .param_bytes = 8,
					   .max_threads = 1024};

void client_answer(struct proxy *p, const struct proxy_event *e)
{
	static const uint8_t globals[100] = {1};
	const uint64_t offsets[] = {0, 64}, sizes[] = {64, 36};
	const uint32_t params[] = {0, 8};
	const struct proxy_access word = {0, 8, PROXY_READ};
	const struct proxy_access variable = {64, 36, PROXY_READ | PROXY_WRITTEN};
	struct proxy_function f = {.address = (uintptr_t)&kernel,
				   .param_count = 1,
				   .param_bytes = 8,
				   .max_threads = 1024,
				   .closed = 1,
				   .word_count = 1,
				   .words = &word,
				   .variable_count = 1,
				   .variables = &variable};
	bool refused = e->data && e->bytes && e->data[0] == 0xff;
	if (e->kind == PROXY_EVENT_MODULE)
		proxy_module_ready(p, e->token, refused ? CU_INVALID_IMAGE : 0, "", "hash",
				   sizeof globals, globals, 2, "add_one\0other", 2, 1,
				   "first\0second", offsets, sizes);
	else if (e->kind == PROXY_EVENT_FUNCTION)
		proxy_function_ready(p, e->token, e->name[0] == 'x' ? CU_NOT_FOUND : 0, "", &f,
				     params);
}

/* ask.h: requests to Python and their replies (ask.c). */
#ifndef RANKFOLD_ASK_H
#define RANKFOLD_ASK_H

#include <stdbool.h>
#include <stdint.h>

struct function;
struct module;
struct proxy;
struct rank;

struct ask { /* a request to Python */
	struct ask *next;
	uint64_t token;
	struct rank *rank;
	uint64_t object;
	uint16_t slot;
	uint32_t bulk;
};

struct ask *ask_new(struct rank *, uint64_t object, uint16_t slot, uint32_t bulk);
struct ask *ask_take(struct proxy *, uint64_t token);
struct ask *ask_take_object(struct rank *, uint64_t object);
void ask_forget(struct rank *);
/* Return false, and send nothing, if host memory is short. */
bool ask_module(struct rank *, struct module *, uint32_t image_kind, uint16_t slot);
bool ask_function(struct rank *, struct function *, uint16_t slot, uint32_t bulk);

#endif

/* python_request.h: requests to Python and their replies (python_request.c). */
#ifndef RANKFOLD_PYTHON_REQUEST_H
#define RANKFOLD_PYTHON_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

struct function;
struct module;
struct proxy;
struct rank;

struct python_request { /* a request to Python */
	struct python_request *next;
	uint64_t token;
	struct rank *rank;
	uint64_t object;
	uint16_t slot;
	uint32_t bulk;
};

struct python_request *python_request_new(struct rank *, uint64_t object, uint16_t slot,
					  uint32_t bulk);
struct python_request *python_request_take(struct proxy *, uint64_t token);
struct python_request *python_request_take_object(struct rank *, uint64_t object);
void python_request_forget(struct rank *);
/* Return false, and send nothing, if host memory is short. */
bool python_request_module(struct rank *, struct module *, uint32_t image_kind, uint16_t slot,
			   uint32_t why);
bool python_request_function(struct rank *, struct function *, uint16_t slot, uint32_t bulk);

#endif

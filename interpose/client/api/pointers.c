/* pointers.c: queries of addresses in both APIs. No lock. */
#include <string.h>

#include "bodies.h"

int pointer_attributes(cudaPointerAttributes *attributes, const void *ptr)
{
	if (!attributes)
		return INVALID_VALUE;
	int error = device_check(current_device);
	memset(attributes, 0, sizeof *attributes);
	attributes->device = current_device;
	if (memory_on_device(ptr, 0)) {
		bool pinned = memory_where(ptr) == AT_PINNED;
		attributes->type = managed_is(ptr) ? MEMORY_MANAGED
				   : pinned        ? MEMORY_HOST
						   : MEMORY_DEVICE;
		attributes->devicePointer = (void *)ptr;
		attributes->hostPointer = pinned ? (void *)ptr : NULL;
	} else if (registered_is(ptr)) {
		void *reached = registered_reached(ptr, 0);
		attributes->type = MEMORY_HOST;
		attributes->devicePointer = reached != ptr ? reached : NULL;
		attributes->hostPointer = (void *)ptr;
	} else {
		attributes->type = MEMORY_UNREGISTERED;
		attributes->device = -2;
		attributes->hostPointer = (void *)ptr;
	}
	return error;
}

int pointer_attributes_12(cudaPointerAttributes_12 *attributes, const void *ptr)
{
	cudaPointerAttributes newer;
	int error = attributes ? pointer_attributes(&newer, ptr) : INVALID_VALUE;
	if (attributes)
		memcpy(attributes, &newer, sizeof *attributes);
	return error;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
	struct allocation a;
	if (!allocation_find((void *)dptr, &a))
		return NOT_FOUND;
	if (pbase)
		*pbase = a.base;
	if (psize)
		*psize = a.bytes;
	return CUDA_OK;
}

static int put_value(void *data, const void *value, size_t bytes)
{
	memcpy(data, value, bytes);
	return CUDA_OK;
}

/* Numbers of CUpointer_attribute. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct allocation a;
	CUdeviceptr at = (CUdeviceptr)registered_reached((void *)ptr, 0);
	uint64_t first, whole;
	bool mapped = data && allocation_find((void *)at, &a);
	if (data && (!mapped || a.mapped) && addresses_find(at, &first, &whole)) {
		char here = mapped; /* of its reservation, other than the rest */
		switch (attribute) {
		case 11: return put_value(data, &first, sizeof first);
		case 12: return put_value(data, &whole, sizeof whole);
		case 13: return put_value(data, &here, sizeof here);
		}
	}
	if (!mapped)
		return INVALID_VALUE;
	void *context = context_numbered(a.owner);
	bool pinned = memory_where((void *)at) == AT_PINNED;
	char managed = (a.flags & PINNED_MANAGED) != 0;
	unsigned type = pinned && !managed ? CU_HOST : CU_DEVICE, yes = 1, no = 0;
	switch (attribute) {
	case 1: return put_value(data, &context, sizeof context);
	case 2: return put_value(data, &type, sizeof type);
	case 3: return put_value(data, &at, sizeof at); /* device pointer */
	case 4:
		return pinned ? put_value(data, &ptr, sizeof ptr)
			      : INVALID_VALUE;                    /* host pointer */
	case 6: return put_value(data, &yes, sizeof yes);         /* synchronous copies */
	case 7: return put_value(data, &a.base, sizeof a.base);   /* buffer id */
	case 8: return put_value(data, &managed, sizeof managed); /* managed? */
	case 9: return put_value(data, &current_device, sizeof current_device);
	case 10: return put_value(data, &no, sizeof(char)); /* legacy IPC? */
	case 11: return put_value(data, &a.base, sizeof a.base);
	case 12: return put_value(data, &a.bytes, sizeof a.bytes);
	case 13: return put_value(data, &yes, sizeof(char)); /* mapped? */
	default: return NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
				void **data, CUdeviceptr ptr)
{
	static const size_t width[] = {[1] = 8, [2] = 4, [3] = 8,  [4] = 8, [6] = 4,
				       [7] = 8, [9] = 4, [11] = 8, [12] = 8};
	int nowhere = -2; /* CU_DEVICE_INVALID */
	if (!attributes || !data)
		return INVALID_VALUE;
	for (unsigned i = 0; i < numAttributes; i++) {
		unsigned which = attributes[i];
		if (!cuPointerGetAttribute(data[i], attributes[i], ptr))
			continue;
		bool known = which < sizeof width / sizeof *width && width[which];
		memset(data[i], 0, known ? width[which] : 1);
		if (which == 9)
			put_value(data[i], &nowhere, sizeof nowhere);
	}
	return CUDA_OK;
}

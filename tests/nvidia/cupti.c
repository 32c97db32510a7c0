/* cupti.c: the part of CUPTI that counts calls of the driver, and how the driver loads what uses
 * it. */
#include <dlfcn.h>
#include <stdlib.h>

#include "fake.h"

typedef void callback(void *user, int domain, uint32_t id, const void *data);

static callback *subscriber;
static void *subscriber_data;
static bool enabled;

EXPORT int cuptiSubscribe(void **handle, callback *call, void *user);
EXPORT int cuptiEnableDomain(uint32_t enable, void *handle, int domain);

EXPORT int cuptiSubscribe(void **handle, callback *call, void *user)
{
	if (!handle || !call)
		return 1; /* CUPTI_ERROR_INVALID_PARAMETER */
	if (subscriber)
		return 39; /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED */
	subscriber = call;
	subscriber_data = user;
	*handle = &subscriber;
	return 0;
}

EXPORT int cuptiEnableDomain(uint32_t enable, void *handle, int domain)
{
	if (handle != &subscriber || domain != 1) /* of the driver's API only */
		return 1;
	enabled = enable;
	return 0;
}

/* Each call is reported twice: when it begins, and when it ends. */
void fake_report(void)
{
	for (int site = 0; enabled && site < 2; site++)
		subscriber(subscriber_data, 1, 0, &(struct { int site; }){site});
}

void fake_inject(void)
{
	const char *path = getenv("CUDA_INJECTION64_PATH");
	void *library = path ? dlopen(path, RTLD_NOW) : NULL;
	int (*initialise)(void) = NULL;

	if (library)
		*(void **)&initialise = dlsym(library, "InitializeInjection");
	if (initialise && !subscriber)
		initialise();
}

/* broken_client_pools.c: memory pools (broken_client.c). */
#include "issue/pool.c"

#include "broken.h"
#include "broken_client.h"

#define BREAK(text, ...) BREAKS(text, , __VA_ARGS__)

void broken_pools(void)
{
	struct pool *p = add_pool(0, 0), unused = {.destroyed = true};
	uint64_t number;
	BREAK("a pool that goes is listed", drop_if_empty(&unused));
	BREAK("a pool counts the bytes that come from it", pool_got_back(p->number, 4096));
	/* Another thread asks for the free memory while one allocates. */
	MUST(!pool_book((void *)p->number, RF_CHUNK_BYTES, &number));
	MUST(!pool_reserved(1 << 30) && !p->reserved);
}

# The fuzzer: the proxy's own source with sanitizers and coverage, and the harness around it.
# make -f tests/hostile/build.mk
BUILD := build/fuzz
CC ?= gcc
SANITIZE ?= -fsanitize=address,undefined -fno-sanitize-recover=undefined
CHECKED ?= -DSOFT_CHECKED
GEN ?= build/native/gen # the table of library calls, from the build for people
FLAGS := $(CHECKED) -std=c11 -D_GNU_SOURCE -O1 -g -fno-omit-frame-pointer -Wall -Wextra -Iinterpose/channel \
	-Iproxy/core -Iproxy/hal -Iproxy/hal/soft -Itests/hostile -I$(GEN) $(SANITIZE)
CORE := $(patsubst %.c,$(BUILD)/%.o,$(wildcard proxy/core/*.c proxy/core/*/*.c))
OTHER := $(patsubst %.c,$(BUILD)/%.o,$(wildcard proxy/hal/*.c proxy/hal/*/*.c) tests/hostile/fuzz_decoder.c \
	tests/hostile/client.c tests/hostile/generate.c tests/hostile/coverage.c)
WRAP := $(foreach f,in_loop mailbox_start mailbox_stop,-Wl,--wrap=$(f))

$(BUILD)/fuzz-decoder: $(CORE) $(OTHER)
	$(CC) $(FLAGS) $(WRAP) -o $@ $^ -lpthread -lm -ldl
$(CORE): FLAGS += -fsanitize-coverage=trace-pc
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -MMD -MP -c $< -o $@
-include $(CORE:.o=.d) $(OTHER:.o=.d)

# The same core where host memory is short.
SHORT := $(filter-out %/fuzz_decoder.o %/generate.o %/coverage.o,$(OTHER)) $(BUILD)/tests/hostile/short.o
SCARCE := $(foreach f,calloc malloc realloc post_event,-Wl,--wrap=$(f))
$(BUILD)/short: $(CORE) $(SHORT)
	$(CC) $(FLAGS) $(WRAP) $(SCARCE) -o $@ $^ -lpthread -lm -ldl
-include $(BUILD)/tests/hostile/short.d

# Structures of the core, looked at from inside.
PARTS := $(filter-out %/fuzz_decoder.o %/generate.o %/coverage.o,$(OTHER)) $(BUILD)/tests/hostile/parts.o
$(BUILD)/parts: $(CORE) $(PARTS)
	$(CC) $(FLAGS) $(WRAP) -o $@ $^ -lpthread -lm -ldl
-include $(BUILD)/tests/hostile/parts.d

# `short` without sanitizers, its core checked at each turn (core_invalid), with CHANGED in place of
# the source file INSTEAD: a fault that a test seeded.
PLAIN := $(patsubst $(BUILD)/%,$(BUILD)/plain/%,$(CORE) $(SHORT))
PLAIN_FLAGS := $(filter-out -f%,$(FLAGS)) -fno-omit-frame-pointer
$(BUILD)/plain/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(PLAIN_FLAGS) -MMD -MP -c $< -o $@
-include $(PLAIN:.o=.d)
$(BUILD)/plain/all: $(PLAIN)
	touch $@
.PHONY: seeded
seeded: $(BUILD)/plain/all
	$(CC) $(PLAIN_FLAGS) -w -I$(dir $(INSTEAD)) $(WRAP) $(SCARCE) -o $(OUT) $(CHANGED) \
		$(filter-out $(BUILD)/plain/$(INSTEAD:.c=.o),$(PLAIN)) -lpthread -lm -ldl

# Each invariant broken once. The files that broken_*.c contain are left out.
INSIDE := proxy/core/peer/peer proxy/core/opaque/launches proxy/core/collective/engine
BROKEN := $(patsubst %,$(BUILD)/plain/tests/invariants/%.o,broken broken_child broken_peer broken_launches broken_engine) \
	$(BUILD)/plain/tests/hostile/client.o
WHOLE := $(filter-out $(INSIDE:%=$(BUILD)/plain/%.o) %/short.o %/client.o,$(PLAIN))
$(BUILD)/broken: $(BROKEN) $(WHOLE)
	$(CC) $(PLAIN_FLAGS) $(WRAP) -o $@ $^ -lpthread -lm -ldl
-include $(BROKEN:.o=.d)

# The same for the client's libraries, whose other files are as they were built for people.
NATIVE ?= build/native
CLIENT := interpose/client
HELD := issue/arena issue/heap graph/capture graph/graph_exec graph/user_object api/nccl_comm issue/pool
BROKEN_CLIENT := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/invariants/broken_client*.c))
LIBRARIES := $(filter-out $(HELD:%=$(NATIVE)/obj/$(CLIENT)/%.o),$(patsubst %.c,$(NATIVE)/obj/%.o,\
	$(wildcard $(CLIENT)/*/*.c))) $(wildcard $(NATIVE)/obj/gen/*.o $(NATIVE)/obj/interpose/*.o)
$(BROKEN_CLIENT): FLAGS := $(PLAIN_FLAGS) -DRF_CLIENT -include $(CLIENT)/base/inside.h -I$(NATIVE)/gen -I$(CLIENT) $(patsubst %,-I$(CLIENT)/%,base issue graph api)
$(BUILD)/broken-client: $(BROKEN_CLIENT) $(BUILD)/plain/tests/invariants/broken_child.o $(LIBRARIES)
	$(CC) $(CFLAGS) -o $@ $^ -lpthread -lm -ldl
-include $(BROKEN_CLIENT:.o=.d)

# The proxy's threads under the thread sanitizer, in one go: nothing of it is shared with the above.
# It has room for 1.5 TiB of addresses, of which the kernel's randomisation may leave a third: so
# windows of 32 GiB between guards of 8 GiB take the place of those of 1 TiB between 256 GiB.
THREADS := $(wildcard proxy/core/*.c proxy/core/*/*.c proxy/hal/*.c proxy/hal/*/*.c) tests/hostile/threads.c \
	tests/hostile/client.c
SMALL := $(patsubst interpose/channel/%,$(BUILD)/small/%,$(wildcard interpose/channel/*.h))
$(BUILD)/small/%.h: interpose/channel/%.h
	@mkdir -p $(@D)
	sed -e '/define RF_WINDOW_BYTES/s/<< 40/<< 35/' -e '/define RF_HEAP_BYTES/s/<< 39/<< 33/' $< > $@
$(BUILD)/threads: $(THREADS) $(SMALL) $(wildcard proxy/core/*.h proxy/core/*/*.h proxy/hal/*.h proxy/hal/*/*.h)
	$(CC) -I$(BUILD)/small $(filter-out -f%,$(FLAGS)) -w -DSOFT_GUARD_BYTES='(1ull << 33)' -fsanitize=thread \
		-o $@ $(THREADS) -lpthread -lm -ldl

# The device proxy's native half: core and all kinds of devices in one library.
PROXY_LIB := $(BUILD)/lib/librankfold-proxy.so
PROXY_SRC := $(wildcard proxy/core/*.c proxy/core/*/*.c proxy/hal/*.c proxy/hal/*/*.c)
PROXY_OBJ := $(PROXY_SRC:%.c=$(BUILD)/obj/%.o)
PROXY_API := $(BUILD)/include/proxy.h
NATIVE += $(PROXY_LIB) $(PROXY_API)

# A room of the core finds the headers of lower rooms and its own ("memory/memory.h"), and no others:
# its include folder has links to them. `hal` has links to the headers that all kinds of devices
# share; only a kind's own folder finds the kind's.
ROOM_versions := versions
ROOM_order := order
ROOM_memory := versions memory
ROOM_barrier := barrier
ROOM_collective := collective
ROOM_peer := barrier collective peer
ROOM_crosscheck := $(ROOM_memory) crosscheck
ROOM_opaque := $(ROOM_crosscheck) opaque
ROOM_rank := $(ROOM_opaque) barrier collective rank
ROOM_queue := $(ROOM_rank) order queue
ROOM_loop := $(ROOM_queue) peer loop
ROOMS := versions order memory barrier collective peer crosscheck opaque rank queue loop
ROOM_DIRS := $(ROOMS:%=$(BUILD)/rooms/%)
HAL_DIR := $(BUILD)/rooms/hal
$(ROOM_DIRS): proxy/build.mk $(wildcard proxy/core/*.h)
	@rm -rf $@ && mkdir -p $@
	@ln -sr $(wildcard proxy/core/*.h) $(addprefix proxy/core/,$(ROOM_$(@F))) $@
$(HAL_DIR): proxy/build.mk $(wildcard proxy/hal/*.h)
	@rm -rf $@ && mkdir -p $@
	@ln -sr $(wildcard proxy/hal/*.h) $@

define ROOM_RULE
$(BUILD)/obj/proxy/core/$(1)/%.o: proxy/core/$(1)/%.c | $(BUILD)/rooms/$(1) $(HAL_DIR)
	@mkdir -p $$(@D)
	$$(call SAY,CC,$$<) $$(CC) $$(CSTD) -I$(HAL_DIR) -I$(BUILD)/rooms/$(1) $$(CFLAGS) $$(WARN) -MMD -MP -c $$< -o $$@
endef
$(foreach r,$(ROOMS),$(eval $(call ROOM_RULE,$(r))))

$(BUILD)/obj/proxy/%.o: proxy/%.c | $(HAL_DIR)
	@mkdir -p $(@D)
	$(call SAY,CC,$<) $(CC) $(CSTD) -I$(HAL_DIR) $(CFLAGS) $(WARN) -MMD -MP -c $< -o $@

# The functions of NVIDIA's libraries that ranks may call: from the client's descriptions.
$(BUILD)/obj/proxy/hal/nvidia/calls.o: CSTD += -I$(BUILD)/gen
$(BUILD)/obj/proxy/hal/nvidia/calls.o: $(BUILD)/gen/.generated

# The PTX is committed, so that nvcc is needed only to change its source.
$(BUILD)/obj/proxy/hal/nvidia/kernels.o: proxy/hal/nvidia/kernels/sums.ptx
.PHONY: gpu-ptx
gpu-ptx: $(VENV_READY) ## compile the NVIDIA HAL's kernels to PTX, after a change of their source
	$(PYTHON) -m rankfold.proxy.hal.nvidia.kernels.build

# Renamed when it is whole: a process that starts meanwhile loads the former one.
$(PROXY_LIB): $(PROXY_OBJ)
	@mkdir -p $(@D)
	$(call SAY,LD,$@) $(CC) -shared $(CFLAGS) -o $@.new $^ -lpthread -lm -ldl && mv $@.new $@

$(PROXY_API): proxy/core/proxy.h
	@mkdir -p $(@D)
	$(call SAY,CP,$@) cp $< $@

-include $(PROXY_OBJ:.o=.d)

# The device proxy's native half: core and all kinds of devices in one library.
PROXY_LIB := $(BUILD)/lib/librankfold-proxy.so
PROXY_SRC := $(wildcard proxy/core/*.c proxy/core/*/*.c proxy/hal/*.c proxy/hal/*/*.c)
PROXY_OBJ := $(PROXY_SRC:%.c=$(BUILD)/obj/%.o)
PROXY_API := $(BUILD)/include/proxy.h
NATIVE += $(PROXY_LIB) $(PROXY_API)

$(BUILD)/obj/proxy/%.o: proxy/%.c
	@mkdir -p $(@D)
	$(call SAY,CC,$<) $(CC) $(CSTD) $(CFLAGS) $(WARN) -MMD -MP -c $< -o $@

# The PTX is committed, so that nvcc is needed only to change its source.
$(BUILD)/obj/proxy/hal/nvidia/kernels.o: proxy/hal/nvidia/kernels/sums.ptx
.PHONY: gpu-ptx
gpu-ptx: $(VENV_READY) ## compile the NVIDIA HAL's kernels to PTX, after a change of their source
	$(PYTHON) -m rankfold.proxy.hal.nvidia.kernels.build

$(PROXY_LIB): $(PROXY_OBJ)
	@mkdir -p $(@D)
	$(call SAY,LD,$@) $(CC) -shared $(CFLAGS) -o $@ $^ -lpthread -lm -ldl

$(PROXY_API): proxy/core/proxy.h
	@mkdir -p $(@D)
	$(call SAY,CP,$@) cp $< $@

-include $(PROXY_OBJ:.o=.d)

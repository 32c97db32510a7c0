# What is loaded into the job: the client, and one shim per library of NVIDIA's name.
INTERPOSE_GEN := $(BUILD)/gen
# The libraries, and NAME_CUDA:SONAME:LINK of each of their versions, newest first.
LIBRARIES_DEF := interpose/api/libraries.def
INTERPOSE_LIBS := $(shell sed -n 's/^RF_LIBRARY.\(\w*\),.*/\1/p' $(LIBRARIES_DEF))
INTERPOSE_SHIMS := $(shell sed -n 's/^RF_SONAME.\(\w*\), \(\w*\), "\(.*\.so\)\(.*\)".*/\1_\2:\3\4:\3/p' \
	$(LIBRARIES_DEF))
CLIENT_LIB := $(BUILD)/lib/librankfold.so
CLIENT_SRC := $(wildcard interpose/client/*/*.c)
CARRIED_PTX := $(foreach t,s d c z,interpose/blas/$(t).ptx) $(foreach t,s d h b,interpose/dnn/$(t).ptx)
CLIENT_OBJ := $(CLIENT_SRC:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/interpose/images.o $(INTERPOSE_LIBS:%=$(BUILD)/obj/gen/api_%.o)
# A file finds the headers of its own layer and of lower ones (base/base.h). Calls that must not
# happen inside a job are poisoned in all of them.
CLIENT_CSTD := $(CSTD) -ftls-model=initial-exec -DRF_CLIENT -include interpose/client/base/inside.h
FLOOR_base := -Iinterpose/client/base
FLOOR_issue := $(FLOOR_base) -Iinterpose/client/issue
FLOOR_graph := $(FLOOR_issue) -Iinterpose/client/graph -I$(INTERPOSE_GEN)
FLOOR_api := $(FLOOR_graph) -Iinterpose/client/api
SHIMS := $(foreach s,$(INTERPOSE_SHIMS),$(BUILD)/lib/$(word 2,$(subst :, ,$(s))))
NEWEST_SHIMS := $(foreach l,$(INTERPOSE_LIBS),$(firstword $(filter $(l)_%,$(INTERPOSE_SHIMS))))
SHIM_LINKS := $(foreach s,$(NEWEST_SHIMS),$(BUILD)/lib/$(word 3,$(subst :, ,$(s))))
NATIVE += $(CLIENT_LIB) $(SHIMS) $(SHIM_LINKS)

# One run writes all files; the stamp represents them.
GENERATED := $(INTERPOSE_GEN)/.generated
$(GENERATED): $(addprefix interpose/,generate.py descriptions.py headers.py libraries.py) rankfold/records.py $(wildcard interpose/channel/*.h interpose/channel/*.def)\
		$(wildcard interpose/api/*.yaml) $(LIBRARIES_DEF)
	@mkdir -p $(@D)
	$(call SAY,GEN,$(INTERPOSE_GEN)) $(PYTHON) -m rankfold.interpose.generate --out $(INTERPOSE_GEN) --include $(BUILD)/include
	@touch $@
$(INTERPOSE_LIBS:%=$(INTERPOSE_GEN)/api_%.c): $(GENERATED) ;
$(INTERPOSE_GEN)/client.map: $(GENERATED) ;

$(BUILD)/obj/interpose/client/%.o: interpose/client/%.c $(GENERATED)
	@mkdir -p $(@D)
	$(call SAY,CC,$<) $(CC) $(CLIENT_CSTD) $(FLOOR_$(notdir $(patsubst %/,%,$(dir $<)))) $(CFLAGS) $(WARN) -MMD -MP -c $< -o $@

$(BUILD)/obj/gen/%.o: $(INTERPOSE_GEN)/%.c
	@mkdir -p $(@D)
	$(call SAY,CC,$<) $(CC) $(CLIENT_CSTD) $(FLOOR_api) $(CFLAGS) $(WARN) -MMD -MP -c $< -o $@

$(BUILD)/obj/interpose/images.o: interpose/images.S $(CARRIED_PTX)
	@mkdir -p $(@D)
	$(call SAY,AS,$<) $(CC) $(CFLAGS) -c $< -o $@

# The PTX is committed, so that nvcc is needed only to change its source.
.PHONY: carried-ptx
carried-ptx: $(VENV_READY) ## compile the client's own kernels to PTX, after a change of interpose/*/kernels.cu
	$(PYTHON) -m rankfold.interpose.carried

# Our own references bind to ourselves, whatever else in the process has the same names. The shims
# find it in their folder ($$ORIGIN), or preloaded already. It has an unwinder of its own: a libgcc_s that
# it brought along might be older than the one that the program needs.
$(CLIENT_LIB): $(CLIENT_OBJ) $(INTERPOSE_GEN)/client.map
	@mkdir -p $(@D)
	$(call SAY,LD,$@) $(CC) -shared $(CFLAGS) -Wl,-Bsymbolic,-z,defs -Wl,-soname,librankfold.so \
		-Wl,--version-script=$(INTERPOSE_GEN)/client.map -o $@.new $(CLIENT_OBJ) -lpthread -ldl -static-libgcc \
		-Wl,--exclude-libs,libgcc.a:libgcc_eh.a && mv $@.new $@

# NAME_CUDA, SONAME
define SHIM_RULE
$(INTERPOSE_GEN)/shim_$(1).S: $(GENERATED) ;
$(BUILD)/lib/$(2): $(INTERPOSE_GEN)/shim_$(1).S $(CLIENT_LIB)
	$$(call SAY,LD,$$@) $$(CC) -shared $$(CFLAGS) -Wl,-z,defs -Wl,-soname,$$(@F) $$(WARN) \
		-Wl,--version-script=$(INTERPOSE_GEN)/shim_$(1).map -Wl,-rpath,'$$$$ORIGIN' \
		-o $$@.new $$< $(CLIENT_LIB) && mv $$@.new $$@
endef
# SONAME, LINK
define LINK_RULE
$(BUILD)/lib/$(2): $(BUILD)/lib/$(1)
	$$(call SAY,LN,$$@) ln -sf $$(<F) $$@
endef
SHIM_WORDS = $(word $(2),$(subst :, ,$(1)))
$(foreach s,$(INTERPOSE_SHIMS),$(eval $(call SHIM_RULE,$(call SHIM_WORDS,$(s),1),$(call SHIM_WORDS,$(s),2))))
$(foreach s,$(NEWEST_SHIMS),$(eval $(call LINK_RULE,$(call SHIM_WORDS,$(s),2),$(call SHIM_WORDS,$(s),3))))

-include $(CLIENT_OBJ:.o=.d)

# libc's functions are answered here, and the address sanitizer calls some before it is ready. The
# same holds for what runs when an object is loaded.
$(BUILD)/obj/interpose/client/api/lookup.o $(BUILD)/obj/interpose/client/base/elf.o \
$(BUILD)/obj/interpose/client/api/static_runtime.o $(BUILD)/obj/interpose/client/base/object_file.o \
$(BUILD)/obj/interpose/client/base/host_state.o: \
	override CFLAGS += -fno-sanitize=address

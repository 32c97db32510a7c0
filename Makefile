# rankfold's entry points. `make` lists them. `make demo` and `make test` need only Python 3.11 or
# newer, gcc and g++ (nvcc compiles the host code of CUDA C++ with it), make and git: they set up
# everything else below .venv/ and build/.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BASE_PYTHON ?= python3
VENV := .venv
PYTHON := $(VENV)/bin/python
BUILD ?= build/native
CC ?= gcc
CFLAGS ?= -O2 -g
WARN := -Wall -Wextra $(if $(CI),-Werror)
CSTD := -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -Iinterpose/channel
JOBS ?= $(shell nproc)
# Before a command: prints one short line, such as "CC proxy/core/loop/job.c"; V=1 shows the command.
SAY = $(if $(V),,@printf '%-3s %s\n' "$(1)" "$(2)" &&)
# T=barrier: only tests/barrier, or tests whose names match.
TESTS = $(if $(T),$(if $(wildcard tests/$(T)),tests/$(T),-k "$(T)"),tests)

# Files of tests in parallel, four at most: one more than there are cores, because tests also wait.
IN_PARALLEL := --numprocesses=$(shell echo $$(($(JOBS) < 4 ? $(JOBS) + 1 : 4))) \
	--dist=loadfile --no-loadscope-reorder

# The same, each test by itself and in order.
ONE_BY_ONE := --numprocesses=auto --maxprocesses=4 --dist=load --maxschedchunk=1

# Processes of ours start all the time, some of them five for a command: where images forbid Python
# to keep bytecode, as they do to be small, each compiles all of its source again.
unexport PYTHONDONTWRITEBYTECODE

include proxy/build.mk
-include interpose/build.mk

.PHONY: help
help: ## show this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target text; do printf '%-22s %s\n' "$$target" "$$text"; done

# ---- set-up ---------------------------------------------------------------------------------

# This file holds the path of the checkout. A copied or moved checkout contains the virtual environment
# of the original, which would run the original's code.
VENV_READY := $(VENV)/.installed
ifneq ($(shell cat $(VENV_READY) 2>/dev/null),$(CURDIR))
.PHONY: $(VENV_READY)
endif
PINS := tools/constraints.txt
define FROM_INDEX
test -x $(PYTHON) || $(BASE_PYTHON) -m venv $(VENV)
$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint $(PINS) \
	--editable '.[test]'
endef
# What `make gpu-bundle` collected: no index is used.
FROM_BUNDLE = $(BASE_PYTHON) tests/gpu/bundle.py install "$(BUNDLE)" $(VENV)

$(VENV_READY): pyproject.toml $(PINS)
	@$(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(BASE_PYTHON) is older than 3.11: make BASE_PYTHON=/path/to/a/newer/python3" >&2; \
		exit 1; }
	@[ "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" ] || rm -rf $(VENV)
	$(if $(BUNDLE),$(FROM_BUNDLE),$(FROM_INDEX))
	@echo '$(CURDIR)' > $@

.PHONY: setup
setup: $(VENV_READY) ## create the virtual environment with everything that the tests need

# In a separate environment, so that nothing else gets into the file.
.PHONY: constraints
constraints: ## write the newest versions that pyproject.toml allows to tools/constraints.txt
	@rm -rf build/pins && $(BASE_PYTHON) -m venv build/pins
	build/pins/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@grep '^#' $(PINS) > build/pins/new
	build/pins/bin/python -m pip freeze --all --exclude pip --exclude-editable >> build/pins/new
	@mv build/pins/new $(PINS) && rm -rf build/pins
	@git diff --stat $(PINS)

# In a separate make: the generator of the client's stubs runs in the virtual environment.
.PHONY: native
native: $(VENV_READY) ## build the C libraries into build/native
	@$(MAKE) --no-print-directory $(if $(V),,--silent) --jobs=$(JOBS) $(NATIVE)

.PHONY: dist
dist: native ## build a wheel and the executable dist/rankfold, which runs on machines without a compiler
	$(PYTHON) tools/dist.py

# In CI a separate step: the first time it gets what the executable contains.
.PHONY: check-dist
check-dist: native cuda ## build them, and test them where there is no compiler
	$(PYTHON) -m pytest -m slow tests/distribution

.PHONY: compile-commands
compile-commands: native ## write how each C file is compiled, for clangd
	@$(PYTHON) tools/compile_commands.py

# The toolkit's nvcc, or otherwise the one from PyPI, fetched once.
.PHONY: cuda
cuda: $(VENV_READY)
	@tools/nvcc --print-path >/dev/null

# CRIU saves and restores processes; fetched once. Without it (or without network) only checkpoints
# are missing; tests that need it report that.
.PHONY: criu
criu:
	@[ "$$(id -u)" -ne 0 ] || tools/criu || true

# PyTorch, fetched once below ~/.cache/rankfold; see docs/torch.md. 2.6 GB of disk while it unpacks.
.PHONY: torch
torch: ## fetch Debian's PyTorch (572 MB) and leave an interpreter with it in build/torch/python
	@$(BASE_PYTHON) tools/torch/fetch.py

# PyTorch's CPU build, for the elastic runtime. WHEELS: a folder or page that has the wheel.
TORCH_CPU := 2.13.0
WHEELS ?= https://download.pytorch.org/whl/cpu/torch
.PHONY: torch-cpu
torch-cpu: build/torch-cpu ## fetch PyTorch's CPU build (192 MB), for the tests of the elastic runtime

build/torch-cpu: | $(VENV_READY)
	@mkdir -p "$(HOME)/.cache/rankfold" build
	test -d "$(HOME)/.cache/rankfold/torch-cpu/torch" || $(PYTHON) -m pip install --quiet --no-deps --retries 1 \
		--target "$(HOME)/.cache/rankfold/torch-cpu" --find-links $(WHEELS) torch==$(TORCH_CPU)+cpu \
		filelock typing_extensions sympy networkx jinja2 fsspec mpmath MarkupSafe numpy
	@ln -sfn "$(HOME)/.cache/rankfold/torch-cpu" $@

.PHONY: torch-pin
torch-pin: ## write the versions of PyTorch's packages that Debian has now to tools/torch/packages.txt
	@$(BASE_PYTHON) tools/torch/fetch.py --pin

# ---- what people run ------------------------------------------------------------------------

.PHONY: demo demo-torch test test-unit test-slow test-torch
demo: native cuda criu ## fold a training job from four devices onto one and back, bit for bit
	$(PYTHON) -m examples.demo

demo-torch: native criu torch ## the same with PyTorch: examples/torch instead of examples/gpt
	$(PYTHON) -m examples.demo torch

# In CI `make check` has run tests/repository already.
test: native cuda criu ## run the fast tests; T=barrier runs only tests/barrier
	$(PYTHON) -m pytest $(IN_PARALLEL) $(if $(CI),$(if $(T),,--ignore=tests/repository)) $(TESTS)

test-unit: native ## run the tests marked unit, which start no process
	$(PYTHON) -m pytest -m "unit and not slow" $(TESTS)

test-slow: native cuda criu ## run the slow tests
	$(PYTHON) -m pytest $(ONE_BY_ONE) -m slow $(TESTS)

# Without PyTorch, because there is no network or too little disk, they are skipped. T=ops compares
# PyTorch's operators with the CPU (hours). In CI, for time, only a job that is saved, killed and
# restarted on one device, some operators, and for two minutes tests of the elastic runtime, others
# for each commit.
test-torch: TORCH_TESTS = $(if $(T),$(or $(wildcard $(foreach room,pytorch elastic,tests/$(room)/$(T:.py=).py)),$(error no tests/pytorch/$(T).py)),tests/pytorch tests/elastic)
test-torch: TORCH_IN_CI = killed or sees_its_device or finding_and_indexing
test-torch: ELASTIC_IN_CI = not 362 and not 100 and not generated_models and not types_of_cpu and not policy_suspends
test-torch: WORD ?= $(shell git rev-parse --short=12 HEAD)
test-torch: native criu ## run the tests of PyTorch; T=test_ranks runs one file, T=ops the operators
	@$(MAKE) --no-print-directory torch || echo "test-torch: PyTorch could not be prepared" >&2
	@$(MAKE) --no-print-directory torch-cpu || echo "test-torch: no CPU build of PyTorch" >&2
ifeq ($(T),ops)
	$(PYTHON) tests/pytorch/operators.py $(OPS)
else
	$(PYTHON) -m pytest -m torch $(if $(CI),-k "$(TORCH_IN_CI)") $(if $(CI),tests/pytorch,$(TORCH_TESTS))
	$(if $(CI),$(PYTHON) -m pytest -m torch -k "$(ELASTIC_IN_CI)" --slice "$(WORD)" --slice-seconds 120 tests/elastic)
endif

# WORD, by default the commit, selects slow tests that take two minutes, or one on two cores. So each
# slow test runs now and then.
.PHONY: test-slice
test-slice: WORD ?= $(shell git rev-parse --short=12 HEAD)
test-slice: native cuda criu ## run some of the slow tests, others for each commit
	$(PYTHON) -m pytest $(ONE_BY_ONE) -m "slow and not installs and not torch" --slice "$(WORD)" \
		--slice-seconds 60 $(TESTS)

# BENCH_ARGS=--quick only shows that it works. Writes build/bench/NAME.json, see docs/benchmarks.md.
.PHONY: bench-dispatch
bench-dispatch: native cuda ## measure what a call costs through the proxy
	PYTHONPATH=tests $(PYTHON) -m benchmarks.dispatch $(BENCH_ARGS)

.PHONY: bench-splicing
bench-splicing: native cuda ## measure what several ranks on one device cost
	PYTHONPATH=tests $(PYTHON) -m benchmarks.splicing $(BENCH_ARGS)

.PHONY: bench-switch
bench-switch: native cuda ## measure what a switch costs for each GiB that a rank has
	PYTHONPATH=tests $(PYTHON) -m benchmarks.switching $(BENCH_ARGS)

.PHONY: bench-checkpoint
bench-checkpoint: native cuda criu ## measure a checkpoint, and a move through the store
	PYTHONPATH=tests $(PYTHON) -m benchmarks.checkpoint $(BENCH_ARGS)

.PHONY: bench-merge
bench-merge: ## measure comparing the pages of ranks at a switch
	mkdir -p build/bench
	$(CC) -std=c11 -O2 -D_GNU_SOURCE -Iinterpose/channel -Iproxy/hal -Iproxy/core benchmarks/merge.c \
		$(filter-out %/transfer.c,$(wildcard proxy/core/memory/*.c)) $(wildcard proxy/core/versions/*.c) \
		-o build/bench/merge
	build/bench/merge

.PHONY: bench-torch
bench-torch: native cuda criu torch ## measure what PyTorch costs on fewer devices than ranks
	PYTHONPATH=tests $(PYTHON) -m benchmarks.pytorch $(BENCH_ARGS)

.PHONY: bench-torch-start
bench-torch-start: native torch ## measure how long PyTorch takes to start, with and without compiled kernels
	$(PYTHON) -m benchmarks.pytorch_start $(BENCH_ARGS)

.PHONY: bench-elastic
bench-elastic: $(VENV_READY) torch-cpu ## measure what the elastic runtime costs
	PYTHONPATH=tests $(PYTHON) -m benchmarks.elastic $(BENCH_ARGS)

.PHONY: bench-plan
bench-plan: $(VENV_READY) ## measure one plan, and a fleet of 1,000 files
	PYTHONPATH=tests $(PYTHON) -m benchmarks.plan $(BENCH_ARGS)
	PYTHONPATH=tests $(PYTHON) -m benchmarks.files $(BENCH_ARGS)

.PHONY: bench-policy
bench-policy: $(VENV_READY) ## measure one decision on all jobs, with tiers, ranges and fractions
	$(PYTHON) -m benchmarks.policy $(BENCH_ARGS)

.PHONY: bench-easyscale
bench-easyscale: $(VENV_READY) ## simulate EasyScale's workload: BENCH_ARGS="--workload test.csv", or only similar ones
	$(PYTHON) -m benchmarks.easyscale $(BENCH_ARGS)

.PHONY: bench-serving
bench-serving: $(VENV_READY) ## simulate a day of a service's load, with training on the devices that it leaves
	$(PYTHON) -m benchmarks.serving $(BENCH_ARGS)

.PHONY: bench-service
bench-service: native cuda ## measure how soon a service has a device of a training job
	PYTHONPATH=tests $(PYTHON) -m benchmarks.service $(BENCH_ARGS)

.PHONY: bench-philly
bench-philly: $(VENV_READY) ## simulate the jobs of the Philly trace with tiers, on a large fleet and at several loads
	$(PYTHON) -m benchmarks.philly $(BENCH_ARGS)

# Writes everything that a GPU can show to build/gpu/report.json, and what is missing. It builds what
# it needs itself, so that a failed build is in the report.
.PHONY: gpu-check
gpu-check: ## test an NVIDIA GPU: conformance, the GPT, figures; BUNDLE=… without network
	@PYTHONPATH=tests $(BASE_PYTHON) -m gpu.check $(GPU_ARGS)

# For machines without network that have the Python GPU_PYTHON, NumPy, llvmlite and pytest.
TO ?= build/gpu-bundle
GPU_PYTHON ?= 3.12
.PHONY: gpu-bundle
gpu-bundle: $(VENV_READY) ## collect what `make gpu-check BUNDLE=DIR` needs without an index, in TO=DIR
	$(PYTHON) tests/gpu/bundle.py collect "$(TO)" $(GPU_PYTHON)

# The C code with the address and undefined-behaviour sanitizers, in a separate build. The fuzzer of
# tests/hostile, a separate program, detects leaks; here Python's would hide ours. test_lookup.py is
# excluded, because lookups would find the sanitizer's functions.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZED := tests/proxy tests/memory tests/turns tests/nvidia/test_device.py tests/nvidia/test_read_only.py \
	tests/softgpu/test_read_only.py tests/hostile/test_live.py \
	tests/barrier tests/collectives tests/peer tests/running/test_behaviour.py tests/heap \
	tests/interpose/test_channel.py tests/interpose/test_driver.py tests/interpose/test_entry_points.py \
	tests/interpose/test_errors.py tests/interpose/test_static_runtime.py
.PHONY: sanitize
sanitize: cuda ## run the tests of the C code with the sanitizers of gcc; T=… as for test
	@$(MAKE) --no-print-directory native BUILD=build/sanitize \
		CFLAGS="-O1 -g -fno-omit-frame-pointer -DSOFT_CHECKED $(SANITIZE)"
	RANKFOLD_NATIVE="$(CURDIR)/build/sanitize" CFLAGS="$(SANITIZE)" \
	ASAN_OPTIONS=use_sigaltstack=0:detect_leaks=0:allocator_may_return_null=1 \
	UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	$(PYTHON) -m pytest $(IN_PARALLEL) $(if $(T),$(TESTS),$(SANITIZED))

# ---- what keeps the source in order ---------------------------------------------------------

.PHONY: check check-python check-imports check-c check-repository
check: check-python check-imports check-c check-repository ## check lint, types, imports, warnings, rules

check-python: $(VENV_READY)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

check-imports: $(VENV_READY)
	$(VENV)/bin/lint-imports --no-logo

# Programs of the tests and examples are written as users would write them.
C_FILES = $(shell git ls-files --cached --others --exclude-standard '*.[ch]' | grep -v ^tests/programs/)

# Locally in a separate build, because the normal one may contain objects compiled with warnings.
check-c: $(VENV_READY)
	$(call SAY,FMT,all C files) $(VENV)/bin/clang-format --dry-run --Werror $(C_FILES)
	@$(MAKE) --no-print-directory native CI=1 BUILD=$(if $(CI),$(BUILD),build/check)
	@for f in benchmarks/*.c; do \
		$(CC) -fsyntax-only -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -Iinterpose/channel -Iproxy/hal \
			-Iproxy/core $$f || exit; done

check-repository: $(VENV_READY)
	$(PYTHON) -m pytest $(IN_PARALLEL) tests/repository

.PHONY: format
format: $(VENV_READY) ## format the Python and the C source
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format
	$(call SAY,FMT,all C files) $(VENV)/bin/clang-format -i $(C_FILES)

.PHONY: documents
documents: $(VENV_READY) ## write the generated parts of documents
	@$(PYTHON) tools/documents.py

.PHONY: clean
clean: ## remove what was built; what was fetched stays
	rm -rf $(filter-out build/cuda build/criu,$(wildcard build/*)) dist

"""A call that needs a context is refused on a thread that has none; the runtime makes one current.

Which need one is in the documentation that the toolkit's header carries.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankfold.interpose import descriptions, libraries
from support.channel_server import ChannelServer
from support.preloaded import Build, Run

LIBRARY = descriptions.load_library((libraries.API / "cuda.yaml").read_text())
CHECKS = {n: f.check for f in LIBRARY.functions if f.kind != "refuse" for n in f.names}
NOTHING = {
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetExportTable",
}
# Calls that need no current context: their argument is a context, has one, or is an address.
NAMED = re.compile(
    r"cuDevice|cuCtx(Create|Destroy|SetCurrent|GetCurrent|Push|Pop|GetId|GetApi"
    r"|GetDevice_v2|Synchronize_v2)|cuEvent|cuGraphAdd|cuPointerGet"
)
# The documentation does not say that these need a current context, but they do.
OF_CURRENT = {
    "cuCtxGetLimit",
    "cuCtxGetStreamPriorityRange",
    "cuCtxResetPersistingL2Cache",
    "cuProfilerStart",
    "cuProfilerStop",
}

ALL_FAIL = """
static const char *const names[] = {%s};
typedef int (*any)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                   uint64_t, uint64_t, uint64_t, uint64_t);
static int expected;
static void *all_fail(void *unused)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        any f = (any)dlsym(driver, names[i]);
        int error = f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        if (error != expected) {
            fprintf(stderr, "%%s gives %%d, not %%d\\n", names[i], error, expected);
            exit(1);
        }
    }
    return unused;
}
"""


def names_that(check: re.Pattern[str]) -> str:
    return ", ".join(f'"{name}"' for name, needs in CHECKS.items() if check.match(needs))


def test_before_cuinit_nothing_works(build: Build, run: Run, tmp_path: Path) -> None:
    assert {name for name, needs in CHECKS.items() if not needs} == NOTHING
    program = build(
        ALL_FAIL % names_that(re.compile("context"))
        + """
    int main(void)
    {
        int version;
        const char *text;
        expected = NOT_INITIALIZED;
        all_fail(NULL);
        OK(cuDriverGetVersion(&version));
        OK(cuGetErrorName(NOT_INITIALIZED, &text));
        OK(cuInit(0));
        OK(cuDeviceGetCount(&version));
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)


def test_without_a_context_that_lives_all_that_need_one_fail(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        ALL_FAIL % names_that(re.compile("context_needed"))
        + """
    static CUcontext context;
    static pthread_barrier_t step;
    static void *other(void *unused)
    {
        CUcontext now;
        expected = INVALID_CONTEXT;
        all_fail(NULL);
        OK(cuCtxSetCurrent(context));
        pthread_barrier_wait(&step); /* it is destroyed meanwhile */
        pthread_barrier_wait(&step);
        expected = CONTEXT_IS_DESTROYED;
        all_fail(NULL);
        IS(cudaFree(NULL), CONTEXT_IS_DESTROYED);
        OK(cuCtxGetCurrent(&now));
        IS(now, context);
        OK(cuCtxPopCurrent_v2(&now));
        expected = INVALID_CONTEXT;
        return all_fail(unused);
    }
    int main(void)
    {
        pthread_t thread;
        pthread_barrier_init(&step, NULL, 2);
        OK(cuInit(0));
        OK(cuCtxCreate_v2(&context, 0, 0));
        pthread_create(&thread, NULL, other, NULL);
        pthread_barrier_wait(&step);
        OK(cuCtxDestroy_v2(context));
        pthread_barrier_wait(&step);
        pthread_join(thread, NULL);
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)


def test_streams_and_events_bring_their_context(build: Build, run: Run, tmp_path: Path) -> None:
    program = build("""
    static CUstream stream;
    static CUevent event;
    static CUdeviceptr p;
    static void *other(void *unused)
    {
        CUcontext now;
        IS(cuMemsetD8Async(p, 1, 64, NULL), INVALID_CONTEXT);
        IS(cuMemsetD8Async(p, 1, 64, (CUstream)1), INVALID_CONTEXT);
        IS(cuMemsetD8Async_ptsz(p, 1, 64, NULL), INVALID_CONTEXT);
        OK(cuMemsetD8Async(p, 1, 64, stream));
        OK(cuEventRecord(event, stream));
        OK(cuEventSynchronize(event));
        OK(cuEventQuery(event));
        OK(cuStreamSynchronize(stream));
        OK(cuCtxGetCurrent(&now));
        IS(now, NULL);
        return unused;
    }
    int main(void)
    {
        CUcontext context;
        pthread_t thread;
        OK(cuInit(0));
        OK(cuCtxCreate_v2(&context, 0, 0));
        OK(cuStreamCreate(&stream, 0));
        OK(cuEventCreate(&event, 0));
        OK(cuMemAlloc_v2(&p, 4096));
        pthread_create(&thread, NULL, other, NULL);
        pthread_join(thread, NULL);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)


def test_the_runtime_makes_the_primary_context_current(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build("""
    static CUcontext now(void)
    {
        CUcontext context;
        OK(cuCtxGetCurrent(&context));
        return context;
    }
    static void *other(void *primary)
    {
        int device;
        CUcontext own;
        OK(cudaGetDevice(&device));
        IS(now(), NULL);
        OK(cudaFree(NULL));
        IS(now(), primary);
        OK(cuCtxPopCurrent_v2(&own));
        OK(cuCtxCreate_v2(&own, 0, 0));
        OK(cudaFree(NULL));
        IS(now(), own);
        OK(cuCtxDestroy_v2(own));
        return NULL;
    }
    int main(void)
    {
        CUdeviceptr p;
        pthread_t thread;
        int version, count;
        OK(cudaRuntimeGetVersion(&version));
        IS(cuCtxSynchronize(), NOT_INITIALIZED);
        OK(cudaGetDeviceCount(&count)); /* which calls cuInit, as torch.cuda expects */
        IS(cuCtxSynchronize(), INVALID_CONTEXT);
        OK(cuDeviceGetCount(&count));
        OK(cudaDeviceSynchronize());
        OK(cuMemAlloc_v2(&p, 64));
        pthread_create(&thread, NULL, other, now());
        pthread_join(thread, NULL);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)


def test_the_last_release_resets_the_primary_context(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build("""
    static int active(void)
    {
        unsigned flags;
        int value;
        OK(cuDevicePrimaryCtxGetState(0, &flags, &value));
        return value;
    }
    int main(void)
    {
        CUcontext context, again;
        CUdeviceptr p;
        OK(cuInit(0));
        IS(active(), 0);
        IS(cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuDevicePrimaryCtxRetain(&again, 0));
        IS(again, context);
        IS(active(), 1);
        OK(cuCtxSetCurrent(context));
        OK(cuMemAlloc_v2(&p, 64));
        OK(cuDevicePrimaryCtxRelease_v2(0));
        OK(cuMemsetD8_v2(p, 1, 64));
        OK(cuDevicePrimaryCtxRelease_v2(0));
        IS(active(), 0);
        IS(cuMemFree_v2(p), CONTEXT_IS_DESTROYED);
        IS(cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
        OK(cuDevicePrimaryCtxRetain(&again, 0));
        IS(again, context);
        IS(cuMemFree_v2(p), INVALID_VALUE);
        OK(cuMemAlloc_v2(&p, 64));
        OK(cudaSetDevice(0)); /* now the runtime uses it too */
        OK(cuDevicePrimaryCtxRelease_v2(0));
        IS(active(), 1);
        OK(cuMemFree_v2(p));
        OK(cudaDeviceReset());
        IS(active(), 0);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)


def documented() -> dict[str, str]:
    """The return values that the header documents, by function."""
    text = (descriptions.header_folders("cuda")[0] / "cuda.h").read_text()
    pattern = r"/\*\*((?:(?!\*/).)*)\*/\s*(?:__CUDA_DEPRECATED\s+)?CUresult CUDAAPI (\w+)\("
    found = re.findall(pattern, text, re.DOTALL)
    return {name: comment.partition("\\return")[2] for comment, name in found}


@pytest.mark.cuda_headers("cuda")
def test_they_are_the_ones_that_are_documented_to() -> None:
    says, compared = documented(), 0
    for function in LIBRARY.functions:
        forms = (function.name, re.sub(r"_v\d$", "", function.name))
        returns = next((says[f] for f in forms if f in says), None)
        if function.kind == "refuse" or returns is None:
            continue
        compared += 1
        needs = function.check.startswith("context_needed(")
        if "INVALID_CONTEXT" in returns and not needs:
            brings = "context_needed_for" in function.check or NAMED.match(function.name)
            assert brings, f"{function.name} may be refused without a context"
        if needs and "INVALID_CONTEXT" not in returns:
            assert function.name in OF_CURRENT, f"{function.name} works without a context"
    assert compared > 200

"""The driver API as tinygrad, Numba and Triton use it: contexts, modules, explicit graphs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from support import channel_server as cs
from support.channel_server import MIB, ChannelServer
from support.preloaded import Build, Run

PTX = '".version 8.0\\n.target sm_75\\n.visible .entry k(.param .u64 p, .param .u32 n) { ret; }"'
LAYOUT = struct.pack("<4I", 0, 8, 8, 4)  # offset and bytes of each parameter
NEEDS = struct.pack("<8I", 2, 16, 100, 512, 16, 0, 0, 80)


def serve_kernel(server: ChannelServer, layout: bytes = LAYOUT, needs: bytes = NEEDS) -> None:
    """Every function has that layout and these needs."""

    def function(record: cs.Record) -> tuple[int, bytes]:
        at = cs.OFF_BULK + record.fields("QQI")[2] * cs.BULK_BYTES
        server.map[at : at + len(layout)] = layout
        return 0, needs

    server.replies[cs.FUNCTION_GET] = function
    server.replies[cs.MODULE_LOAD] = lambda _record: (0, bytes(16))


def launches(server: ChannelServer) -> list[tuple[int, ...]]:
    """Grid x, block x, pointer and number of each launch."""
    return [
        (
            r.fields("QQI")[2],
            struct.unpack_from("<I", r.body, 28)[0],
            *struct.unpack_from("<QI", r.body, 56),
        )
        for r in server.of(cs.LAUNCH)
    ]


KERNEL = f"""
static CUmodule module;
static CUfunction k;
static CUdeviceptr p;
static void prepare(void)
{{
    CUcontext context;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, {PTX}));
    OK(cuModuleGetFunction(&k, module, "k"));
    OK(cuMemAlloc_v2(&p, 4096));
}}
"""


def test_both_forms_of_parameters_give_the_same_record(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        KERNEL
        + """
    int main(void)
    {
        prepare();
        int n = 7;
        void *args[] = {&p, &n};
        struct { CUdeviceptr p; int n; } packed = {p, n};
        size_t bytes = 12;
        void *extra[] = {(void *)1, &packed, (void *)2, &bytes, NULL};
        OK(cuLaunchKernel(k, 5, 1, 1, 64, 1, 1, 0, NULL, args, NULL));
        OK(cuLaunchKernel(k, 5, 1, 1, 64, 1, 1, 0, NULL, NULL, extra));
        bytes = 8;
        OK(cuLaunchKernel(k, 5, 1, 1, 64, 1, 1, 0, NULL, NULL, extra));
        IS(cuLaunchKernel(k, 0, 1, 1, 64, 1, 1, 0, NULL, args, NULL), INVALID_VALUE);
        IS(cuLaunchKernel(k, 1, 1, 1, 1024, 1, 1, 0, NULL, args, NULL), INVALID_VALUE);
        IS(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 1 << 20, NULL, args, NULL), INVALID_VALUE);
        IS(cuLaunchKernel((void *)&n, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL), INVALID_HANDLE);
        IS(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, (void *)99, args, NULL), INVALID_HANDLE);
        OK(cuModuleUnload(module));
        IS(cuModuleUnload(module), INVALID_HANDLE);
        IS(cuLaunchKernel(k, 5, 1, 1, 64, 1, 1, 0, NULL, args, NULL), INVALID_HANDLE);
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        serve_kernel(server)
        run(program, launcher=server.path)
        server.drain()
        address = server.of(cs.ALLOC)[0].fields("Q")[0]
        assert launches(server) == [(5, 64, address, 7)] * 2 + [(5, 64, address, 0)]
        assert len(server.of(cs.FUNCTION_GET)) == 1, "the layout is asked for once"


@pytest.mark.parametrize("size", [4096, 4100, 8192, 32764, 32768])
def test_parameters_may_be_as_large_as_cuda_has_them(
    size: int, build: Build, run: Run, tmp_path: Path
) -> None:
    fits = int(size <= 32764)
    program = build(
        KERNEL.replace("OK(cuModuleGetFunction", "found = (cuModuleGetFunction").replace(
            "static CUfunction k;", "static CUfunction k;\nstatic int found;"
        )
        + f"""
    int main(void)
    {{
        static uint8_t all[{size}];
        void *args[] = {{all}};
        prepare();
        if (!{fits}) {{
            IS(found, INVALID_PTX);
            return 0;
        }}
        OK(found);
        for (size_t i = 0; i < sizeof all; i++)
            all[i] = (uint8_t)(i * 7 >> 3);
        OK(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
        return 0;
    }}"""
    )
    with ChannelServer(tmp_path / "s") as server:
        serve_kernel(server, struct.pack("<2I", 0, size), struct.pack("<2I", 1, size) + NEEDS[8:])
        done = run(program, launcher=server.path)
        server.drain()
        sent = [r.body[56 : 56 + size] for r in server.of(cs.LAUNCH)]
        assert sent == [bytes(i * 7 >> 3 & 255 for i in range(size))] * fits
        refusal = f"parameters take {size} bytes, more than CUDA's 32764"
        assert (refusal in done.stderr) == (not fits)


def test_a_functions_needs_give_its_attributes_and_occupancy(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        KERNEL
        + """
    int main(void)
    {
        int value, grid, block;
        size_t offset, bytes;
        prepare();
        OK(cuFuncGetAttribute(&value, 0, k));
        IS(value, 512);
        OK(cuFuncGetAttribute(&value, 1, k));
        IS(value, 100);
        OK(cuFuncGetParamInfo(k, 1, &offset, &bytes));
        IS(offset * 100 + bytes, 804);
        IS(cuFuncGetParamInfo(k, 2, &offset, &bytes), INVALID_VALUE);
        OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, k, 256, 0));
        IS(value, 8);
        OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, k, 256, 40000)); /* of 164 KiB */
        IS(value, 4);
        OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, k, NULL, 0, 0));
        IS(grid * 1000 + block, 16512);
        OK(cuFuncSetAttribute(k, 8, 90000));
        OK(cuFuncGetAttribute(&value, 8, k));
        IS(value, 90000);
        IS(cuFuncSetAttribute(k, 8, 1 << 20), INVALID_VALUE);
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        serve_kernel(server)
        run(program, launcher=server.path)


def test_a_graph_is_replayed_in_order_with_its_own_copy_of_the_parameters(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        KERNEL
        + """
    int main(void)
    {
        CUgraph graph;
        CUgraphExec exec;
        CUgraphNode fill, kernel, copy, foreign = NULL;
        prepare();
        int n = 1;
        void *args[] = {&p, &n};
        CUDA_MEMSET_NODE_PARAMS zero = {p, 64, 0, 4, 16, 1};
        CUDA_KERNEL_NODE_PARAMS run = {k, 3, 1, 1, 32, 1, 1, 0, args, NULL, NULL, NULL};
        CUDA_MEMCPY3D back = {.srcMemoryType = 2, .srcDevice = p, .dstMemoryType = 2,
                              .dstDevice = p + 1024, .WidthInBytes = 64, .Height = 1, .Depth = 1};
        OK(cuGraphCreate(&graph, 0));
        OK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &zero, NULL));
        OK(cuGraphAddKernelNode(&kernel, graph, &fill, 1, &run));
        OK(cuGraphAddMemcpyNode(&copy, graph, &kernel, 1, &back, NULL));
        IS(cuGraphAddEmptyNode(&foreign, graph, &foreign, 1), INVALID_VALUE);
        OK(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
        n = 2;
        OK(cuGraphLaunch(exec, NULL));
        OK(cuGraphExecKernelNodeSetParams(exec, kernel, &run));
        IS(cuGraphExecKernelNodeSetParams(exec, copy, &run), INVALID_VALUE);
        n = 3;
        OK(cuGraphDestroy(graph));
        OK(cuGraphLaunch(exec, NULL));
        OK(cuGraphExecDestroy(exec));
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        serve_kernel(server)
        run(program, launcher=server.path)
        server.drain()
        work = [r.opcode for r in server.records if r.opcode in (cs.FILL, cs.LAUNCH, cs.COPY)]
        assert work == [cs.FILL, cs.LAUNCH, cs.COPY] * 2
        assert [launch[3] for launch in launches(server)] == [1, 2]


def test_contexts_follow_the_thread_and_choose_its_device(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build("""
    int main(void)
    {
        CUcontext first, second, now;
        CUdevice device;
        OK(cuInit(0));
        IS(cuDeviceGet(&device, 2), INVALID_DEVICE);
        OK(cuCtxGetCurrent(&now));
        IS(now, NULL);
        IS(cuCtxGetDevice(&device), INVALID_CONTEXT);
        OK(cuDevicePrimaryCtxRetain(&first, 0));
        OK(cuDevicePrimaryCtxRetain(&second, 1));
        OK(cuCtxPushCurrent_v2(first));
        OK(cuCtxPushCurrent_v2(second));
        OK(cuCtxGetDevice(&device));
        IS(device, 1);
        OK(cuCtxPopCurrent_v2(&now));
        IS(now, second);
        OK(cuCtxGetDevice(&device));
        IS(device, 0);
        OK(cuCtxPopCurrent_v2(&now));
        IS(cuCtxPopCurrent_v2(&now), INVALID_CONTEXT);
        IS(cuCtxSetCurrent((CUcontext)&device), INVALID_CONTEXT);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)
        assert server.greetings == [0]


def test_pinned_memory_is_reached_by_both_sides_and_comes_back(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build("""
    int main(void)
    {
        char *a, *b, *c;
        void *device;
        cudaPointerAttributes facts;
        OK(cudaMallocHost((void **)&a, 5000));
        OK(cudaHostAlloc((void **)&b, 3 << 20, 2));
        memset(b, 7, 3 << 20);
        IS((uint64_t)a, RF_PINNED_BASE(0));
        IS(b - a, 8192);
        OK(cudaHostGetDevicePointer(&device, b, 0));
        IS(device, b);
        OK(cudaPointerGetAttributes(&facts, b + 100));
        IS(facts.type, MEMORY_HOST);
        OK(cudaPointerGetAttributes(&facts, &facts));
        IS(facts.type, MEMORY_UNREGISTERED);
        OK(cudaMemcpyAsync(b, a, 5000, BY_ADDRESS, 0));
        IS(cudaFreeHost(b + 4096), INVALID_VALUE);
        OK(cudaFreeHost(a));
        OK(cudaFreeHost(b));
        OK(cudaMallocHost((void **)&c, 4 << 20));
        IS(c, a);
        IS(c[8192], 0);
        OK(cudaHostRegister(&facts, sizeof facts, 0));
        IS(cudaHostRegister(&facts, 1, 0), ALREADY_REGISTERED);
        OK(cudaHostUnregister(&facts));
        IS(cudaHostUnregister(&facts), NOT_REGISTERED);
        IS(cudaHostAlloc((void **)&c, (size_t)1 << 40, 0), OUT_OF_MEMORY);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s", memory=8 * MIB) as server:
        run(program, launcher=server.path)

"""Programs built with an older CUDA find that version's functions, structures and numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.channel_server import ChannelServer
from support.preloaded import Build, Run

LINKED = {11: "libcudart.so.11.0", 12: "libcudart.so.12"}
# Functions by the name that they have in an older library.
OLDER = """
cudaError_t properties_11(void *, int) __asm__("cudaGetDeviceProperties");
cudaError_t properties_12(void *, int) __asm__("cudaGetDeviceProperties_v2");
cudaError_t pointer_12(void *, const void *) __asm__("cudaPointerGetAttributes");
cudaError_t advise_12(const void *, size_t, int, int) __asm__("cudaMemAdvise");
cudaError_t prefetch_12(const void *, size_t, int, void *) __asm__("cudaMemPrefetchAsync");
cudaError_t edges_12(void *, void **, void **, size_t *) __asm__("cudaGraphGetEdges");
cudaError_t depend_12(void *, void **, void **, size_t) __asm__("cudaGraphAddDependencies");
cudaError_t needs_12(void *, void **, size_t *) __asm__("cudaGraphNodeGetDependencies");
cudaError_t captured_12(void *, int *, unsigned long long *, void **, void ***, size_t *)
	__asm__("cudaStreamGetCaptureInfo_v2");
cudaError_t update_11(void *, void *, void **, int *) __asm__("cudaGraphExecUpdate");
cudaError_t instantiate_11(void **, void *, void **, char *, size_t)
	__asm__("cudaGraphInstantiate");
_Static_assert(sizeof(cudaDeviceProp_12) == 1032, "as in CUDA 12");
_Static_assert(offsetof(cudaDeviceProp_12, hostRegisterSupported) == 728, "as in CUDA 11");
_Static_assert(sizeof(cudaPointerAttributes_12) == 24, "as in CUDA 12");
_Static_assert(sizeof(cudaFuncAttributes_11) == 56, "as in CUDA 11");
"""


def program(build: Build, body: str, cuda: int = 12) -> Path:
    return build(f"{OLDER}int main(void)\n{{{body}}}\n", link=(), args=(f"-l:{LINKED[cuda]}",))


@pytest.mark.parametrize(("cuda", "number"), [(11, 11080), (12, 12040)])
def test_each_version_reports_its_number(build: Build, run: Run, cuda: int, number: int) -> None:
    """Several versions work in one process, however they are found."""
    binary = program(
        build,
        f"""
        const char *names[] = {{"libcudart.so.11.0", "libcudart.so.12", "/nowhere/libcudart.so.12",
                                "libcudart.so.13", "libcudart.so"}};
        int version, numbers[] = {{11080, 12040, 12040, 13000, 13000}};
        OK(cudaRuntimeGetVersion(&version));
        IS(version, {number});
        for (int i = 0; i < 5; i++) {{
            int (*get)(int *) = (void *)dlsym(dlopen(names[i], RTLD_NOW), "cudaRuntimeGetVersion");
            OK(get(&version));
            IS(version, numbers[i]);
        }}
        OK(((int (*)(int *))dlvsym(dlopen("libcudart.so.12", RTLD_NOW), "cudaRuntimeGetVersion",
                                   "libcudart.so.12"))(&version));
        IS(version, 12040);
        size_t (*blas)(void) =
            (void *)dlsym(dlopen("libcublasLt.so.{cuda}", RTLD_NOW), "cublasLtGetVersion");
        IS(blas() / 10000, {cuda});
        OK(cudaDriverGetVersion(&version));
        IS(version, 13000);
        return 0;
        """,
        cuda,
    )
    assert run(binary).stderr == ""


def test_structures_have_their_older_sizes(build: Build, run: Run, tmp_path: Path) -> None:
    binary = program(
        build,
        """
        union { cudaDeviceProp_12 p; unsigned char bytes[2000]; } older, oldest;
        cudaDeviceProp newer;
        int (*get)(void *, int) =
            (void *)dlsym(dlopen("libcudart.so.13", RTLD_NOW), "cudaGetDeviceProperties");
        memset(&older, 0x5a, sizeof older);
        memset(&oldest, 0x5a, sizeof oldest);
        OK(get(&newer, 1));
        OK(properties_12(&older, 1));
        OK(properties_11(&oldest, 1));
        IS(memcmp(&older, &oldest, 728), 0);
        for (int i = 728; i < 2000; i++) {
            IS(oldest.bytes[i], 0x5a);
            IS(i < 1032 || older.bytes[i] == 0x5a, 1);
        }
        IS(strcmp(older.p.name, newer.name), 0);
    #define SAME(member) IS(memcmp(&older.p.member, &newer.member, sizeof newer.member), 0)
        SAME(uuid); SAME(totalGlobalMem); SAME(maxGridSize); SAME(totalConstMem); SAME(major);
        SAME(multiProcessorCount); SAME(canMapHostMemory); SAME(pciBusID); SAME(asyncEngineCount);
        SAME(l2CacheSize); SAME(maxThreadsPerMultiProcessor); SAME(sharedMemPerMultiprocessor);
        SAME(regsPerMultiprocessor); SAME(managedMemory); SAME(cooperativeLaunch);
        SAME(sharedMemPerBlockOptin); SAME(reservedSharedMemPerBlock); SAME(memoryPoolsSupported);
        int khz;
        OK(cudaDeviceGetAttribute(&khz, 13, 1));
        IS(older.p.clockRate, khz);
        IS(properties_12(NULL, 0), INVALID_VALUE);
        IS(cudaGetLastError(), INVALID_VALUE);

        unsigned char attributes[32];
        memset(attributes, 0x5a, sizeof attributes);
        OK(pointer_12(attributes, &khz));
        IS(((cudaPointerAttributes_12 *)attributes)->hostPointer, &khz);
        IS(attributes[24], 0x5a);
        return 0;
        """,
    )
    with ChannelServer(tmp_path / "s") as server:
        assert run(binary, launcher=server.path).stderr == ""


def test_functions_take_their_older_parameters(build: Build, run: Run, tmp_path: Path) -> None:
    binary = program(
        build,
        """
        void *graph, *nodes[2], *from[2], *to[2], *stream, *captured, **tails;
        int status, device = 0;
        unsigned long long id;
        size_t count = 2;
        OK(cudaGraphCreate(&graph, 0));
        OK(cudaGraphAddEmptyNode(&nodes[0], graph, NULL, 0));
        OK(cudaGraphAddEmptyNode(&nodes[1], graph, NULL, 0));
        OK(depend_12(graph, &nodes[0], &nodes[1], 1));
        OK(edges_12(graph, from, to, &count));
        IS(count == 1 && from[0] == nodes[0] && to[0] == nodes[1], 1);
        count = 2;
        OK(needs_12(nodes[1], from, &count));
        IS(count == 1 && from[0] == nodes[0], 1);

        OK(cudaStreamCreate(&stream));
        OK(cudaStreamBeginCapture(stream, 0));
        OK(captured_12(stream, &status, &id, &captured, &tails, &count));
        IS(status == 1 && captured != NULL && count == 0, 1);
        OK(cudaStreamEndCapture(stream, &captured));

        void *managed;
        OK(cudaMallocManaged(&managed, 4096, 1));
        OK(advise_12(managed, 4096, 1, device));
        OK(prefetch_12(managed, 4096, device, NULL));
        IS(prefetch_12(managed, 4096, 99, NULL), INVALID_DEVICE);
        return 0;
        """,
    )
    with ChannelServer(tmp_path / "s") as server:
        assert run(binary, launcher=server.path).stderr == ""


def test_graphs_take_the_parameters_of_cuda_11(build: Build, run: Run, tmp_path: Path) -> None:
    binary = program(
        build,
        """
        void *graph, *node, *exec, *wrong = &graph;
        int result = 99;
        OK(cudaGraphCreate(&graph, 0));
        OK(cudaGraphAddEmptyNode(&node, graph, NULL, 0));
        OK(instantiate_11(&exec, graph, &wrong, NULL, 0));
        OK(update_11(exec, graph, &wrong, &result));
        IS(result, 0);
        return 0;
        """,
        cuda=11,
    )
    with ChannelServer(tmp_path / "s") as server:
        assert run(binary, launcher=server.path).stderr == ""


def test_libraries_of_which_nothing_is_served_refuse_by_name(build: Build, run: Run) -> None:
    """A program that needs them starts, with all of its symbols bound."""
    binary = build(
        """
        int cufftPlan1d(int *, int, int, int), curandCreateGenerator(void **, int);
        int cusparseCreate(void **), cusparseLtInit(void *), cusolverDnCreate(void **);
        int cuptiSubscribe(void **, void *, void *), cudnnCreateAttnDescriptor(void **);
        long cuFileRead(void *, void *, size_t, long, long);
        size_t cudnnGetVersion(void);
        const char *cudnnGetErrorString(int), *cusparseGetErrorString(int);
        int main(void)
        {
            void *handle;
            int plan;
            IS(cufftPlan1d(&plan, 8, 0x29, 1), 16);
            IS(cufftPlan1d(&plan, 8, 0x29, 1), 16);
            IS(curandCreateGenerator(&handle, 100), 204);
            IS(cusparseCreate(&handle), 10);
            IS(cusparseLtInit(&handle), 10);
            IS(cusolverDnCreate(&handle), 9);
            IS(cuptiSubscribe(&handle, NULL, NULL), 27);
            IS(cuFileRead(NULL, NULL, 1, 0, 0), -5007);
            IS(cudnnCreateAttnDescriptor(&handle), 3000);
            IS(cudnnGetVersion() / 10000, 9);
            IS(strstr(cudnnGetErrorString(3000), "not supported") != NULL, 1);
            IS(strstr(cusparseGetErrorString(10), "not supported") != NULL, 1);
            IS(strstr(cusparseGetErrorString(10), "on the CPU") != NULL, 1);
            return 0;
        }
        """,
        link=("cufft", "curand", "cusparse", "cusparseLt", "cusolver", "cupti", "cufile", "cudnn"),
        args=("-Wl,-z,now",),
    )
    first, *lines = run(binary).stderr.splitlines()
    assert "no device" in first  # cuFFT and cuSOLVER may be served by one
    with_remedy = {line.split(":")[1].strip() for line in lines if "on the CPU" in line}
    assert with_remedy == {
        "cufftPlan1d",
        "curandCreateGenerator",
        "cusparseCreate",
        "cusolverDnCreate",
    }
    assert [line.split(":")[1].strip() for line in lines] == [
        "cufftPlan1d",
        "curandCreateGenerator",
        "cusparseCreate",
        "cusparseLtInit",
        "cusolverDnCreate",
        "cuptiSubscribe",
        "cuFileRead",
        "cudnnCreateAttnDescriptor",
    ]

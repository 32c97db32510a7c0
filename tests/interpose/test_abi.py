"""Our idea of NVIDIA's interfaces agrees with NVIDIA's headers, prototype by prototype."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rankfold.interpose import descriptions, generate, headers, libraries
from support.preloaded import CLIENT, LIB

LOOKED_UP_SINCE = 11030  # cuGetProcAddress is so old
HEADERS = descriptions.header_folders()
NVML = descriptions.header_folders("nvml")
pytestmark = pytest.mark.cuda_headers

STRUCTURES = {
    "cudaDeviceProp": "uuid luidDeviceNodeMask totalGlobalMem warpSize memPitch maxGridSize major "
    "textureAlignment canMapHostMemory surfaceAlignment concurrentKernels asyncEngineCount "
    "maxThreadsPerMultiProcessor sharedMemPerMultiprocessor managedMemory sharedMemPerBlockOptin "
    "maxBlocksPerMultiProcessor reservedSharedMemPerBlock memoryPoolSupportedHandleTypes "
    "clusterLaunch hostNumaId gpuPciDeviceID hostNumaMultinodeIpcSupported reserved",
    "cudaPointerAttributes": "type device devicePointer hostPointer",
    "cudaFuncAttributes": "sharedSizeBytes localSizeBytes maxThreadsPerBlock numRegs ptxVersion "
    "maxDynamicSharedSizeBytes preferredShmemCarveout nonPortableClusterSizeAllowed",
    "cudaLaunchConfig_t": "gridDim blockDim dynamicSmemBytes stream attrs numAttrs",
    "CUlaunchConfig": "gridDimX blockDimZ sharedMemBytes hStream attrs numAttrs",
    "CUDA_MEMCPY2D": "srcXInBytes srcMemoryType srcHost srcDevice srcPitch dstY dstPitch Height",
    "CUDA_MEMCPY3D": "srcLOD srcMemoryType srcHeight dstXInBytes dstDevice dstHeight Depth",
    "CUDA_MEMCPY3D_PEER": "srcLOD srcMemoryType srcHeight dstXInBytes dstDevice dstHeight Depth",
    "CUDA_KERNEL_NODE_PARAMS": "func gridDimX sharedMemBytes kernelParams extra kern ctx",
    "CUDA_MEMSET_NODE_PARAMS": "dst pitch value elementSize width height",
    "CUDA_HOST_NODE_PARAMS": "fn userData",
    "cudaMemcpy3DParms": "srcPos srcPtr dstArray dstPos dstPtr extent kind",
    "cudaMemcpy3DPeerParms": "srcPos srcPtr srcDevice dstArray dstPos dstPtr dstDevice extent",
    "cudaPitchedPtr": "ptr pitch xsize ysize",
    "cudaMemcpyAttributes": "srcAccessOrder srcLocHint dstLocHint flags",
    "cudaMemcpy3DOperand": "type op.ptr.ptr op.ptr.rowLength op.ptr.layerHeight op.array.offset",
    "cudaMemcpy3DBatchOp": "src dst extent srcAccessOrder flags",
    "CUmemcpyAttributes": "srcAccessOrder srcLocHint dstLocHint flags",
    "CUDA_MEMCPY3D_BATCH_OP": "src dst src.op.ptr.layerHeight src.op.array.offset extent flags",
    "cudaExtent": "width height depth",
    "cudaChannelFormatDesc": "x y z w f",
    "cudaKernelNodeParams": "func gridDim blockDim sharedMemBytes kernelParams extra",
    "cudaMemsetParams": "dst pitch value elementSize width height",
    "cudaHostNodeParams": "fn userData",
    "CUgraphEdgeData": "from_port to_port type reserved",
    "CUgraphNodeParams": "type kernel memcpy.copyParams memset.ctx host.userData graph.ownership "
    "eventWait eventRecord reserved2",
    "cudaGraphNodeParams": "type kernel.extra memcpy.copyParams memset host graph.ownership "
    "eventWait eventRecord reserved2",
    "CUDA_GRAPH_INSTANTIATE_PARAMS": "flags hUploadStream hErrNode_out result_out",
    "CUlaunchAttributeValue": "accessPolicyWindow.hitRatio accessPolicyWindow.hitProp "
    "accessPolicyWindow.missProp syncPolicy priority memSyncDomain memSyncDomainMap.remote",
    "CUgraphExecUpdateResultInfo": "result errorNode errorFromNode",
    "CUdevprop": "maxThreadsDim sharedMemPerBlock SIMDWidth regsPerBlock textureAlign",
    "cudaMemPoolProps": "allocType handleTypes location win32SecurityAttributes maxSize usage",
    "cudaMemAccessDesc": "location flags",
    "CUmemPoolProps": "allocType handleTypes location win32SecurityAttributes maxSize usage",
    "nvmlMemory_t": "total free used",
    "nvmlMemory_v2_t": "version total reserved free used",
    "nvmlPciInfo_t": "busIdLegacy domain bus device pciDeviceId pciSubSystemId busId",
    "nvmlProcessInfo_v1_t": "pid usedGpuMemory",
    "nvmlProcessInfo_t": "pid usedGpuMemory gpuInstanceId computeInstanceId",
    "nvmlFieldValue_t": "fieldId scopeId timestamp latencyUsec valueType nvmlReturn value",
}


def output(folder: Path, name: str, text: str, *include: Path) -> str:
    source, program = folder / f"{name}.cpp", folder / name
    source.write_text(text)
    command = ["g++", "-w", "-o", str(program), str(source), *(f"-I{path}" for path in include)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_structures_have_the_layout_of_the_headers(tmp_path: Path) -> None:
    lines = [
        f'printf("{name} %zu\\n", sizeof({name}));'
        + "".join(f'printf("  {m} %zu\\n", offsetof({name}, {m}));' for m in members.split())
        for name, members in STRUCTURES.items()
    ]
    lines.append('printf("attribute %zu %zu\\n", sizeof(ATTRIBUTE), offsetof(ATTRIBUTE, VALUE));')
    body = "#include <cstdio>\n#include <cstddef>\nint main() {\n" + "\n".join(lines) + "\n}\n"
    ours = '#include "abi.h"\n#define ATTRIBUTE launch_attribute\n#define VALUE value\n' + body
    ours = ours.replace("#include", "#define _Alignas alignas\n#include", 1)
    theirs = "#include <cuda.h>\n#include <cuda_runtime_api.h>\n#include <nvml.h>\n"
    theirs += "#define ATTRIBUTE CUlaunchAttribute\n#define VALUE value\n" + body
    expected = output(tmp_path, "theirs", theirs, *HEADERS[:1], *NVML[:1])
    assert output(tmp_path, "ours", ours, CLIENT / "base") == expected


def test_versions_agree_with_the_headers() -> None:
    """cudaTypedefs.h names the version in a type for each form of a driver's function."""
    text = (HEADERS[0] / "cudaTypedefs.h").read_text()
    typed: dict[str, set[int]] = {}
    for name, version in re.findall(r"\bPFN_(cu\w+?)_v(\d+)\b", text):
        typed.setdefault(name, set()).add(int(version))
    description = (libraries.API / "cuda.yaml").read_text()
    checked = 0
    for function in descriptions.load_library(description).functions:
        versions = typed.get(re.sub(r"_v\d$", "", function.name), set())
        young = len(versions) == 1 and max(versions) > LOOKED_UP_SINCE
        if young or (function.since and versions):
            assert function.since in versions, function.name
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("library, least", [("cudart", 200), ("cuda", 200), ("nvml", 80)])
def test_prototypes_agree_with_the_headers(tmp_path: Path, library: str, least: int) -> None:
    """One source file with both declarations of every function: C++ refuses a conflict."""
    folder, header = descriptions.header_folders(library)[0], headers.FILES[library]
    text = (libraries.API / f"{library}.yaml").read_text()
    described = descriptions.load_library(text)
    real = (folder / header).read_text(errors="replace")
    functions = [f for f in described.functions if f.parameters is not None]
    lines = [f"#undef {f.name}" for f in functions]
    lines += [f"{generate.prototype(f, f.name)};" for f in functions]
    assert len(lines) > least and any(re.search(rf"\b{f.name}\(", real) for f in functions)
    source = tmp_path / "both.cpp"
    source.write_text(f'#include <{header}>\nextern "C" {{\n' + "\n".join(lines) + "\n}\n")
    command = [
        "g++",
        "-fsyntax-only",
        "-w",
        "-DNVML_NO_UNVERSIONED_FUNC_DEFS",
        f"-I{folder}",
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("language, standard", [("c", "c11"), ("c++", "c++17")])
def test_our_headers_compile_in_both_languages(
    tmp_path: Path, language: str, standard: str
) -> None:
    source = tmp_path / "uses_nccl"
    source.write_text("""
    #include <nccl.h>
    #include <cublas_v2.h>
    #include <cublasLt.h>
    int main(void)
    {
        cublasHandle_t blas;
        cublasLtMatmulDescOpaque_t desc;
        float one = 1;
        cublasCreate(&blas);
        cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_T, 1, 1, 1, &one, 0, 1, 0, 1, &one, 0, 1);
        cublasSgemm_64(blas, CUBLAS_OP_N, CUBLAS_OP_T, 1, 1, 1, &one, 0, 1, 0, 1, &one, 0, 1);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclComm_t comm = NCCL_COMM_NULL;
        ncclUniqueId id;
        config.blocking = 1;
        ncclGetUniqueId(&id);
        ncclCommInitRankConfig(&comm, 1, id, 0, &config);
        return ncclAllReduce(0, 0, 0, ncclBfloat16, ncclAvg, comm, 0) == ncclSuccess ? 0 : 1;
    }""")
    command = [
        "g++" if language == "c++" else "gcc",
        "-x",
        language,
        f"-std={standard}",
        "-Wall",
        "-Werror",
        f"-I{HEADERS[0]}",
        f"-I{LIB.parent / 'include'}",
        str(source),
        "-o",
        str(tmp_path / "program"),
        f"-L{LIB}",
        "-lnccl",
        "-lcublas",
        "-lcublasLt",
        f"-Wl,-rpath-link,{LIB}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

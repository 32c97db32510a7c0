"""Calls behave on the specification's terms, which programs show, each for one group of calls.

The programs check themselves. Two ranks run each on one device; in its middle both are moved to
another. Their output must not depend on the rank.
"""

from __future__ import annotations

import re
from pathlib import Path

import cuda
import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State
from support.wheels import nvrtc

SLOW = pytest.mark.slow  # they need most of their time to be compiled
PROGRAMS = [
    "contexts",
    "copies",
    "expandable",
    "first_launch",
    "graph_nodes",
    "managed",
    "parameters",
    "virtual_memory",
    pytest.param("device_facts", marks=SLOW),
    pytest.param("fills", marks=SLOW),
    pytest.param("occupancy", marks=SLOW),
    pytest.param("threads", marks=SLOW),
    pytest.param("timing", marks=SLOW),
]

REFUSALS = [
    "cudaIpcGetMemHandle: sharing device memory between processes (use NCCL between ranks) is",
    "cudaIpcOpenMemHandle: sharing device memory between processes (use NCCL",
    "cudaIpcCloseMemHandle: sharing device memory between processes (use NCCL",
    "events shared between processes are not supported by rankfold: use NCCL",
    "cudaIpcGetEventHandle: sharing events between processes (use NCCL between ranks) is",
    "cudaIpcOpenEventHandle: sharing events between processes (use NCCL",
    "cuIpcGetMemHandle: sharing device memory between processes (use NCCL",
    "a part of a piece of memory that is mapped without the rest is not supported by rankfold",
    "a piece of memory that is mapped at two addresses is not supported by rankfold: allocate",
    "cuMemExportToShareableHandle: sharing device memory between processes (use NCCL between",
    *(
        f"cuMulticast{name}: memory of several devices at one address (use NCCL between ranks) is"
        for name in ("Create", "AddDevice", "BindMem", "BindAddr", "Unbind", "GetGranularity")
    ),
    "cuGreenCtxCreate: a context with a part of the device (use cuDevicePrimaryCtxRetain) is",
    *(
        f"cuGreenCtx{name}: not supported by rankfold"
        for name in (
            "Destroy",
            "GetDevResource",
            "GetId",
            "RecordEvent",
            "WaitEvent",
            "StreamCreate",
        )
    ),
    *(
        f"{name}: a context with a part of the device (use cuDevicePrimaryCtxRetain) is"
        for name in (
            "cuCtxFromGreenCtx",
            "cuCtxGetDevResource",
            "cuDeviceGetDevResource",
            "cuDevResourceGenerateDesc",
            "cuDevSmResourceSplitByCount",
        )
    ),
    "cudaMallocArray: arrays and textures (let kernels read linear memory) are not supported",
    "cudaMalloc3DArray: arrays and textures (let kernels",
    "cuArrayCreate_v2: arrays and textures (let kernels",
    "cudaCreateTextureObject: arrays and textures (let kernels",
    "cudaCreateSurfaceObject: arrays and surfaces (let kernels write",
    "already and cannot use device",
    "a copy between two devices: a rank has one device under rankfold; use NCCL",
    "cudaGraphAddMemAllocNode: memory of a graph (allocate it before, free it after its",
    "cudaGraphAddMemFreeNode: memory of a graph (allocate it before, free it after its",
    "cudaGraphConditionalHandleCreate: conditional nodes of graphs (decide on the host, between",
    "graph nodes of type 13 are not supported by rankfold",
    "a child graph that is moved into its parent is not supported by rankfold: let it be cloned",
    "graphs that kernels launch are not supported by rankfold",
    "a capture that frees memory which no capture has allocated is not supported by rankfold: free",
    "copies of CUDA arrays are not supported by rankfold: use linear memory",
    "cuCtxCreate: contexts with execution affinity or for graphics are not supported by",
    "kernel stops_for_a_debugger: the instruction 'brkpt' is not supported by the software",
]


def run_and_move(
    state: State,
    program: Path,
    name: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    patience_s: float = 90,
) -> RunningJob:
    """The job, over: two ranks on one device, moved to another when both are half through."""
    told = state.folder / "go-on"
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        job = fleet.start(name, [str(program), str(told), *arguments], [0, 0], env)

        def half_through() -> bool:
            ended = any(job.exit_status(rank) is not None for rank in (0, 1))
            return ended or all("half\n" in job.output(rank) for rank in (0, 1))

        until(half_through, patience_s, f"{name} is half through")
        for rank in (0, 1):
            assert job.exit_status(rank) is None, job.errors(rank)
        job.move([fleet.names[1], fleet.names[1]])
        told.touch()
        statuses = job.wait()
        assert statuses == [0, 0], job.errors(0) + job.errors(1)
        job.detach(discard=True)
    return job


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("legacy", marks=SLOW), "per-thread"])
def test_the_default_stream_follows_the_compiler_s_option(kind: str, state: State) -> None:
    program = cuda.build(cuda.PROGRAMS / "default_streams.cu", args=["--default-stream", kind])
    job = run_and_move(state, program, f"default-{kind}", kind)
    assert [job.errors(rank) for rank in (0, 1)] == ["", ""]


@pytest.mark.usual("daemon-lines4")
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "host_calls",
            [
                "a host function (cudaLaunchHostFunc",
                "an address outside of device memory (NULL, or a host pointer?); this and"
                " all later calls fail (cudaErrorIllegalAddress)",
            ],
        ),
        ("registered", ["consists of whole pages: align its address and size"]),
        ("refused", REFUSALS),
        ("forks", ["a child made by fork cannot use the device"] * 2),  # two children
        ("daemon", ["the first process of the rank has exited with 0; the rank continues in"]),
    ],
)
def test_forbidden_calls_are_reported(name: str, lines: list[str], state: State) -> None:
    program = cuda.build(cuda.PROGRAMS / f"{name}.cu")
    job = run_and_move(state, program, name.replace("_", "-"))
    for rank in (0, 1):
        said = job.errors(rank).splitlines()
        assert len(said) == len(lines) and all(map(str.count, said, lines)), said


@pytest.mark.usual("first_launch", "managed", "expandable")
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_specified_folded_and_moved(name: str, state: State) -> None:
    program = cuda.build(cuda.PROGRAMS / f"{name}.cu")
    job = run_and_move(state, program, name.replace("_", "-"))
    assert job.output(0) == job.output(1)
    assert job.output(0).startswith("half\n") or "\nhalf\n" in job.output(0)
    assert [job.errors(rank) for rank in (0, 1)] == ["", ""]


def test_a_fault_is_said_once_and_where(state: State) -> None:
    job = run_and_move(state, cuda.build(cuda.PROGRAMS / "errors.cu"), "errors")
    (address,), (assertion,) = (job.errors(rank).splitlines() for rank in (0, 1))
    assert "put" in address and "(cudaErrorIllegalAddress)" in address
    found = re.fullmatch(
        r"rankfold: /.*errors.cu:\d+: void claim.* = 39\]: block: \[250,0,0\], thread: \[1,0,0\]"
        r' Assertion `place != wrong && "a message.* of 80"` failed\. \(kernel (_Z5claim.*)\);'
        r" this and all later calls fail \(cudaErrorAssert\)",
        assertion,
    )
    assert found and len(found[0]) > 1000


@pytest.mark.slow
def test_kernels_that_the_program_compiles_itself(state: State) -> None:
    program = cuda.build(cuda.PROGRAMS / "libraries.cu", args=["-ldl"])
    env = {"LD_LIBRARY_PATH": nvrtc(state.folder / "nvrtc")}
    job = run_and_move(state, program, "libraries", env=env)
    for rank in (0, 1):
        assert set(job.errors(rank).splitlines()) == {
            "rankfold: thread block clusters are not supported by rankfold on this device",
            "rankfold: a module cannot be loaded: a brace is not closed",
            "rankfold: a module is neither a fatbin nor PTX, so it cannot be loaded",
        }


@SLOW
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ["compute_75", "compute_80"])
def test_nvidias_own_algorithms(arch: str, state: State) -> None:
    """Some 50 kernels of Thrust, CUB and cooperative groups, which differ by architecture."""
    source = cuda.PROGRAMS / "parallel_algorithms.cu"
    program = cuda.build(source, args=[f"-arch={arch}"])
    job = run_and_move(state, program, "algorithms", patience_s=400)
    assert [job.errors(rank) for rank in (0, 1)] == ["", ""]

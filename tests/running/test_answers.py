"""Odd calls get CUDA's answers: those of NVIDIA's own libraries, which were asked on a GPU.

tests/programs/answers.txt is what answers.cu printed on an H200 without rankfold (driver
580.159.04, CUDA 13.0). `make gpu-check` asks again.
"""

from __future__ import annotations

import cuda
import pytest

from support.fleet import Fleet, MiB
from support.leaks import State

ANSWERS = cuda.PROGRAMS / "answers.txt"

# Lines in which rankfold differs from plain CUDA, and why.
OTHERWISE = (
    # All allocation functions refuse zero bytes.
    "cudaMallocManaged(&p, 0): cudaErrorInvalidValue",
    # A null pointer is no kernel.
    "cudaLaunchKernel(nullptr, 1, 1, args, 0, 0): cudaErrorInvalidResourceHandle",
    # An H200's multiprocessor has 2048 threads, that of the default device 1536.
    "blocks of more than the bound: 9",
    # A graph's copy reads pageable memory in its turn; NVIDIA's reads small ones at the launch.
    *(
        f"launch {k} of a graph copies {bytes} bytes that end with {end}"
        for bytes in (4, 65532, 65540, 1048576)
        for k, end in ((0, 42), (1, 1082))
    ),
    "ncclAllReduce(nullptr, data, 4, ncclInt, ncclSum, comm, 0): ncclInvalidArgument",
    "cuMemHostAlloc((void **)&at, 0, 0): CUDA_ERROR_INVALID_VALUE",
    'cuModuleGetGlobal(&at, &bytes, module, "put"): CUDA_ERROR_NOT_FOUND',
    'cuModuleGetGlobal(nullptr, nullptr, module, "seen"): CUDA_SUCCESS',
    # Bytes behind the last parameter are ignored.
    *(
        f"{bytes} bytes of 12: cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, nullptr, extra): "
        "CUDA_SUCCESS"
        for bytes in (16, 24)
    ),
)


@pytest.mark.slow
def test_odd_calls_get_the_answers_of_a_gpu(state: State) -> None:
    with Fleet(state, memory=256 * MiB) as fleet:
        job = fleet.start("answers", [str(cuda.build(cuda.PROGRAMS / "answers.cu"))], [0])
        assert job.wait() == [0], job.errors(0)
    pairs = zip(ANSWERS.read_text().splitlines(), job.output(0).splitlines(), strict=True)
    assert tuple(here for there, here in pairs if here != there) == OTHERWISE

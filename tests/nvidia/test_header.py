"""proxy/hal/nvidia/driver.h says of the driver what NVIDIA's header says, and blas.h of cuBLASLt
what our description says, which tests/interpose/test_cublas_header.py compares with NVIDIA's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import cuda
import pytest

from rankfold.paths import REPOSITORY

HEADER = REPOSITORY / "proxy/hal/nvidia/driver.h"
TYPES = (
    "CUmemLocation",
    "CUmemAllocationProp",
    "CUmemAccessDesc",
    "CUDA_MEMCPY2D",
    "CUlaunchConfig",
    "CUlaunchAttribute",
    "CUlaunchAttributeValue",
    "CUdeviceptr",
    "CUmemGenericAllocationHandle",
    "CUdevice",
    "CUresult",
    "cuuint64_t",
)


@pytest.fixture(scope="session")
def include() -> Path:
    """The folder in which the compiler of CUDA programs has cuda.h."""
    nvcc = subprocess.run([cuda.NVCC, "--print-path"], capture_output=True, text=True, check=True)
    done = subprocess.run(
        [nvcc.stdout.strip(), "-x", "cu", "-M", "-"],
        input="#include <cuda.h>\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(re.search(r"\S+/cuda\.h", done.stdout)[0]).parent  # type: ignore[index]


def ours() -> str:
    """The header without its list of calls."""
    return HEADER.read_text().split("/* X(name")[0]


def run(tmp_path: Path, source: str, include: Path, real: bool) -> str:
    file = tmp_path / f"{'real' if real else 'ours'}.c"
    begin = "#include <stdio.h>\n" + ("#include <cuda.h>\n" if real else "")
    file.write_text(f'{begin}#include "{HEADER}"\n{source}')
    command: list[str | Path] = [
        "gcc",
        "-std=gnu11",
        "-Wall",
        "-Werror",
        f"-I{include}",
        file,
        "-o",
        tmp_path / "a",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return subprocess.run([tmp_path / "a"], capture_output=True, text=True, check=True).stdout


def test_every_call_has_the_headers_prototype(tmp_path: Path, include: Path) -> None:
    source = """
#define CHECK(name, parameters) \\
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), CUresult parameters), #name);
CUDA_CALLS(CHECK)
int main(void) { puts("good"); return 0; }
"""
    assert run(tmp_path, source, include, real=True) == "good\n"


def test_a_wrong_prototype_is_noticed(tmp_path: Path, include: Path) -> None:
    source = """
#define CHECK(name, parameters) \\
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), CUresult parameters), #name);
CHECK(cuMemMap, (CUdeviceptr, size_t, int, CUmemGenericAllocationHandle, unsigned long long))
int main(void) { return 0; }
"""
    with pytest.raises(AssertionError, match="cuMemMap"):
        run(tmp_path, source, include, real=True)


def test_sizes_offsets_and_numbers_are_the_headers(tmp_path: Path, include: Path) -> None:
    numbers = set(re.findall(r"\b(CU(?:DA)?_[A-Z][A-Z0-9_]+)\b\s*(?:=|\d)", ours()))
    numbers -= {"CUDA_VERSION"}
    members = [
        (name, member)
        for body, name in re.findall(r"typedef struct \{(.*?)\}\s*(\w+);", ours(), re.S)
        for declaration in re.findall(r"[^;]+;", body)
        for member in re.findall(r"(\w+)(?:\[[^\]]*\])?\s*[,;]", declaration)
    ]
    assert len(numbers) > 25 and len(members) > 35
    lines = [f'printf("{n} %lld\\n", (long long){n});' for n in sorted(numbers)]
    lines += [f'printf("{n} %zu\\n", sizeof({n}));' for n in TYPES]
    lines += [f'printf("{n}.{m} %zu\\n", __builtin_offsetof({n}, {m}));' for n, m in members]
    source = "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    assert run(tmp_path, source, include, real=False) == run(tmp_path, source, include, real=True)


BLAS = REPOSITORY / "proxy/hal/nvidia/blas.h"
BLAS_TYPES = (
    "cublasLtMatmulAlgo_t",
    "cublasLtMatmulHeuristicResult_t",
    "cublasStatus_t",
    "cublasComputeType_t",
    "cudaDataType",
    "cublasLtHandle_t",
)


def run_blas(tmp_path: Path, source: str, include: Path, described: bool) -> str:
    begin = "#include <stdio.h>\n"
    begin += "#include <cuda.h>\n#include <cublasLt.h>\n" if described else ""
    file = tmp_path / f"blas-{described}.c"
    file.write_text(f'{begin}#include "{BLAS}"\n{source}')
    command: list[str | Path] = [
        "gcc",
        "-std=gnu11",
        "-Wall",
        "-Werror",
        f"-I{include}",
        f"-I{REPOSITORY / 'build/native/include'}",
        file,
        "-o",
        tmp_path / "b",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return subprocess.run([tmp_path / "b"], capture_output=True, text=True, check=True).stdout


def test_every_call_of_cublaslt_has_the_prototype_that_is_described(
    tmp_path: Path, include: Path
) -> None:
    source = """
#define SAME(a, b) __builtin_types_compatible_p(a, b)
#define CHECK(name, parameters) \\
    _Static_assert(SAME(__typeof__(name), cublasStatus_t parameters), #name);
CUBLASLT_CALLS(CHECK)
int main(void) { puts("good"); return 0; }
"""
    assert run_blas(tmp_path, source, include, described=True) == "good\n"


def test_sizes_and_numbers_of_cublaslt_are_those_that_are_described(
    tmp_path: Path, include: Path
) -> None:
    numbers = set(re.findall(r"\b(CU(?:DA|BLAS|BLASLT)_[A-Z][A-Z0-9_]+)\b\s*=", BLAS.read_text()))
    assert len(numbers) > 45
    lines = [f'printf("{n} %lld\\n", (long long){n});' for n in sorted(numbers)]
    lines += [f'printf("{n} %zu\\n", sizeof({n}));' for n in BLAS_TYPES]
    source = "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    ours = run_blas(tmp_path, source, include, described=False)
    assert ours == run_blas(tmp_path, source, include, described=True)

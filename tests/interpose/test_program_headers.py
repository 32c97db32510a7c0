"""Programs that include our headers of NCCL, cuBLAS and cuBLASLt compile without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cuda
import pytest

from rankfold import paths
from rankfold.interpose import descriptions

HEADERS = ("nccl.h", "cublas_v2.h", "cublas_api.h", "cublasLt.h")
RUNTIME = descriptions.header_folders()
pytestmark = pytest.mark.skipif(not RUNTIME, reason="no CUDA headers on this machine")

SOURCE = """
cublasDataType_t kind = CUDA_R_32F;
cublasSideMode_t side = CUBLAS_SIDE_RIGHT;
cublasFillMode_t fill = CUBLAS_FILL_MODE_UPPER;
cublasDiagType_t diag = CUBLAS_DIAG_UNIT;
cublasLtMatmulTile_t tile = CUBLASLT_MATMUL_TILE_128x128;
cublasLtReductionScheme_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
cublasLtMatrixTransformDescOpaque_t transform;
ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
static cublasStatus_t multiply(cublasHandle_t handle, const float *x, float *y)
{
    const float one = 1;
    return cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, 4, 4, 4, &one, x, 4, x, 4, &one, y, 4);
}
int main(void)
{
    int sizes = (int)(sizeof kind + sizeof side + sizeof fill + sizeof diag + sizeof tile +
                      sizeof scheme + sizeof transform + sizeof config);
    return sizes == CUBLAS_VERSION && multiply(0, 0, 0) == CUBLAS_STATUS_SUCCESS;
}
"""
WARN = ["-Wall", "-Wextra", "-Werror"]


@pytest.mark.parametrize(
    "name, command",
    [
        ("program.c", ["gcc", "-std=c11", *WARN]),
        ("program.cpp", ["g++", "-std=c++11", *WARN]),
        ("program.cu", [str(cuda.NVCC), "-Xcompiler", ",".join(WARN), "-Werror", "all-warnings"]),
    ],
    ids=["gcc", "g++", "nvcc"],
)
@pytest.mark.parametrize("first", ["nccl.h", "cublas_v2.h", "cublasLt.h"])
def test_they_compile_without_a_warning(
    tmp_path: Path, name: str, command: list[str], first: str
) -> None:
    """In any order."""
    source = tmp_path / name
    others = [header for header in HEADERS if header != first]
    includes = "".join(f"#include <{header}>\n" for header in (first, *others))
    source.write_text(includes + SOURCE)
    folders = [f"-I{paths.native('include')}", "-isystem", str(RUNTIME[0])]
    command = [*command, *folders, "-c", str(source), "-o", str(tmp_path / "program.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

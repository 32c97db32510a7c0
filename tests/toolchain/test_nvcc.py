"""`tools/nvcc` makes programs that can run here: with PTX for any device."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cuda
import pytest

SOURCE = """
__global__ void half(float *data) { data[threadIdx.x] *= 0.5f; }
int main() { half<<<1, 32>>>(nullptr); return cudaDeviceSynchronize() == cudaSuccess; }
"""
PTX, MACHINE_CODE = 1, 2
FATBIN_MAGIC = 0xBA55ED50


def images(program: Path) -> Iterator[int]:
    """The kind of every device image in the program's fatbins."""
    data = program.read_bytes()
    at = data.find(struct.pack("<I", FATBIN_MAGIC))
    while at >= 0:
        _, _, header_bytes, total = struct.unpack_from("<IHHQ", data, at)
        entry, end = at + header_bytes, at + header_bytes + total
        while entry < end:
            kind, _, entry_header, padded = struct.unpack_from("<HHIQ", data, entry)
            yield kind
            entry += entry_header + padded
        at = data.find(struct.pack("<I", FATBIN_MAGIC), end)


def needed(program: Path) -> str:
    command = ["readelf", "--dynamic", str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_defaults(tmp_path: Path) -> None:
    (tmp_path / "half.cu").write_text(SOURCE)
    command = [str(cuda.NVCC), "-o", str(tmp_path / "half"), str(tmp_path / "half.cu")]
    subprocess.run(command, check=True)
    assert set(images(tmp_path / "half")) == {PTX}
    assert "libcudart" not in needed(tmp_path / "half")


def test_arguments_win_over_defaults(tmp_path: Path) -> None:
    (tmp_path / "half.cu").write_text(SOURCE)
    options = ["-arch=sm_75", "-cudart", "shared"]
    command = [str(cuda.NVCC), *options, "-o", str(tmp_path / "half"), str(tmp_path / "half.cu")]
    subprocess.run(command, check=True)
    assert MACHINE_CODE in set(images(tmp_path / "half"))
    assert "[libcudart.so.13]" in needed(tmp_path / "half")


def test_build_caches_by_content() -> None:
    first = cuda.build(SOURCE)
    made = first.stat().st_mtime_ns
    assert cuda.build(SOURCE) == first and first.stat().st_mtime_ns == made
    assert cuda.build(SOURCE, args=["-DOTHER"]) != first
    assert ".visible .entry" in cuda.ptx(SOURCE)


@pytest.mark.slow
@pytest.mark.installs
def test_wheels_where_there_is_no_toolkit(tmp_path: Path) -> None:
    """In a copy of the tree's tools, so that the compiler is really fetched (105 MB)."""
    (tmp_path / "tools").mkdir()
    tool = shutil.copy(cuda.NVCC, tmp_path / "tools/nvcc")
    (tmp_path / "half.cu").write_text(SOURCE)
    plain = {**os.environ, "PATH": "/usr/bin:/bin"}
    plain.pop("NVCC", None)
    output = tmp_path / "half"
    subprocess.run([tool, "-o", output, tmp_path / "half.cu"], check=True, env=plain)
    assert (tmp_path / "build/cuda/nvidia/cu13/bin/nvcc").exists()
    assert set(images(output)) == {PTX}
    assert "libcudart" not in needed(output)

"""cuFFT, cuSOLVER, cuSPARSE and NVRTC: PyTorch's calls of them are refused by name, with what to do
instead, and the program continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Rankfold

PROGRAM = Path(__file__).with_name("refused.py")
ELSEWHERE = "not supported by rankfold on this device;"
LINES = {
    "cufftCreate": f"{ELSEWHERE} compute transforms on the CPU (in PyTorch, of x.cpu())",
    "cusolverDnCreate": f"{ELSEWHERE} factorise and solve on the CPU (in PyTorch, with x.cpu())",
    "cusparseCreateCsr": "not supported by rankfold; use dense matrices, or compute on the CPU",
}
RAISED = {
    "fft": "cuFFT error: CUFFT_NOT_SUPPORTED",
    "rfft": "cuFFT error: CUFFT_NOT_SUPPORTED",
    "cholesky": "cusolver error",
    "inv": "cusolver error",
    "eigvalsh": "cusolver error",
    "sparse": "use dense matrices, or compute on the CPU",
    "gcd": "libnvrtc.so.12 is not served; compute this on the CPU",
}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_each_call_names_itself_and_what_to_do(torch: Path, rankfold: Rankfold) -> None:
    options = ["--world-size", "1", "--max-restarts", "0"]
    done = rankfold.run("run", *options, "--", str(torch), str(PROGRAM))
    assert done.returncode == 0, done.stderr
    *raised, last = done.stdout.splitlines()
    assert last == "the device works"
    assert len(raised) == len(RAISED)
    for line, (name, text) in zip(raised, RAISED.items(), strict=True):
        assert line.startswith(f"{name} raised ") and text in line
    lines = done.stderr.splitlines()
    for name, remedy in LINES.items():
        assert f"rankfold: {name}: {remedy}" in lines

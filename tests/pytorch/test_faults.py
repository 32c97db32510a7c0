"""Faults of kernels, code that cannot run and exhausted memory give PyTorch the errors that a GPU
gives, and only in their own rank."""

from __future__ import annotations

import re
from pathlib import Path

import cuda
import pytest

from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs
from support.leaks import State

PROGRAM = Path(__file__).with_name("faults.py")
ASSERTION = (
    r"IndexKernel\.cu:\d+: operator\(\): block: \[0,0,0\], thread: \[1,0,0\] Assertion "
    r'`-sizes\[i\] <= index && index < sizes\[i\] && "index out of bounds"` failed\. '
    r"\(kernel _ZN2at6native24index_elementwise_kernel\w+\); .* \(cudaErrorAssert\)\n"
)
LASTING = [  # the exception's text, and the line on stderr
    ("device-side assert triggered", ASSERTION),
    ("an illegal memory access was encountered", "_Z8write_toPi: an address outside of device mem"),
    ("hardware stack error", "_Z7recursePi: the stack of a thread is full; "),
]
PASSING = """\
with PTX: 0
machine code: 209
newer PTX: 0
an instruction of newer PTX: 801
an instruction of no GPU here: 801
cut off: 218
the sum is 2000.0
out of memory: 3 0
trained on: True
"""
REASONS = [
    r"cannot be loaded: it contains machine code for sm_80, but no PTX .*: build it with PTX",
    r"kernel odd: the instruction 'frob.b32 r, 1' is not supported by the software GPU\n",
    r"kernel odd: the instruction 'brkpt' is not supported by the software GPU\n",
    r"a module cannot be loaded: a brace is not closed\n",
]

UNHANDLED = """
import torch
kept = torch.ones(10, device="cuda")
kept[torch.tensor([20], device="cuda")].tolist()
"""
FOR_A_NEWER_DEVICE = """
import torch
try:
    torch.ones(3, device="cuda")
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""
ENDLESS = """
import torch
torch.cuda._sleep(1 << 62)
print("begun", flush=True)
torch.cuda.synchronize()
"""


def library(*args: str) -> str:
    """kernels.cu with a static runtime, another one than PyTorch's."""
    flags = ["-shared", "-Xcompiler", "-fPIC", "-cudart", "static", *args]
    return str(cuda.build(PROGRAM.with_name("kernels.cu"), args=flags, suffix=".so"))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_each_rank_handles_its_own(torch: Path, state: State, rankfold: Rankfold) -> None:
    """Four ranks on one device."""
    machine_code = library("-gencode", "arch=compute_80,code=sm_80")
    program = [str(torch), str(PROGRAM), library(), machine_code]
    options = ["--world-size", "4", "--gpus", "1", "--compute-capability", "9.0", "--name", "job"]
    rankfold("run", *options, "--memory", "512MiB", "--", *program)
    logs = Layout(state.path).logs("job")
    for rank, (text, reason) in enumerate(LASTING):
        printed = f"CUDA error: {text}\nstill: CUDA error: {text}\n"
        assert (logs / f"rank-{rank}.out").read_text() == printed
        assert re.search(reason, (logs / f"rank-{rank}.err").read_text())
    assert (logs / "rank-3.out").read_text() == PASSING
    reasons = (logs / "rank-3.err").read_text()
    assert [reason for reason in REASONS if not re.search(reason, reasons)] == []


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_an_exception_that_is_not_handled_ends_the_program_as_usual(
    torch: Path, rankfold: Rankfold
) -> None:
    """Python shows it, frees its tensors, and exits with 1."""
    options = ["--world-size", "1", "--compute-capability", "9.0", "--max-restarts", "0"]
    done = rankfold.run("run", *options, "--", str(torch), "-c", UNHANDLED)
    assert done.returncode == 1
    assert "RuntimeError: CUDA error: device-side assert triggered\n" in done.stderr
    assert "RankFailed: rank 0 exited with status 1\n" in done.stderr


@pytest.mark.torch
def test_kernels_for_newer_devices_are_named(torch: Path, rankfold: Rankfold) -> None:
    """Debian's PyTorch has PTX for 9.0 and machine code."""
    options = ["--world-size", "1", "--compute-capability", "8.0"]
    done = rankfold.run("run", *options, "--", str(torch), "-c", FOR_A_NEWER_DEVICE)
    assert done.stdout == "CUDA error: no kernel image is available for execution on the device\n"
    assert "but no PTX for compute capability 8.0: " in done.stderr
    assert "or rankfold run --compute-capability 9.0)\n" in done.stderr


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_status_names_an_endless_kernel_and_its_job_is_cancelled(
    torch: Path, state: State, rankfold: Rankfold, specs: Specs
) -> None:
    specs.pool(1, "1GiB", "9.0")
    specs.program([str(torch), "-c", ENDLESS], "job", ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    printed = Layout(state.path).logs("job") / "rank-1.out"
    rankfold.until(lambda: printed.exists() and printed.read_text() == "begun\n")

    def waits() -> str:
        conditions = rankfold.job("job")["conditions"]
        return "".join(c["reason"] + c["message"] for c in conditions if c["type"] == "Waiting")

    assert re.match("ForKernels.*a kernel or a copy of rank", rankfold.until(waits))
    rankfold("cancel", "job", "--override")
    rankfold.until(lambda: rankfold.job("job")["phase"] == "Failed")
    assert "cancelled" in rankfold.job("job")["message"]

"""Promise: kernels that nvcc compiled run through a proxy, with features beyond arithmetic."""

from __future__ import annotations

import cuda
import pytest

from support.fleet import Fleet
from support.leaks import State

RING_BYTES = 1 << 20  # RF_PRINT_BYTES


def output(state: State, program: str, *arguments: object) -> str:
    """The program's output, alone on one device."""
    built = cuda.build(cuda.PROGRAMS / f"{program}.cu")
    return output_of(state, program, [str(built), *map(str, arguments)])


def output_of(state: State, program: str, command: list[str]) -> str:
    with Fleet(state, 1) as fleet:
        job = fleet.start(program.replace("_", "-"), command, [0])
        assert job.wait() == [0], job.errors(0)
        text = job.output(0)
        job.detach(discard=True)
    return text


def printed_lines(step: int) -> list[str]:
    lines = [f"before {step}"]
    for thread in (0, 3, 6):
        lines.append(
            f"step {step} thread {thread}: {thread * 0.5:5.2f}|{'text' if thread else 'device':6}|"
            f"{-step:+d}|{0xABC + thread:08x}|{1234567890123 * step}|{chr(97 + thread)}|%|"
            f"{1e-30 * step:e}"
        )
    return [*lines, f"after {step}"]


@pytest.mark.parametrize("count", [10, 200_000])
def test_printf(state: State, count: int) -> None:
    """More output than the ring holds is possible: the newest output remains, as in CUDA."""
    lines = output(state, "printing", count).splitlines()
    for step in range(3):
        head, lines = lines[:5], lines[5:]
        # "%+d" of -0 is "+0" in C
        assert head == [x.replace("|-0|", "|+0|") for x in printed_lines(step)]
    edges, lines = lines[:8], lines[8:]
    for thread in (0, 1):
        first = f"xy{thread}     42 3.14 44 4   sho|"
        assert edges[4 * thread : 4 * thread + 4] == [first, "no arguments", "took 8, 0", "7 %q %n"]
    assert lines[-1] == "no error"
    kept = min(count, RING_BYTES // 8)
    assert lines[:-1] == [f"{i:07d}" for i in range(count - kept, count)]


def test_addresses_in_variables_and_calls_through_them(state: State) -> None:
    assert output(state, "pointers") == "0 wrong\n"


@pytest.mark.slow
def test_blocks_of_a_cooperative_launch_meet(state: State) -> None:
    supported, wrong, too_large, last, outside = output(state, "grid_sync").splitlines()
    assert (supported, wrong) == ("supported 1", "wrong 0 0 0 0")
    assert too_large == last == "cudaErrorCooperativeLaunchTooLarge"
    assert outside == "cudaErrorIllegalAddress"  # NULL, and nothing worse


def test_modules_linked_by_the_driver(state: State) -> None:
    first, *errors = output(state, "linking", state.folder / "callee.ptx").splitlines()
    assert first == "1046, 0 bytes of errors: "
    assert errors == ["again: 400", "no file: 301", "no PTX: 200", "a library: 801", "nothing: 200"]


@pytest.mark.slow
@pytest.mark.parametrize("code", ["-arch=compute_75", "-arch=sm_75"])
def test_device_code_linked_by_nvcc(state: State, code: str) -> None:
    """The program contains linked machine code, or none, and the PTX of its objects."""
    source, flags = cuda.PROGRAMS / "linked.cu", ["-rdc=true", "-c", code]
    objects = [cuda.build(source, args=[*flags, *more], suffix=".o") for more in ([], ["-DCALLEE"])]
    program = cuda.link(objects, state.folder / "linked", "-rdc=true", code)
    assert output_of(state, "linked", [str(program)]) == "no error: 106.5, 1 call\n"

"""The demo's verdict notices the smallest difference, and anything that is missing."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from examples.demo.verdict import parse_line, to_float, verdict

pytestmark = pytest.mark.unit

RANKS, STEPS, PARAMS = 3, 12, 500


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal runs."""
    dice, reference = random.Random(4), tmp_path / "reference"
    reference.mkdir()
    params = struct.pack(f"<{PARAMS}f", *(dice.gauss(0.0, 1.0) for _ in range(PARAMS)))
    for rank in range(RANKS):
        lines = []
        for step in range(STEPS):
            bits = struct.unpack("<I", struct.pack("<f", 4.0 - 0.1 * step + dice.random()))[0]
            lines.append(f"step {step} loss {to_float(bits):.9g} {bits:08x}\n")
        (reference / f"rank-{rank}.out").write_text("".join(lines))
        (reference / f"params-rank{rank}.bin").write_bytes(params)
    elastic = tmp_path / "elastic"
    shutil.copytree(reference, elastic)
    return reference, elastic


def test_equal_runs(runs: tuple[Path, Path]) -> None:
    found = verdict(*runs)
    assert found.bit_identical and not found.differences
    assert (found.world_size, found.steps) == (RANKS, STEPS)
    assert found.compared_bytes == RANKS * (4 * PARAMS + 4 * STEPS)


@pytest.mark.parametrize("bit", [0, 7, 8 * (4 * PARAMS - 1), 8 * 2 * PARAMS + 3])
def test_one_flipped_bit_of_a_parameter(runs: tuple[Path, Path], bit: int) -> None:
    for rank in range(RANKS):  # on all ranks alike, as a wrong all-reduce would
        path = runs[1] / f"params-rank{rank}.bin"
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
    found = verdict(*runs)
    assert not found.bit_identical
    assert f"1 of {PARAMS} parameters differ, first number {bit // 32}" in found.differences[0]


def test_one_flipped_bit_on_one_rank(runs: tuple[Path, Path]) -> None:
    path = runs[1] / "params-rank2.bin"
    data = bytearray(path.read_bytes())
    data[17] ^= 4
    path.write_bytes(data)
    found = verdict(*runs)
    assert not found.bit_identical
    assert "ranks 0 and 2" in found.differences[0]


def test_one_flipped_bit_of_a_loss(runs: tuple[Path, Path]) -> None:
    path = runs[1] / "rank-1.out"
    lines = path.read_text().splitlines()
    bits = int(lines[7][-8:], 16)
    lines[7] = f"{lines[7][:-8]}{bits ^ 1:08x}"
    path.write_text("\n".join(lines) + "\n")
    found = verdict(*runs)
    assert found.differences == (f"rank 1, step 7: loss bits {bits:08x} became {bits ^ 1:08x}",)


@pytest.mark.parametrize("name", ["rank-1.out", "params-rank0.bin"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_incomplete_runs(runs: tuple[Path, Path], name: str, damage: str) -> None:
    path = runs[1] / name
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[: len(data) - 3] if damage == "cut" else b"")
    assert not verdict(*runs).bit_identical


@pytest.mark.parametrize("count", [0, 4 * PARAMS - 1])
def test_parameters_that_are_cut_alike_in_both_are_not_equal(
    runs: tuple[Path, Path], count: int
) -> None:
    for path in (run / f"params-rank{rank}.bin" for run in runs for rank in range(RANKS)):
        path.write_bytes(path.read_bytes()[:count])
    assert not verdict(*runs).bit_identical


@pytest.mark.parametrize("edit", ["repeat", "skip", "swap", "noise"])
def test_lines_are_all_steps_once_and_in_order(runs: tuple[Path, Path], edit: str) -> None:
    for folder in runs:  # alike in both: equality alone is not enough
        path = folder / "rank-0.out"
        lines = path.read_text().splitlines()
        if edit == "repeat":
            lines.insert(5, lines[5])
        elif edit == "skip":
            del lines[5]
        elif edit == "swap":
            lines[5], lines[6] = lines[6], lines[5]
        else:
            lines.insert(5, "warning: something else")
        path.write_text("\n".join(lines) + "\n")
    assert not verdict(*runs).bit_identical


def test_nothing_is_not_equal_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert not verdict(tmp_path / "a", tmp_path / "b").bit_identical


def test_fewer_ranks(runs: tuple[Path, Path]) -> None:
    (runs[1] / "rank-2.out").unlink()
    assert verdict(*runs).differences == ("3 ranks became 2",)


def test_partial_lines_are_no_steps() -> None:
    assert parse_line("step 3 loss 1.5 3fc00000") == (3, 0x3FC00000)
    assert parse_line("step 3 loss 1.5 3fc000") is None
    assert parse_line("step 3 loss 1.5 3fc00000 ") is None

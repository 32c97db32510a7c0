"""Did two runs compute the same? Compares their results, bit for bit.

A run is a folder with ``rank-<r>.out`` (a line per step, with the loss and its bits) and
``params-rank<r>.bin`` (raw final parameters) for each rank. Results that cannot be compared count
as different.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"step (\d+) loss (\S+) ([0-9a-f]{8})")
_SHOWN = 8  # differences that are listed one by one


class Malformed(Exception):
    """A run's folder lacks the results of a finished run; the message describes what is wrong."""


@dataclass(frozen=True)
class Run:
    """The results of one run: per rank its losses as bits, and its final parameters."""

    losses: tuple[tuple[int, ...], ...]
    params: tuple[bytes, ...]

    @property
    def steps(self) -> int:
        return len(self.losses[0])

    def loss(self, step: int) -> float:
        """The mean over the ranks."""
        return sum(to_float(rank[step]) for rank in self.losses) / len(self.losses)


@dataclass(frozen=True)
class Verdict:
    """`bit_identical` only if there is no difference at all, and something to compare."""

    bit_identical: bool
    world_size: int
    steps: int
    first_loss: float
    last_loss: float
    compared_bytes: int
    differences: tuple[str, ...]


def verdict(reference_dir: Path, elastic_dir: Path) -> Verdict:
    """Compare two runs. Never raises because of the folders' content: a fault is a difference."""
    try:
        reference, elastic = read_run(reference_dir), read_run(elastic_dir)
    except Malformed as fault:
        return Verdict(False, 0, 0, float("nan"), float("nan"), 0, (str(fault),))
    found = differences(reference, elastic)
    return Verdict(
        bit_identical=not found,
        world_size=len(elastic.losses),
        steps=elastic.steps,
        first_loss=elastic.loss(0),
        last_loss=elastic.loss(elastic.steps - 1),
        compared_bytes=sum(map(len, elastic.params)) + 4 * elastic.steps * len(elastic.losses),
        differences=tuple(found),
    )


def read_run(folder: Path) -> Run:
    """The run in `folder`. Raises `Malformed` if it is not complete."""
    ranks = len(list(folder.glob("rank-*.out")))
    if ranks == 0:
        raise Malformed(f"{folder} holds no rank-<r>.out")
    losses = tuple(_read_losses(folder / f"rank-{r}.out") for r in range(ranks))
    params = tuple(_read_params(folder / f"params-rank{r}.bin") for r in range(ranks))
    if len({len(each) for each in losses}) != 1:
        raise Malformed(f"the ranks in {folder} made {sorted(map(len, losses))} steps")
    for rank, each in enumerate(params):
        if each != params[0]:
            raise Malformed(f"ranks 0 and {rank} in {folder} ended with different parameters")
    return Run(losses, params)


def parse_line(line: str) -> tuple[int, int] | None:
    """(step, bits of the loss) of a complete line, else None."""
    match = _LINE.fullmatch(line)
    return (int(match[1]), int(match[3], 16)) if match else None


def to_float(bits: int) -> float:
    """The float32 with these bits."""
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def _read_losses(path: Path) -> tuple[int, ...]:
    if not path.exists():
        raise Malformed(f"{path} is missing")
    losses: list[int] = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        parsed = parse_line(line)
        if parsed is None:
            raise Malformed(f"{path}:{number}: not a step: {line!r}")
        step, bits = parsed
        if step != len(losses):
            raise Malformed(f"{path}:{number}: step {step} where {len(losses)} was due")
        losses.append(bits)
    if not losses:
        raise Malformed(f"{path} is empty")
    return tuple(losses)


def _read_params(path: Path) -> bytes:
    if not path.exists():
        raise Malformed(f"{path} is missing")
    data = path.read_bytes()
    if not data or len(data) % 4:
        raise Malformed(f"{path} has {len(data)} bytes")
    return data


def differences(reference: Run, elastic: Run) -> list[str]:
    """The differences, the first few one by one."""
    if len(reference.losses) != len(elastic.losses):
        return [f"{len(reference.losses)} ranks became {len(elastic.losses)}"]
    if reference.steps != elastic.steps:
        return [f"{reference.steps} steps became {elastic.steps}"]
    found = [
        f"rank {rank}, step {step}: loss bits {a:08x} became {b:08x}"
        for rank, pair in enumerate(zip(reference.losses, elastic.losses, strict=True))
        for step, (a, b) in enumerate(zip(*pair, strict=True))
        if a != b
    ]
    for rank, (p, q) in enumerate(zip(reference.params, elastic.params, strict=True)):
        if p != q:
            found.append(f"rank {rank}: {_params_difference(p, q)}")
    return found if len(found) <= _SHOWN else [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]


def _params_difference(p: bytes, q: bytes) -> str:
    if len(p) != len(q):
        return f"{len(p)} bytes of parameters became {len(q)}"
    words = range(0, len(p), 4)
    first = next(i for i in words if p[i : i + 4] != q[i : i + 4])
    count = sum(p[i : i + 4] != q[i : i + 4] for i in words)
    return (
        f"{count} of {len(p) // 4} parameters differ, first number {first // 4}: "
        f"{p[first : first + 4][::-1].hex()} became {q[first : first + 4][::-1].hex()}"
    )

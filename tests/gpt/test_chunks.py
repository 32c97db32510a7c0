"""The example's permanent buffers are apart from those that each step writes, and alike in all
ranks."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import cuda

from rankfold import inspect
from rankfold.paths import REPOSITORY
from support.fleet import Fleet, RunningJob, until
from support.leaks import State

from . import reference

CHUNK, BASE = 2 << 20, 0x200000000000
TEXT = REPOSITORY / "examples/gpt/text/genesis.txt"


def is_channel(descriptor: Path) -> bool:
    """False also of a descriptor that its process has closed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return str(descriptor.readlink()).startswith("/memfd:rankfold ")
    return False


def requests(fleet: Fleet, job: RunningJob, rank: int) -> str:
    """All requests of the rank, as `rankfold inspect` prints them."""
    about = Path(f"/proc/{fleet.rank_pid(job, rank)}/stat").read_text()
    launcher = about.rpartition(")")[2].split()[1]  # the parent: it keeps the channel
    channel = next(filter(is_channel, Path(f"/proc/{launcher}/fd").iterdir()))
    lines = inspect.lines(channel, 1 << 20, inspect.Found())
    asked = [line for line in lines if re.match(r"  \d+ [A-Z_]+ ", line)]
    assert asked[0].startswith("  1 "), "the ring has gone round: ask earlier"
    return "\n".join(asked)


def chunks(buffers: dict[int, int]) -> set[int]:
    spans = ((a - BASE, a - BASE + size - 1) for a, size in buffers.items())
    return {c for first, last in spans for c in range(first // CHUNK, last // CHUNK + 1)}


def test_parameters_and_moments_share_no_chunk_with_gradients_and_activations(
    state: State, tmp_path: Path
) -> None:
    program = cuda.build(REPOSITORY / "examples/gpt/train_gpt.cu")
    command = [str(program), "--steps", "1000000", "--data", str(TEXT)]
    lasting = []
    with Fleet(state, 1) as fleet:
        job = fleet.start("gpt", command, [0, 0], workdir=tmp_path)
        for rank in range(2):
            out = f"{job.folder}/logs/rank-{rank}.out"
            until(lambda path=out: Path(path).exists() and Path(path).stat().st_size > 0, 120)
            asked = requests(fleet, job, rank)
            found = re.findall(r" ALLOC addr=0x(\w+) bytes=(\d+)", asked)
            buffers = {int(address, 16): int(size) for address, size in found}
            copies = {a: n for a, n in buffers.items() if n == 4 * parameters()}
            (broadcast,) = set(re.findall(r" recv=0x(\w+) .*kind=BROADCAST", asked))
            reduced = {int(a, 16) for a in re.findall(r" send=0x(\w+) .*kind=ALLREDUCE", asked)}
            gradients = {a for a, n in copies.items() if any(a <= r < a + n for r in reduced)}
            assert len(copies) == 4 and len(gradients) == 1 and int(broadcast, 16) in copies
            kept = {a: n for a, n in copies.items() if a not in gradients}
            others = {a: n for a, n in buffers.items() if a not in kept}
            assert len(others) > 30 and not chunks(kept) & chunks(others)
            assert len(chunks(buffers)) <= 8, "what is kept apart costs chunks"
            lasting.append(list(kept))
    assert lasting[0] == lasting[1]


def parameters() -> int:
    """The number of the example's parameters when it runs without arguments."""
    return reference.parameter_count(reference.text_and_config(TEXT)[1])

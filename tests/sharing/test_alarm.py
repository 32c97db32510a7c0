"""A bit that changes in a device's memory, unknown to everybody, becomes the job's condition."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest

from support import guest
from support.command import Rankfold
from support.leaks import State

CHUNK = 2 << 20
PROGRAM = cuda.PROGRAMS / "pathologies.cu"


def memories(state: State) -> dict[str, Path]:
    """The memory of each device of the fleet, through its proxy's descriptors."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if "--device" not in words or str(state.path) not in words:
                continue
            for fd in (process / "fd").iterdir():
                if "memfd:rankfold-device" in str(fd.readlink()):
                    found[words[words.index("--device") + 1]] = fd
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def chunks(memory: int) -> Iterator[tuple[int, bytes]]:
    """Those that are mostly not zero, and where they are."""
    at = 0
    while True:
        try:
            at = os.lseek(memory, at, os.SEEK_DATA) // CHUNK * CHUNK
        except OSError:  # no more
            return
        content = os.pread(memory, CHUNK, at)
        if np.count_nonzero(np.frombuffer(content, np.float32)) > CHUNK // 8:
            yield at, content
        at += CHUNK


def flip_what_both_have(one: Path, other: Path) -> bool:
    """A bit of `one`, in a chunk that `other` has, too: of parameters or momentum."""
    with one.open("r+b") as mine, other.open("rb") as its:
        there = {content for _, content in chunks(its.fileno())}
        for at, content in chunks(mine.fileno()):
            if content in there:
                flipped = bytes([content[4096] ^ 1])
                return os.pwrite(mine.fileno(), flipped, at + 4096) == 1
    return False


@pytest.mark.slow
def test_describe_shows_an_alarm_while_the_job_runs_and_when_it_has_ended(state: State) -> None:
    rankfold = Rankfold(state, guest.job_environment(HOME=str(state.folder), PYTHONPATH=""))
    process = rankfold.start(
        "run", "--world-size", "2", "--gpus", "2", "--name", "job", "--",
        str(cuda.build(PROGRAM)), "400", "plain", RANKFOLD_SHARE="1", RANKFOLD_VALIDATE="1",
    )  # fmt: skip

    def flipped() -> bool:
        found = memories(state)
        return len(found) >= 2 and flip_what_both_have(*sorted(found.values())[:2])

    def alarm() -> Any:
        return [c for c in rankfold.job("job").get("conditions", []) if c["type"] == "Alarm"]

    rankfold.until(flipped)
    (found,) = rankfold.until(alarm)
    assert found["reason"] == "ContentsDiffer" and found["status"] == "True"
    assert re.match(r"rank \d on \S+ holds other bytes than rank \d on \S+ ", found["message"])
    devices = set(rankfold.job("job")["placement"].values())
    assert any(f"on {device} " in found["message"] for device in devices)
    _out, errors = process.communicate(timeout=200.0)
    assert process.returncode == 0, errors
    assert "Alarm" in rankfold("describe", "job")
    told = json.loads(rankfold("describe", "job", "-o", "json"))
    (kept,) = [c["message"] for c in told["conditions"] if c["type"] == "Alarm"]
    assert kept.partition(" (and ")[0].partition("; its ranks share")[0] in found["message"]

"""A bit that changes in a device's memory, unknown to everybody, becomes the job's condition."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest

from support import leaks
from support.command import Rankfold, job_environment
from support.leaks import State, stopped
from support.patience import scaled

CHUNK = 2 << 20
PROGRAM = cuda.PROGRAMS / "pathologies.cu"


def memories(pids: set[int]) -> list[Path]:
    """The memory of each device of the fleet that these processes are, through a descriptor."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended meanwhile
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                if "memfd:rankfold-device" in os.readlink(fd):
                    found[fd.stat().st_ino] = fd
    return list(found.values())


def chunks(memory: Path) -> dict[int, bytes]:
    """Those that are mostly not zero, by where they are."""
    found = {}
    with memory.open("rb", buffering=0) as file:
        at = 0
        with contextlib.suppress(OSError):  # no more data
            while True:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // CHUNK * CHUNK
                content = os.pread(file.fileno(), CHUNK, at)
                if np.count_nonzero(np.frombuffer(content, np.float32)) > CHUNK // 8:
                    found[at] = content
                at += CHUNK
    return found


def at_rest(memory: Path) -> dict[int, bytes]:
    """Its chunks, when no rank gives the device work and it has done what it had."""
    before: dict[int, bytes] = {}
    while (now := chunks(memory)) != before:
        before = now
        time.sleep(0.2)
    return now


def flip_what_both_have(one: Path, other: Path) -> bool:
    """A bit in each chunk of `one` that `other` has, too. Parameters and momentum are among them
    unless a rank was stopped between a sum of gradients and its update: False then."""
    there = set(at_rest(other).values())
    mine = at_rest(one)
    common = [at for at, content in mine.items() if content in there]
    if len(common) < 4:  # two buffers of two chunks each
        return False
    with one.open("r+b", buffering=0) as file:
        for at in common:
            flipped = bytes([mine[at][4096] ^ 1])
            assert os.pwrite(file.fileno(), flipped, at + 4096) == 1
    return True


@pytest.mark.slow
def test_describe_shows_an_alarm_while_the_job_runs_and_when_it_has_ended(state: State) -> None:
    rankfold = Rankfold(state, job_environment(HOME=str(state.folder), PYTHONPATH=""))
    program = cuda.build(PROGRAM)
    process = rankfold.start(
        "run",
        "--world-size",
        "2",
        "--gpus",
        "2",
        "--name",
        "job",
        "--",
        str(program),
        "400",
        "plain",
        RANKFOLD_SHARE="1",
        RANKFOLD_VALIDATE="1",
    )

    def flipped() -> bool:
        pids = state.watch.new_processes()
        ranks = [pid for pid in pids if leaks.executable(pid) == str(program)]
        devices = memories(pids)
        if len(ranks) < 2 or len(devices) < 2:
            return False
        with stopped(*ranks):  # they are not in one step unless nothing moves
            return flip_what_both_have(*devices[:2])

    def alarm() -> Any:
        return [c for c in rankfold.job("job").get("conditions", []) if c["type"] == "Alarm"]

    rankfold.until(flipped)
    (found,) = rankfold.until(alarm)
    assert found["reason"] == "ContentsDiffer" and found["status"] == "True"
    assert re.match(
        r"rank \d on \S+ has bytes that differ from those of rank \d on \S+, ", found["message"]
    )
    devices = set(rankfold.job("job")["placement"].values())
    assert any(f"on {device} " in found["message"] for device in devices)
    _out, errors = process.communicate(timeout=scaled(200.0))
    assert process.returncode == 0, errors
    assert "Alarm" in rankfold("describe", "job")
    told = json.loads(rankfold("describe", "job", "-o", "json"))
    (kept,) = [c["message"] for c in told["conditions"] if c["type"] == "Alarm"]
    assert kept.partition(" (and ")[0].partition("; its ranks no longer")[0] in found["message"]

"""Durations follow no clock that can be set, and no process counts on another's clock."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfold.reconciler import clock
from rankfold.reconciler.act.boot import count_until
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.recorded import Record
from support import leaks, privileges
from support.command import Rankfold, Specs
from support.leaks import State

DAY_S = 86400
SOURCE = Path(__file__).parents[1] / "support/wall_clock.c"
ANOTHER_BOOT = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" %s; exec "$@"')
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class WallClock:
    """The wall clock of every process of a fleet."""

    def __init__(self, folder: Path):
        self.file, self.library = folder / "wall-clock", folder / "wall_clock.so"
        command = ["gcc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(self.library)]
        subprocess.run(command, check=True)
        self.days(0)

    def days(self, ahead: int) -> None:
        """Set it, to so many days ahead of what it is outside."""
        shift = (ahead * DAY_S).to_bytes(8, sys.byteorder, signed=True)
        if self.file.exists():
            with self.file.open("r+b", buffering=0) as file:
                file.write(shift)
        else:
            self.file.write_bytes(shift)

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "WALL_CLOCK_SHIFT": str(self.file)}


@pytest.fixture
def wall(state: State, rankfold: Rankfold) -> Iterator[WallClock]:
    wall_clock = WallClock(state.folder)
    rankfold.environment |= wall_clock.environment()
    yield wall_clock


def job(rankfold: Rankfold) -> Any:
    """As a process of the fleet sees it: not as this one would, whose clock is another."""
    return json.loads(rankfold("status", "-o", "json"))["jobs"][0]


def kill_reconciler(rankfold: Rankfold) -> None:
    pid = rankfold.reconciler_pid()
    os.kill(pid, signal.SIGKILL)
    assert leaks.has_ended(pid, leaks.GRACE_S)


def test_the_clock_of_these_tests_can_be_set(wall: WallClock) -> None:
    read = [sys.executable, "-c", "import time; print(time.time() - time.monotonic())"]
    shown = []
    for days in (0, 10):
        wall.days(days)
        environment = {**os.environ, **wall.environment()}
        shown.append(float(subprocess.check_output(read, env=environment)))
    assert shown[1] - shown[0] > 9 * DAY_S


@pytest.mark.slow
@pytest.mark.parametrize("days", [10, -10])
def test_a_wall_clock_that_is_set_changes_no_duration(
    rankfold: Rankfold, specs: Specs, wall: WallClock, days: int
) -> None:
    specs.job(gpus=2, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    before = job(rankfold)["gpuSeconds"]
    wall.days(days)
    now = job(rankfold)["gpuSeconds"]
    assert before <= now < DAY_S, "of the process that shows it"
    kill_reconciler(rankfold)
    rankfold("scale", "gpt", "--gpus", "1", "--override")
    rankfold.until(lambda: job(rankfold)["changes"][-1]["converge_s"] is not None)
    wall.days(0)
    found = job(rankfold)
    assert now <= found["gpuSeconds"] < DAY_S, "of the next reconciler"
    change = found["changes"][-1]
    assert 0 < change["pause_s"] <= change["converge_s"] < DAY_S
    rankfold("suspend", "gpt", "--override")
    rankfold.until(lambda: job(rankfold)["phase"] == "Suspended")
    rest = job(rankfold)["gpuSeconds"]
    assert found["gpuSeconds"] <= rest < DAY_S
    wall.days(days)
    assert job(rankfold)["gpuSeconds"] == rest


@pytest.mark.slow
def test_a_change_that_the_clock_is_set_during_takes_as_long_as_it_takes(
    rankfold: Rankfold, specs: Specs, wall: WallClock
) -> None:
    specs.job(gpus=1, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    device = job(rankfold)["placement"]["0"]
    proxy = rankfold.proxy_pid(device)
    os.kill(proxy, signal.SIGSTOP)
    try:
        rankfold("scale", "gpt", "--gpus", "2", "--override")
        wall.days(10)
    finally:
        os.kill(proxy, signal.SIGCONT)
    rankfold.until(lambda: job(rankfold)["changes"][-1]["converge_s"] is not None)
    change = job(rankfold)["changes"][-1]
    assert 0 < change["pause_s"] <= change["converge_s"] < DAY_S


def test_processes_of_other_time_namespaces_understand_each_other(
    rankfold: Rankfold, specs: Specs
) -> None:
    """A reconciler in a container, its proxies outside: their CLOCK_MONOTONIC differ."""
    privileges.need_namespaces()
    specs.job(gpus=2, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    before = job(rankfold)["gpuSeconds"]
    kill_reconciler(rankfold)
    rankfold.prefix = ("unshare", "--time", "--monotonic", str(10 * DAY_S), "--fork")
    assert before <= job(rankfold)["gpuSeconds"] < DAY_S
    rankfold("scale", "gpt", "--gpus", "1", "--override")
    rankfold.until(lambda: job(rankfold)["changes"][-1]["converge_s"] is not None)
    rankfold.prefix = ()
    found = job(rankfold)
    change = found["changes"][-1]
    assert 0 < change["pause_s"] <= change["converge_s"] < DAY_S
    assert before <= found["gpuSeconds"] < DAY_S


@pytest.mark.slow
def test_a_job_uses_no_device_while_the_machine_is_off(
    rankfold: Rankfold, specs: Specs, wall: WallClock, state: State
) -> None:
    """All processes are gone, ten days are over, and the kernel says that it is another boot."""
    privileges.need_namespaces()
    specs.job(gpus=2, ranks=2, extra="restart: {maxRestarts: 1}")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    for pid in (rankfold.reconciler_pid(), *state.watch.new_processes()):  # it starts no more
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    state.watch.settle()
    boot = state.folder / "boot"
    boot.write_text("b0000000-0000-4000-8000-000000000000\n")
    *shell, script = ANOTHER_BOOT
    rankfold.prefix = (*shell, script % BOOT_ID, str(boot))
    wall.days(10)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    found = job(rankfold)
    assert (found["phase"], found["restarts"]) == ("Running", 1)
    assert 0 <= found["gpuSeconds"] < DAY_S


# ---- the fleet's time --------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "clock"
    clock.follow(tmp_path / "none")


def update_fields(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_all_processes_of_a_fleet_have_its_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert clock.follow(file) is None
    clock.note(file)
    before = clock.now()
    ahead = time.time() + 10 * DAY_S
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert clock.follow(file) is None, "it was not booted"
    assert before <= clock.now() < before + DAY_S
    assert clock.wall(clock.now()) == pytest.approx(ahead)
    assert clock.of_wall(ahead - 5) == pytest.approx(clock.now() - 5, abs=1)
    assert clock.of_wall(ahead + 5) <= clock.now(), "nothing was in the future"


@pytest.mark.parametrize("days, passed", [(3, 3 * DAY_S), (-3, 0)])
def test_after_a_boot_it_has_gone_on_and_never_back(file: Path, days: int, passed: int) -> None:
    clock.note(file)
    at = json.loads(file.read_text())["steady"]
    update_fields(file, boot="another", monotonic=9e9, wall=time.time() - days * DAY_S)
    assert clock.follow(file) == at
    assert clock.now() == pytest.approx(at + passed, abs=DAY_S / 2)


def test_in_another_time_namespace_it_was_not_booted(file: Path) -> None:
    clock.note(file)
    at = json.loads(file.read_text())["steady"]
    update_fields(file, namespace="time:[1]", monotonic=9e9)
    assert clock.follow(file) is None
    assert clock.now() == pytest.approx(at, abs=DAY_S / 2)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"boot": 1}', "\x00" * 40])
def test_a_damaged_note_is_none(file: Path, text: str) -> None:
    file.write_text(text)
    assert clock.follow(file) is None
    assert clock.now() == pytest.approx(time.time(), abs=DAY_S / 2)


def test_devices_count_until_the_last_note_before_the_boot(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        held = Record("a", "placed", placement=("x", "y", "y"), gpu_seconds=5.0, placed_since=100.0)
        journal.save(held)
        journal.save(Record("rests", "detached", gpu_seconds=7.0))
        count_until(journal, 130.0)
        found = journal.record("a")
        assert found is not None and found.gpu_seconds == 5.0 + 2 * 30.0
        assert found.placed_since == pytest.approx(clock.now(), abs=DAY_S / 2)
        count_until(journal, 130.0)  # it was killed before it noted its own time
        again, rests = journal.record("a"), journal.record("rests")
        assert again is not None and again.gpu_seconds == found.gpu_seconds
        assert rests is not None and (rests.gpu_seconds, rests.placed_since) == (7.0, None)

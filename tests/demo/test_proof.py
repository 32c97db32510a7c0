"""The demo's proof from counters: exact attribution, and no claim that was not seen."""

from __future__ import annotations

import copy
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from examples.demo.__main__ import shared
from examples.demo.fleet import FleetError
from examples.demo.proof import Proof, Sharing, lost_steps, proof
from examples.demo.run import WORLD_SIZE, Record, Recovery, Sample
from examples.demo.show import Screen
from examples.demo.timeline import draw, intervals

# epoch → device of each rank, kernels of each rank at its arrival there
PLACES = [("a", "b", "c", "d"), ("b", "b", "b", "b"), ("a", "a", "b", "b")]
ARRIVALS = [0, 1000, 2500]
FINAL = 4000


def status(epoch: int, kernels: int, ended: bool = False) -> dict[str, Any]:
    """The fleet's status when each rank has run so many kernels."""
    place = PLACES[epoch]
    counters = {
        "kernels": kernels,
        "kernels_here": kernels - ARRIVALS[epoch],
        "collectives": 301,
        "squashed": kernels // 4,
        "spared": 2 * epoch << 20,
        "copies": 5,
        "unforeseen": 0,
    }
    sharing = {"on": None if ended else True, "chunksShared": 0 if ended else 2 * (epoch % 2)}
    ranks = [
        {
            "rank": rank,
            "device": None if ended else place[rank],
            "pid": 1000 * (rank + 1),
            "state": "running",
            "onDevice": None if ended else "attached",
            "counters": dict(counters),
        }
        for rank in range(WORLD_SIZE)
    ]
    devices = [
        {
            "name": name,
            "memory": 1 << 28,
            "used": 1 << 20,
            "ranks": [] if ended else [f"gpt/{r}" for r in range(WORLD_SIZE) if place[r] == name],
            "counters": {
                "switches": 7 * epoch,
                "swapped_in": epoch << 20,
                "swapped_out": epoch << 20,
            },
        }
        for name in "abcd"
    ]
    phase = "Succeeded" if ended else "Running"
    return {
        "jobs": [
            {"name": "gpt", "phase": phase, "epoch": epoch + 1, "ranks": ranks, "sharing": sharing}
        ],
        "devices": devices,
    }


def sample(time: float, said: dict[str, Any]) -> Sample:
    ranks = said["jobs"][0]["ranks"]
    placement = {each["rank"]: each["device"] for each in ranks if each["device"]}
    return Sample(time, said["jobs"][0]["phase"], placement, said)


@pytest.fixture
def record() -> Record:
    found = Record(steps=100)
    told = [(0, 400), (0, 900), (1, 1000), (1, 2100), (2, 2700), (2, 3900)]
    found.samples = [sample(float(i), status(*each)) for i, each in enumerate(told)]
    found.samples.append(sample(9.0, status(2, FINAL, ended=True)))
    where = [dict(enumerate(place)) for place in PLACES]
    found.settled = [(0.0, where[0]), (2.0, where[1]), (3.0, {}), (4.0, where[2])]
    found.seconds = 9.5
    found.losses = {step: [3.0, 3.1, 2.9, 3.0] for step in range(3)}
    found.step_times = [0.5, 1.5, 2.5]
    return found


def test_kernels_are_attributed_exactly(record: Record) -> None:
    """Work between the last answer of an epoch and the move counts, too."""
    found = proof(record)
    assert found.kernels == {
        "a": {0: 1000 + 1500, 1: 1500},
        "b": {0: 1500, 1: 1000 + 1500, 2: 1500 + 1500, 3: 1500 + 1500},
        "c": {2: 1000},
        "d": {3: 1000},
    }
    assert all(found.kernels_of(rank) == FINAL for rank in range(WORLD_SIZE))
    assert (found.folded_on, found.folded_kernels) == ("b", 4 * 1500)
    assert found.pids_constant and found.switches["a"] == 14


def test_the_proof_states_the_sharing_that_the_fleet_counted(record: Record) -> None:
    """Nothing is claimed that it does not say."""
    found = proof(record).sharing
    assert found == Sharing(True, 2, 4 * FINAL // 4, 4 * 4 << 20, 4 * 5, 0)
    said = shared(asdict(found))
    assert "shared up to 2 chunks" in said and "4,000 operations" in said and "16.0 MiB" in said
    for each in record.samples:
        each.status["jobs"][0]["sharing"] = {"on": False, "chunksShared": 0}
    assert "sharing is off" in shared(asdict(proof(record).sharing))
    for each in record.samples:
        del each.status["jobs"][0]["sharing"]
    assert not proof(record).sharing.on


def test_another_device_with_a_rank_breaks_the_claim(record: Record) -> None:
    record.samples[3].status["devices"][0]["ranks"].append("other/0")
    assert proof(record).folded_on == ""


def test_a_pid_that_changes_is_seen(record: Record) -> None:
    record.samples[4].status["jobs"][0]["ranks"][2]["pid"] = 77
    assert not proof(record).pids_constant


def test_ranks_have_other_pids_after_a_crash(record: Record) -> None:
    record.samples[4].status["jobs"][0]["ranks"][2]["pid"] = 77
    record.recovery = Recovery("1-1", 14, record.samples[3].time, 60, 5, 8.0)
    assert proof(record).pids_constant
    record.recovery = Recovery("1-1", 14, record.samples[4].time, 60, 5, 8.0)
    assert not proof(record).pids_constant


@pytest.mark.parametrize("missing", ["final", "one rank"])
def test_missing_counters_are_no_proof(record: Record, missing: str) -> None:
    if missing == "final":
        del record.samples[-1].status["jobs"][0]["ranks"][1]["counters"]
    else:
        for each in record.samples[:2]:
            each.status["jobs"][0]["ranks"][3]["onDevice"] = "waiting"
    with pytest.raises(FleetError):
        proof(record)


def test_lost_steps(record: Record) -> None:
    reference = proof(record)
    assert lost_steps(reference, reference, 100) == 0

    def with_collectives(count: int) -> Proof:
        again = copy.deepcopy(record)
        again.samples[-1].status["jobs"][0]["ranks"][1]["counters"]["collectives"] = count
        return proof(again)

    assert lost_steps(reference, with_collectives(304), 100) == 1
    assert lost_steps(reference, with_collectives(305), 100) == 2
    with pytest.raises(FleetError):
        lost_steps(reference, with_collectives(300), 100)


def test_timeline(record: Record, tmp_path: Path) -> None:
    assert intervals(record)[2] == [
        (0.0, 2.0, "c"),
        (2.0, 3.0, "b"),
        (3.0, 4.0, ""),
        (4.0, 9.5, "b"),
    ]
    draw(record, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "plain"])
def test_the_demo_shows_its_progress(
    record: Record,
    terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table on a terminal, lines elsewhere; what is news stays on both."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    else:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
    record.samples.pop()
    screen = Screen()
    with screen.run("The run"):
        screen.show(record, "commit 1234, fold")
        screen.show(record, "")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert shown.splitlines()[0] == "The run"
    assert shown.rstrip().splitlines()[-1] == "     9.5 s  commit 1234, fold"
    row = re.search(r"b +2 +3 +1 of 256 MiB +14 +2 MiB", shown)
    assert bool(row) == terminal
    assert ("step 3 of 100" in shown) == terminal

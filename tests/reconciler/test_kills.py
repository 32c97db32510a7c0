"""The reconciler may be killed at any named point; the next one arrives at the same end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankfold.reconciler
from rankfold.reconciler.faults import POINTS
from support.command import Rankfold, Specs

SOURCES = Path(rankfold.reconciler.__file__).parent


def test_every_point_of_the_table_is_in_the_code_and_no_other() -> None:
    text = "".join(file.read_text() for file in SOURCES.rglob("*.py"))
    assert set(re.findall(r'point\("([a-z._]+)"\)', text)) | {
        f"{op}.partly" for op in re.findall(r'_request_all\([a-z.]+, "([a-z]+)"', text)
    } == set(POINTS)


# One of each kind by default; `make test-slow` walks the whole table.
USUAL = ("start.partly", "place.journalled", "place.partly", "barrier.partly", "detach.partly")
USUALLY_SAVED = ("save.frozen", "vacate.before", "restore.launched")
_OF_SAVES = ("save", "upload", "conclude", "vacate", "rest", "fetch", "restore")
SAVED = {point for point in POINTS if point.partition(".")[0] in _OF_SAVES}
SNAPSHOT = {point for point in POINTS if point.partition(".")[0] == "local_snapshot"}
OF_A_SNAPSHOT = (
    SNAPSHOT
    | {point for point in POINTS if point.partition(".")[0] in ("vacate", "rest", "restore")}
    | {"save.frozen", "save.written"}
)
USUALLY_SNAPSHOT = ("local_snapshot.written", "restore.launched")


@pytest.mark.usual("barrier.partly", "start.partly")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(p, marks=() if p in USUAL else pytest.mark.slow)
        for p in sorted(POINTS.keys() - SAVED - SNAPSHOT)
    ],
)
def test_killed_at(point: str, rankfold: Rankfold, specs: Specs) -> None:
    """Start, fold, suspend, resume, end: the reconciler dies at `point` in every one of them.

    No one helps: the command that waits notices, starts another, and continues waiting.
    """
    token = specs.folder / "die"
    rankfold.environment["RANKFOLD_FAULT"] = f"{point}@{token}"
    died, ranks = 0, []
    for gpus, extra in ((2, ""), (1, ""), (1, "suspend: true"), (2, "")):
        specs.job(gpus=gpus, extra=extra, ranks=2)
        token.touch()
        rankfold("apply", "-f", str(specs.folder), "--wait")
        died += not token.exists()
        job = rankfold.job("gpt")
        assert job["phase"] == ("Suspended" if extra else "Running")
        assert len(set(job["placement"].values())) == (0 if extra else gpus)
        ranks.append([rank["pid"] for rank in job["ranks"]])
    assert all(pids == ranks[0] for pids in ranks), "no rank was started twice"
    token.touch()
    specs.finish_jobs()
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Succeeded")
    died += not token.exists()
    assert died > 0, "the point was never reached"
    token.unlink(missing_ok=True)
    assert rankfold("logs", "gpt").count("is done") == 2


@pytest.mark.usual("save.frozen")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=() if p in USUALLY_SAVED else pytest.mark.slow) for p in sorted(SAVED)],
)
def test_killed_while_a_job_is_saved_and_restored(
    point: str, rankfold: Rankfold, specs: Specs
) -> None:
    """Save, rest in the store, continue, fail, continue: the reconciler dies at `point` in each of
    them. Its ranks count, in their memory alone: a copy of one would count in addition."""
    token, stop = specs.folder / "die", specs.stop_file
    rankfold.environment["RANKFOLD_FAULT"] = f"{point}@{token}"
    count = f"n=0; until [ -e {stop} ]; do n=$((n+1)); echo $n; sleep 0.05; done; echo is done"
    specs.program(["sh", "-c", count], "gpt", gpus=2, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    died = 0

    def meets_death(*command: str) -> None:
        token.touch()
        rankfold(*command)

    def comes_to(what: Callable[[Any], bool]) -> None:
        nonlocal died
        with rankfold.watching(str(specs.folder)):
            rankfold.until(lambda: what(rankfold.job("gpt")))
        died += not token.exists()

    meets_death("checkpoint", "gpt")
    comes_to(lambda job: len(job["checkpoints"]) == 1 and job["phase"] == "Running")
    meets_death("suspend", "gpt", "--store", "--override")
    comes_to(lambda job: job["suspendedIn"] == "store")
    meets_death("resume", "gpt", "--override")
    comes_to(lambda job: all(rank["state"] == "running" for rank in job["ranks"]))
    token.touch()
    os.kill(rankfold.job("gpt")["ranks"][1]["pid"], signal.SIGKILL)
    comes_to(lambda job: job["restarts"] == 1 and job["ranks"][0]["state"] == "running")
    token.unlink(missing_ok=True)
    assert died > 0, "the point was never reached"
    specs.finish_jobs()
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Succeeded")
    for rank in range(2):
        lines = rankfold("logs", "gpt", "--rank", str(rank)).split()
        *counted, _, _ = lines
        assert counted == [str(n + 1) for n in range(len(counted))], "each line once, in order"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(p, marks=() if p in USUALLY_SNAPSHOT else pytest.mark.slow)
        for p in sorted(OF_A_SNAPSHOT)
    ],
)
def test_killed_while_a_job_rests_on_the_disk(point: str, rankfold: Rankfold, specs: Specs) -> None:
    """Suspended and resumed: the reconciler dies at `point`, and each line is written once."""
    token, stop = specs.folder / "die", specs.stop_file
    rankfold.environment["RANKFOLD_FAULT"] = f"{point}@{token}"
    rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = "0"
    count = f"n=0; until [ -e {stop} ]; do n=$((n+1)); echo $n; sleep 0.05; done; echo is done"
    specs.program(["sh", "-c", count], "gpt", gpus=2, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    token.touch()
    with rankfold.watching(str(specs.folder)):
        rankfold("suspend", "gpt", "--override")
        rankfold.until(lambda: rankfold.job("gpt")["suspendedIn"] == "node")
        rankfold("resume", "gpt", "--override")
        rankfold.until(lambda: rankfold.job("gpt")["ranks"][0]["state"] == "running")
        assert not token.exists(), "the point was never reached"
        specs.finish_jobs()
        rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Succeeded")
    for rank in range(2):
        *counted, _, _ = rankfold("logs", "gpt", "--rank", str(rank)).split()
        assert counted == [str(n + 1) for n in range(len(counted))], "each line once, in order"
    assert rankfold.job("gpt")["restarts"] == 0

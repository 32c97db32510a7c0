"""Promise: a rank is quiet for as long as it was not seen to get on, on this device."""

from __future__ import annotations

import pytest

from rankfold.proxy.jobs import Job, Placement
from rankfold.proxy.native import RankStatus


def status(at: str, moves: int) -> RankStatus:
    return RankStatus(False, True, 0, "", 0, 0, 0, 0, 0, 0, at=at, moves=moves)


def test_for_how_long_a_rank_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("rankfold.proxy.jobs.time.monotonic", lambda: clock[0])
    job = Job(1, Placement("gpt", 1, ("a",), ("s",), (0,), ("l",), "", "none", 1), 0)
    assert "quiet_s" not in job.describe_rank(0), "it has not come yet"
    job.attached[0] = status("host", 0)
    told = []
    for clock[0], at, moves in (
        (100.0, "host", 7),
        (130.0, "host", 7),
        (150.0, "others", 8),
        (190.0, "others", 8),
    ):
        job.remember(0, status(at, moves))
        found = job.describe_rank(0)
        told.append((found["at"], found["quiet_s"]))
    assert told == [("host", 0.0), ("host", 30.0), ("others", 0.0), ("others", 40.0)]
    job.exited.add(0)
    assert "at" not in job.describe_rank(0), "it gets on no more"

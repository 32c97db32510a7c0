"""Promise: proxies report the savings of sharing per rank, and `describe` those of the job."""

from __future__ import annotations

import json
from typing import Any

import cuda
import pytest

from rankfold.reconciler.observe.sharing import REPORTED
from support.command import Rankfold, job_environment
from support.fleet import Fleet, MiB, until
from support.leaks import State
from support.patience import scaled

COUNTED = tuple(REPORTED)
PROGRAM = cuda.PROGRAMS / "pathologies.cu"


@pytest.fixture
def rankfold(state: State) -> Rankfold:
    return Rankfold(state, job_environment(HOME=str(state.folder), PYTHONPATH=""))


def begin(rankfold: Rankfold, ranks: int, steps: int, share: str) -> Any:
    command = [str(cuda.build(PROGRAM)), str(steps), "plain"]
    return rankfold.start(
        "run",
        "--world-size",
        str(ranks),
        "--gpus",
        "1",
        "--name",
        "job",
        "--",
        *command,
        RANKFOLD_SHARE=share,
    )


def test_describe_tells_what_a_job_shares_while_it_runs_and_when_it_has_ended(
    rankfold: Rankfold,
) -> None:
    process = begin(rankfold, ranks=2, steps=6, share="1")
    now = rankfold.until(lambda: squashed_something(rankfold.job("job").get("sharing")))
    guard = rankfold.job("job")["guard"]
    assert guard == {  # six collectives
        "every": 256,
        "compared": 0,
        "unwatched": 0,
        "measured": 0,
        "alike": 0,
    }
    assert now["on"] is True and now["guard"] == "sets"
    assert now["chunksShared"] >= 2 * 2  # parameters and velocity
    _out, errors = process.communicate(timeout=scaled(200.0))
    assert process.returncode == 0, errors
    told = json.loads(rankfold("describe", "job", "-o", "json"))
    assert told["sharing"]["on"] is None and told["sharing"]["chunksShared"] == 0
    for name in COUNTED:
        mine = [rank["counters"][name] for rank in told["ranks"]]
        assert told["sharing"][REPORTED[name]] == sum(mine) >= now[REPORTED[name]]
    lines = rankfold("describe", "job").splitlines()
    assert any(line.startswith("sharing: ") and "squashed" in line for line in lines)
    assert "              the reads and writes of kernels are known from their code" in lines
    assert any(f"{told['sharing']['operationsSquashed']} operations" in line for line in lines)


def squashed_something(sharing: Any) -> Any:
    squashed = sharing and sharing["operationsSquashed"] and sharing["chunksShared"]
    return sharing if squashed else None


@pytest.mark.slow
def test_describe_says_that_nothing_is_shared(rankfold: Rankfold) -> None:
    process = begin(rankfold, ranks=2, steps=1000, share="0")
    counted = dict.fromkeys(["chunksShared", *REPORTED.values()], 0)
    nothing = {"on": False, "guard": "sets", **counted}
    found = rankfold.until(lambda: rankfold.job("job").get("sharing"))
    devices = rankfold.status()["devices"]
    assert {**found, "chunksPrepared": 0} == nothing  # that needs no sharing
    assert [each["shares"] for each in devices] == [False]
    assert "sharing:      off" in rankfold("describe", "job").splitlines()
    assert rankfold.job("job")["guard"] is None
    rankfold("cancel", "job")
    process.communicate(timeout=scaled(60.0))
    assert {**rankfold.job("job")["sharing"], "chunksPrepared": 0} == {**nothing, "on": None}
    assert "sharing:      nothing" in rankfold("describe", "job").splitlines()


@pytest.mark.slow
def test_a_rank_takes_its_counters_along(state: State) -> None:
    """Those of the devices stay."""
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        job = fleet.start("job", [str(cuda.build(PROGRAM)), "12", "host_copy"], [0, 0, 0, 0])

        def ranks(device: int) -> list[Any]:
            here = [
                each
                for each in fleet.status(fleet.names[device])["jobs"]
                if each["job"] == "job" and each["epoch"] == job.epoch
            ]
            return here[0]["ranks"] if here else []

        until(lambda: all(sum(r[name] for r in ranks(0)) for name in ("squashed", "copies")), 90)
        job.stop()
        before, device = ranks(0), fleet.status(fleet.names[0])
        for name in COUNTED:
            assert sum(rank[name] for rank in before) == device[name]
        job.detach()
        job.place([fleet.names[1]] * 4)
        after = until(lambda: all(r["state"] == "attached" for r in ranks(1)) and ranks(1))
        for old, new in zip(before, after, strict=True):
            for name in COUNTED:
                assert new[name] - new[f"{name}_here"] == old[name], name
        assert job.wait() == [0] * 4
        job.detach(discard=True)

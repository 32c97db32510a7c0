"""A job that measured slower after it has grown returns to fewer devices, with the same bits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rankfold.policy.vocabulary import Rate
from rankfold.reconciler.journal.journal import Journal
from support.command import Rankfold, Specs

from .neighbour import NAME, Neighbour
from .test_ranges import POLICY


@pytest.mark.slow
def test_growth_that_measured_slower_is_taken_back(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    """The rate on two devices is written into the journal: a busy machine decides how fast software
    devices are. The next reconciler acts on it."""
    specs.pool(1)
    specs.write("policy.yaml", POLICY)
    neighbour.apply("{min: 1, max: 2}")
    (first,) = neighbour.devices()
    pids = neighbour.pids()
    rankfold.until(lambda: rankfold.job(NAME)["rates"])
    shown = [(each["devices"], each["basis"]) for each in rankfold.job(NAME)["rates"]]
    assert shown == [(1, "measured"), (2, "estimated")]
    assert "steps per s on 2 devices, estimated" in rankfold("describe", NAME)
    specs.pool(2)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: len(neighbour.devices()) == 2)
    neighbour.continues()
    rankfold("stop")
    with Journal(rankfold.state.path) as journal:
        record = journal.record(NAME)
        assert record is not None and record.placed_since is not None
        (fewer,) = record.rates
        assert (fewer.devices, fewer.at < record.placed_since) == (1, True)
        slower = Rate(
            2, fewer.per_s / 2, 0.0, record.placed_since + 1, 1.0, replace(fewer, error=0.0)
        )
        journal.save(replace(record, rates=(fewer, slower)))
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: neighbour.devices() == {first})
    neighbour.continues()
    job = rankfold.job(NAME)
    assert (job["slower"]["devices"], job["slower"]["than"]) == (2, 1)
    moves = [(each["from"], each["to"], each["cause"]) for each in job["changes"]]
    assert moves == [(1, 2, "growth"), (2, 1, "growth")]
    assert "slower on 2 than on 1 device: at most 1 until" in rankfold("describe", NAME)
    assert neighbour.pids() == pids
    neighbour.finish()


@pytest.mark.slow
def test_the_next_job_with_the_program_has_its_estimates(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    """By then the first one is no longer described, and its record is removed."""
    specs.pool(1)
    neighbour.apply("{min: 1, max: 2}")
    rankfold.until(lambda: rankfold.job(NAME)["rates"])
    neighbour.finish()
    (one, two) = [each["perSecond"] for each in rankfold.job(NAME)["rates"]]
    (specs.folder / f"{NAME}.yaml").unlink()
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: not rankfold.status()["jobs"])
    neighbour.told.unlink()
    command = [str(neighbour.program), str(neighbour.told)]
    specs.program(command, "next", "{min: 1, max: 2}", "", neighbour.ranks)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    shown = rankfold.job("next")["rates"]
    assert [(each["devices"], each["basis"]) for each in shown] == [
        (1, "estimated"),
        (2, "estimated"),
    ]
    assert [each["perSecond"] for each in shown] == [one, two]
    rankfold.until(lambda: rankfold.job("next")["rates"][0]["basis"] == "measured")
    assert f"; estimated: {one:g}" in rankfold("describe", "next")
    neighbour.told.touch()
    rankfold.until(lambda: rankfold.job("next")["phase"] == "Succeeded")

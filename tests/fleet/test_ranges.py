"""A job with a range of devices grows, shrinks and rests while it runs, with the same bits."""

from __future__ import annotations

from typing import Any

import pytest

from support.command import Rankfold, Specs

from .neighbour import NAME, Neighbour

POLICY = """\
apiVersion: rankfold/v1alpha1
kind: Policy
metadata: {name: default}
spec: {growthDelay: 0s}
"""


def test_a_job_uses_idle_devices_and_gives_them_up_to_other_jobs(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    specs.pool(2)
    specs.write("policy.yaml", POLICY)
    neighbour.apply("{min: 0, max: 2, demand: 1}")
    assert len(neighbour.devices()) == 2
    neighbour.continues()
    pids = neighbour.pids()
    job = rankfold.job(NAME)
    assert (job["gpusMin"], job["gpus"], job["demand"]) == (0, 2, 1)
    assert "2/0-2" in rankfold("status")

    specs.job("first", gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert len(neighbour.devices()) == 1
    neighbour.continues()

    specs.job("second", gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("second")["devices"] == 1)
    job = rankfold.job(NAME)
    assert (job["phase"], job["devices"]) == ("Pending", 0)
    waits = [each["message"] for each in job["conditions"] if each["reason"] == "WaitingForDevices"]
    assert waits == ["needs 1 device of any kind; free for it now: 0"]
    assert "devices:      0 of 0 to 2 wanted" in rankfold("describe", NAME)

    specs.finish_jobs()
    rankfold.until(lambda: len(neighbour.devices()) == 2)
    assert neighbour.pids() == pids, "the same processes, all the time"

    def moves() -> list[dict[str, Any]]:
        return [each for each in rankfold.job(NAME)["changes"] if not each["superseded"]]

    rankfold.until(lambda: all(each["pause_s"] for each in moves()))
    assert [(each["from"], each["to"], each["cause"]) for each in moves()][:2] == [
        (2, 1, "order"),
        (1, 0, "order"),
    ]
    job = rankfold.job(NAME)
    assert job["pauses"].keys() >= {"suspend", "resize"}
    assert job["pauses"]["suspend"] == pytest.approx(moves()[1]["pause_s"], abs=1e-5)
    neighbour.finish()


def test_a_number_of_devices_given_by_hand_replaces_the_range(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    specs.pool(2)
    neighbour.apply("{max: 2}")
    assert len(neighbour.devices()) == 2
    rankfold("scale", NAME, "--gpus", "1", "--override", "--wait")
    job = rankfold.job(NAME)
    assert (job["gpusMin"], job["gpus"], job["devices"]) == (None, 1, 1)
    neighbour.finish()

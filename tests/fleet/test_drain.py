"""A device is emptied under a job that runs: it continues elsewhere, with the same bits."""

from __future__ import annotations

from typing import Any

from support.command import Rankfold, Specs

from .neighbour import NAME, Neighbour

POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec:
  devices: [{type: soft, count: 2, memory: 64MiB}]
"""


def test_a_device_is_drained_and_returns_to_service(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    def device(number: int) -> Any:
        return rankfold.status()["devices"][number]

    specs.write("pool.yaml", POOL)
    neighbour.apply(1)
    neighbour.continues()
    assert neighbour.devices() == {"local/soft-0"}
    pids = neighbour.pids()

    specs.write("pool.yaml", POOL + "  drain: [local/soft-0]\n")
    folder = str(specs.folder)
    planned = rankfold("plan", "-f", folder)
    assert "spec.drain: none → local/soft-0" in planned
    assert f"Job/{NAME}: moves, on 1 device as before (drain: 1 of its 1 device is" in planned
    rankfold("apply", "-f", folder, "--wait")
    assert neighbour.devices() == {"local/soft-1"}
    neighbour.continues()
    assert neighbour.pids() == pids, "the same processes"
    assert (device(0)["drain"], device(0)["ranks"], device(0)["state"]) == ("drained", [], "Ready")
    assert device(1)["drain"] is None and "Ready, drained" in rankfold("status")
    moved = rankfold.job(NAME)["changes"][-1]
    assert (moved["from"], moved["to"], moved["cause"]) == (1, 1, "drain")
    assert "drain" in rankfold("usage")

    specs.write("pool.yaml", POOL + "  drain: [local/soft-0, local/soft-1]\n")
    rankfold("apply", "-f", folder)
    rankfold.until(lambda: device(1)["drain"] == "drained")
    job = rankfold.job(NAME)
    assert (job["phase"], job["devices"]) == ("Pending", 0)
    waits = [each["message"] for each in job["conditions"] if each["reason"] == "WaitingForDevices"]
    assert waits and "drained: local/soft-0, local/soft-1" in waits[0]

    specs.write("pool.yaml", POOL)
    rankfold("apply", "-f", folder, "--wait")
    assert neighbour.devices() and neighbour.pids() == pids
    assert device(0)["drain"] is None
    neighbour.finish()

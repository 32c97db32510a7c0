"""A service has as many replicas as its load needs: training gives up devices when the load rises,
and has them back when it falls, with the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs

from .neighbour import NAME, Neighbour
from .test_ranges import POLICY

SERVICE = """\
apiVersion: rankfold/v1alpha1
kind: Service
metadata: {name: web}
spec:
  command: [sh, -c, 'echo "replica $REPLICA"; until [ -e stop ]; do sleep 0.05; done']
  replicas: {min: 1, max: 2}
  load: {file: load, perReplica: 100, fallDelay: 1s}
"""


def set_load(specs: Specs, load: str) -> None:
    temporary = specs.folder / ".load.new"
    temporary.write_text(load)
    temporary.rename(specs.folder / "load")


@pytest.mark.slow
def test_training_gives_up_devices_to_a_service_and_has_them_back(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    specs.pool(3)
    specs.write("policy.yaml", POLICY)
    specs.write("web.yaml", SERVICE)
    set_load(specs, "0\n")
    neighbour.apply("{min: 1, max: 2}")
    assert len(neighbour.devices()) == 2
    assert rankfold.job("web-0")["phase"] == "Running"
    assert rankfold.job("web-1")["phase"] == "Suspended"
    neighbour.continues()

    set_load(specs, "150\n")
    rankfold.until(lambda: rankfold.job("web-1")["devices"] == 1)
    assert len(neighbour.devices()) == 1
    (service,) = rankfold.status()["services"]
    assert (service["replicas"], service["onDevices"], service["message"]) == (2, 2, "")
    assert "web      2/2" in rankfold("status")
    neighbour.continues()

    set_load(specs, "99\n")
    rankfold.until(lambda: len(neighbour.devices()) == 2)
    job = rankfold.job("web-1")
    assert (job["phase"], job["devices"], job["service"]) == ("Suspended", 0, "web")
    moves = [(each["from"], each["to"], each["cause"]) for each in rankfold.job(NAME)["changes"]]
    assert moves == [(2, 1, "serving"), (1, 2, "growth")]
    assert "1 → 2 replicas: the load is 150" in rankfold("events")

    set_load(specs, "many")
    rankfold.until(lambda: rankfold.status()["services"][0]["message"])
    assert "must hold one number" in rankfold("status")
    assert rankfold.status()["services"][0]["replicas"] == 1
    neighbour.finish()


@pytest.mark.slow
def test_a_replica_that_exits_starts_again(rankfold: Rankfold, specs: Specs) -> None:
    """Ten seconds after its end, if it ran for less."""
    specs.pool(1)
    specs.write("web.yaml", SERVICE.replace("{min: 1, max: 2}", "1").replace("  load:", "  #"))
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert rankfold.job("web-0")["phase"] == "Running"
    first = rankfold.job("web-0")["ranks"][0]["pid"]
    os.kill(first, signal.SIGKILL)
    rankfold.until(
        lambda: (
            rankfold.job("web-0")["restarts"] == 1
            and rankfold.job("web-0")["ranks"][0]["pid"] not in (None, first)
        )
    )
    rankfold.until(lambda: rankfold.job("web-0")["devices"] == 1)
    printed: Path = Layout(rankfold.state.path).logs("web-0") / "rank-0.out"
    rankfold.until(lambda: printed.read_text() == "replica 0\n")

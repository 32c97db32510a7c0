"""Promise: a clean-up of /tmp, where the sockets are, costs no job anything."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from rankfold import paths, peers
from support import leaks, privileges
from support.command import Rankfold, Specs
from support.patience import scaled

from .neighbour import NAME, Neighbour


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["reconciler continues", "reconciler killed"])
def test_a_job_can_be_steered_when_all_sockets_were_removed(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour, killed: bool
) -> None:
    """Its ranks continue as if nothing had been. Killed: the next reconciler knows no job yet."""
    privileges.need_criu()
    specs.pool(2)
    neighbour.apply(gpus=1)
    neighbour.continues()
    before, pid = neighbour.pids(), rankfold.reconciler_pid()
    if killed:
        os.kill(pid, signal.SIGKILL)
        assert leaks.has_ended(pid, scaled(leaks.GRACE_S))
    sockets = paths.sockets(rankfold.state.path)
    removed = rankfold.state.folder / "removed"
    if peers.identified():  # at once: the servers look again and again
        sockets.rename(removed)
        shutil.rmtree(removed)
    else:  # no folder is made anew
        for each in sockets.iterdir():
            each.unlink()
    neighbour.continues()
    neighbour.apply(gpus=2)
    rankfold.until(lambda: len(neighbour.devices()) == 2)
    rankfold.until(lambda: neighbour.pids() == before)  # each is there again soon
    neighbour.continues()
    rankfold("suspend", NAME, "--store", "--override", "--wait")
    assert rankfold.job(NAME)["suspendedIn"] == "store"
    rankfold("resume", NAME, "--override")
    neighbour.finish()

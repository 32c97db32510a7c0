"""Programs from PyPI, unmodified, in a rank: each compares its results with a reference."""

from __future__ import annotations

import pytest

from support.command import Rankfold, Specs, job_environment
from support.leaks import State

from .table import GUESTS, Guest

TIMEOUT_S = 900.0


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("guest", [each for each in GUESTS if each.computed], ids=str)
def test_it_computes_what_its_reference_does(guest: Guest, state: State) -> None:
    rankfold = Rankfold(state, job_environment(**guest.env(state.folder)))
    if guest.capability:
        specs = Specs(state.folder / "specs")
        specs.pool(1, "1GiB", guest.capability)
        rankfold("apply", "-f", str(specs.folder), "--wait")
    command = [guest.python(), str(guest.folder / "computed.py")]
    process = rankfold.start("run", "--world-size", "1", "--", *command)
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        rankfold.end()
    assert process.returncode == 0, err
    assert out == guest.computed

"""PyTorch's ways to train in parallel, and its collectives, on fewer devices than ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from guests.runner import Place, Results, Way, folded, moved
from guests.table import Guest

from support.command import Rankfold, Specs
from support.leaks import State

PARALLEL = Guest(
    "torch-parallel",
    "tests/torch/parallel.py",
    (),
    ranks=4,
    lines=3,
    interpreter="build/torch/python",
    capability="9.0",
    memory="1GiB",
)


@pytest.fixture(scope="module")
def expected() -> list[Results]:
    """The results of an undisturbed run, when a test of this file has made one."""
    return []


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", [folded, moved])
def test_each_way_to_train_gives_the_same_bits(
    way: Way,
    expected: list[Results],
    torch: Path,
    state: State,
    rankfold: Rankfold,
    specs: Specs,
) -> None:
    place = Place(PARALLEL, state, rankfold, specs)
    if not expected:
        expected.append(place.undisturbed())
    assert way(place) == expected[0]

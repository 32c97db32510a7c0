"""A job's outputs, files and parameters do not depend on how it ran: folded onto one device, moved
while it runs, or saved at a moment chosen at random, killed, and restarted under another state
directory on other devices."""

from __future__ import annotations

import pytest

from support.command import Rankfold, Specs
from support.leaks import State

from .runner import WAYS, Place, Way, in_pairs, killed, on_request
from .table import GUESTS, Guest

SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


def marks(guest: Guest, way: Way) -> list[pytest.MarkDecorator]:
    if guest.quick and way in (killed, on_request):
        return []
    return [*SLOW, pytest.mark.installs] if guest.fetched else SLOW


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guest", "way"),
    [
        pytest.param(guest, way, marks=marks(guest, way), id=f"{guest}-{way.__name__}")
        for guest in GUESTS
        if guest.lines
        for way in WAYS
        if way is not in_pairs or guest.ranks == 4  # pairs of two ranks are `folded`
    ],
)
def test_the_bits_are_those_of_an_undisturbed_run(
    guest: Guest, way: Way, state: State, rankfold: Rankfold, specs: Specs
) -> None:
    place = Place(guest, state, rankfold, specs)
    expected = place.undisturbed()
    assert way(place) == expected

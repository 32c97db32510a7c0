"""A switch between logical workers keeps the numbers of NumPy's global generator."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from rankfold.elastic import generators

pytestmark = pytest.mark.unit
WORKERS, CALLS = 3, 400


@pytest.fixture(autouse=True)
def own_generator() -> Iterator[None]:
    saved = generators.Numpy()
    yield
    saved.restore()


def begun(number: int, bits: Any = None) -> generators.Numpy:
    """A worker that has set its seed, or its kind of bit generator."""
    generators.begin()
    if bits is None:
        numpy.random.seed(number)
    else:
        numpy.random.set_bit_generator(bits)  # type: ignore[attr-defined]
    return generators.Numpy()


def calls(draw: random.Random) -> Callable[[Any, dict[str, Any]], Any]:
    """The next thing that a worker does, to NumPy's module or to a generator."""

    def restore(generator: Any, kept: dict[str, Any]) -> None:
        if "state" in kept:
            generator.set_state(kept["state"])

    return draw.choice(
        [
            lambda generator, _: generator.randn(),  # each second one draws nothing
            lambda generator, _: generator.randn(),
            lambda generator, _: float(generator.rand()),
            lambda generator, _: generator.permutation(700).tolist(),
            lambda generator, kept: kept.update(state=generator.get_state(legacy=False)),
            restore,
        ]
    )


def test_workers_have_the_numbers_that_they_would_have_alone() -> None:
    """One of them has another kind of bit generator."""
    draw = random.Random(1)
    alone: list[Any] = [numpy.random.RandomState(number) for number in range(WORKERS - 1)]
    alone.append(numpy.random.RandomState(numpy.random.PCG64(5)))
    workers = [begun(number) for number in range(WORKERS - 1)]
    workers.append(begun(0, numpy.random.PCG64(5)))
    kept: list[Any] = [({}, {}) for _ in alone]
    for _ in range(CALLS):
        rank = draw.randrange(WORKERS)
        workers[rank].restore()
        call = calls(draw)
        mine, its = kept[rank]
        assert call(numpy.random, mine) == call(alone[rank], its)
        workers[rank] = generators.Numpy()


def test_copies_of_the_generator_are_numpys_own() -> None:
    begun(3)
    numpy.random.randn()
    mine = numpy.random.mtrand._rand
    copies = [copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))]
    numbers = numpy.random.randn(3).tolist()
    for each in copies:
        assert each.randn(3).tolist() == numbers
        assert type(each._bit_generator) is numpy.random.MT19937
    state = numpy.random.get_state(legacy=True)
    numpy.random.RandomState().set_state(state)
    numpy.random.seed(3)
    numpy.random.randn()
    assert numpy.random.randn(3).tolist() == numbers

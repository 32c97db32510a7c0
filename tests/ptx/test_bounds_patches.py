"""Patches that make bounds.py or ranges.py wrong: a case of test_bounds.py, or a random kernel,
shows each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ptx import test_bounds
from ptx.launches import Core, Reach
from ptx.test_random_bounds import Failed, check

from rankfold.proxy.ptx import bounds, computing, facts, ranges, values
from rankfold.proxy.ptx.blocks import Blocks
from rankfold.proxy.ptx.steps import Op

Patch = pytest.MonkeyPatch
SEEDS = range(150)


def too_small(said: Reach, low: int, high: int) -> bool:
    return (
        said.read is not None
        and low < high
        and not (said.read.low <= 4 * low and 4 * high <= said.read.high)
    )


def shown(core: Core) -> bool:
    """Is any range too small?"""
    for body, low, high in test_bounds.WORDS.values():
        if too_small(test_bounds.reach(core, body), low, high):
            return True
    for body, n, k, low, high in test_bounds.EDGES.values():
        if too_small(test_bounds.reach(core, body, n, k), low, high):
            return True
    for body in test_bounds.ANYWHERE.values():
        said = test_bounds.reach(core, body, m=1 << 40)
        if None not in (said.read, said.written):
            return True
    try:
        for seed in SEEDS:
            check(core, seed)
    except Failed:
        return True
    return False


def _all_ways(patch: Patch) -> None:
    """The patched code assumes that a fact on one path into a block holds on all."""

    def block(self: ranges.Ranges, number: int) -> ranges.Context:
        if number not in self._contexts:
            here = self.blocks[number]
            dominator = (
                self._block(here.dominator) if here.dominator != number else ranges.Context()
            )
            for edge in here.edges_in:
                dominator = self._on_edge(dominator, edge)
            self._contexts[number] = dominator
        return self._contexts[number]

    patch.setattr(ranges.Ranges, "_block", block)


def _one_value_each(patch: Patch) -> None:
    """A register has one value where different ones meet."""
    patch.setattr(Blocks, "iterated_frontier", lambda *_: set())


def _exchanged(how: str, op: tuple[Op, Op]) -> Callable[[Patch], None]:
    return lambda patch: patch.setitem(facts.COMPARED, how, op)


def _either_holds(patch: Patch) -> None:
    """Fault: both sides of an `or` are assumed to hold."""
    known = facts.facts_of

    def all_of(predicate: values.Value, holds: bool) -> list[facts.Fact]:
        if predicate.op in (("or", "pred"), ("and", "pred")):
            return [f for each in predicate.args for f in all_of(each, holds)]
        return known(predicate, holds)

    patch.setattr(ranges, "facts_of", all_of)


def _always(patch: Patch) -> None:
    """The patched code takes an assignment under a predicate for an unconditional one."""
    patch.setattr(
        ranges.Ranges,
        "_select",
        lambda self, args, bits, context, assumed: self.range(args[1], context, assumed),
    )


def _no_start(patch: Patch) -> None:
    """The patched code forgets the values that a loop brings back."""
    patch.setattr(
        ranges.Ranges,
        "_loop_range",
        lambda self, value, assumed: self._incoming_range(value, False, assumed),
    )


def _signed(patch: Patch) -> None:
    """Numbers are made longer with their sign, whatever they are."""
    patch.setattr(
        ranges.Ranges,
        "_converted",
        lambda self, op, bits, step: self.steps.add(Op.AS, 32 if "64" in op[1] else bits, 1, step),
    )


PATCHES: dict[str, Callable[[Patch], None]] = {
    "conditions hold where ways meet": _all_ways,
    "a register has one value": _one_value_each,
    "below is at most, negated": _exchanged("lt", (Op.BELOW, Op.ABOVE)),
    "a condition and its contrary": _exchanged("ge", (Op.BELOW, Op.AT_LEAST)),
    "either is both": _either_holds,
    "a predicate always holds": _always,
    "loops turn once": _no_start,
    "longer numbers are signed": _signed,
    "a long product is a short one": lambda patch: patch.setitem(
        computing.ARITHMETIC, "mul", computing._simple(Op.ADD)
    ),
    "the smaller one is the larger one": lambda patch: patch.setitem(
        computing.ARITHMETIC, "max", computing._simple(Op.LEAST)
    ),
    "bytes of an access": lambda patch: patch.setattr(bounds, "bytes_of", lambda _: 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES)
def test_a_fault_in_the_analysis_is_seen(
    core: Core, patch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PATCHES[patch](monkeypatch)
    assert shown(core)


@pytest.mark.slow
def test_without_a_fault_none_is_seen(core: Core) -> None:
    assert not shown(core)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return Core(tmp_path_factory.mktemp("bounds"))

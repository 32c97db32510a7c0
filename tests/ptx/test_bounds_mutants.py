"""Faults in what bounds.py and rank/spans.c know, each of which the cases of test_bounds.py or
random kernels must show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from barrier.mutants import Mutant
from ptx import test_bounds
from ptx.launches import Core, Reach
from ptx.test_random_bounds import Failed, check

from rankfold.proxy.ptx import bounds, computing, facts, values
from rankfold.proxy.ptx.blocks import Blocks
from rankfold.proxy.ptx.steps import Op
from support.native import CORE
from support.seeding import noticed

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


SPANS = [
    Mutant("wrap-around-ignored", "a >> bits == b >> bits", "bits"),
    Mutant(
        "all-is-signed", "sign == PROXY_UNSIGNED ? 0 : -(1ll << (bits - 1))", "-(1ll << (bits - 1))"
    ),
    Mutant("all-is-unsigned", "sign == PROXY_UNSIGNED ? 0 : -(1ll << (bits - 1))", "0"),
    Mutant(
        "below-is-well-below",
        "a.high = low_of(a.high, b.high - 1);",
        "a.high = low_of(a.high, b.high - 2);",
    ),
    Mutant(
        "above-is-well-above",
        "a.low = high_of(a.low, b.low + 1);",
        "a.low = high_of(a.low, b.low + 2);",
    ),
    Mutant(
        "a-limit-is-the-lowest",
        "a.high = low_of(a.high, b.high - 1);",
        "a.high = low_of(a.high, b.low - 1);",
    ),
    Mutant("loops-are-believed", "next.low < guess.low ||", "false ||"),
    Mutant("loops-end-where-they-should", "next.high > guess.high ||", "false ||"),
    Mutant(
        "a-turn-too-few", "width(all) / fewest & INT64_MAX", "width(all) / (fewest + 1) & INT64_MAX"
    ),
    Mutant("steps-that-may-be-none", "(by.low <= 0 && by.high >= 0)", "false"),
    Mutant("loops-never-wrap", "!inside || !within(whole, bits) ||", ""),
    Mutant(
        "joined-is-the-first",
        "low_of(a.low, b.low), high_of(a.high, b.high), a.base,",
        "a.low, a.high, a.base,",
    ),
    Mutant("rests-have-no-sign", "high_of(a.low, 1 - b.high)", "0"),
    Mutant(
        "differences-are-sums",
        "__builtin_sub_overflow(a.low, b.high, &low)",
        "__builtin_sub_overflow(a.low, b.low, &low)",
    ),
    Mutant(
        "products-have-two-corners",
        "low_of(low_of(at[0], at[1]), low_of(at[2], at[3])),\n\t\t  high_of(high_of(at[0], "
        "at[1]), high_of(at[2], at[3])), 0, zeros, bits)",
        "at[0], at[3], 0, zeros, bits)",
    ),
    Mutant("masks-of-all-signs", "a.low >= 0 && a.high <= filled(mask) &&", ""),
    Mutant(
        "zeros-of-sums",
        "a.base | b.base, least(zeros_of(a), zeros_of(b)), bits",
        "a.base | b.base, zeros_of(a), bits",
    ),
    Mutant(
        "shifted-without-sign",
        "a = as_bits(a, bits, sign == PROXY_SIGNED ? PROXY_SIGNED : PROXY_UNSIGNED, &ok);",
        "a = as_bits(a, bits, PROXY_SIGNED, &ok);",
    ),
    Mutant("strides-go-one-way", "moved.low = low_of(moved.low, 0);", "moved.low = 0;"),
]
STEPS = [
    Mutant("the-last-bytes-forgotten", "+ (int64_t)reached->bytes", "+ 1"),
    Mutant("offsets-forgotten", "int64_t low = at.low + reached->offset;", "int64_t low = at.low;"),
    Mutant("one-block", ".high = whole ? n : n - 1", ".high = whole ? n : 0"),
    Mutant("numbers-have-no-sign", "s->bits < 64 && s->sign == PROXY_SIGNED", "false"),
    Mutant("the-first-access-alone", "b->high = b->high > high ? b->high : high;", ""),
    Mutant("what-is-anywhere-is-nowhere", "known &= ~sides(reached->use);", "known &= ~0u;"),
]
FILES = [(CORE / "rank/spans.c", each) for each in SPANS]
FILES += [(CORE / "rank/bounds.c", each) for each in STEPS]


def test_seeded_faults_fit_the_source() -> None:
    for source, mutant in FILES:
        assert source.read_text().count(mutant.old) == 1, mutant.name


@pytest.mark.slow
@pytest.mark.parametrize(("source", "mutant"), FILES, ids=lambda v: getattr(v, "name", ""))
def test_a_fault_in_the_core_is_seen(tmp_path: Path, source: Path, mutant: Mutant) -> None:
    text = source.read_text()
    assert text.count(mutant.old) == 1
    changed = tmp_path / source.name
    changed.write_text(text.replace(mutant.old, mutant.new))
    core = Core(tmp_path, changed, f"mutant-{mutant.name}")

    def none_shown() -> None:
        assert not shown(core)

    assert noticed(none_shown)


def _all_ways(patch: Patch) -> None:
    """What holds on one way into a block is taken to hold on all."""

    def block(self: bounds._Ranges, number: int) -> bounds.Context:
        if number not in self._contexts:
            here = self.blocks[number]
            above = self._block(here.above) if here.above != number else bounds.Context({})
            for way in here.ways:
                above = self._by(above, way)
            self._contexts[number] = above
        return self._contexts[number]

    patch.setattr(bounds._Ranges, "_block", block)


def _one_value_each(patch: Patch) -> None:
    """A register has one value where different ones meet."""
    patch.setattr(Blocks, "joins", lambda *_: set())


def _exchanged(how: str, op: tuple[Op, Op]) -> Callable[[Patch], None]:
    return lambda patch: patch.setitem(facts.COMPARED, how, op)


def _either_holds(patch: Patch) -> None:
    """Of `or` both sides are taken to hold."""
    known = facts.facts_of

    def all_of(predicate: values.Value, holds: bool) -> list[facts.Fact]:
        if predicate.op in (("or", "pred"), ("and", "pred")):
            return [f for each in predicate.args for f in all_of(each, holds)]
        return known(predicate, holds)

    patch.setattr(bounds, "facts_of", all_of)


def _always(patch: Patch) -> None:
    """What is assigned under a predicate is taken to be always."""
    patch.setattr(
        bounds._Ranges,
        "_either",
        lambda self, args, bits, context, turning: self.range(args[1], context, turning),
    )


def _no_start(patch: Patch) -> None:
    """What comes around a loop is forgotten."""
    patch.setattr(
        bounds._Ranges, "_met", lambda self, value, turning: self._coming(value, False, turning)
    )


def _signed(patch: Patch) -> None:
    """Numbers are made longer with their sign, whatever they are."""
    patch.setattr(
        bounds._Ranges,
        "_converted",
        lambda self, op, bits, step: self.steps.add(Op.AS, 32 if "64" in op[1] else bits, 1, step),
    )


MUTANTS: dict[str, Callable[[Patch], None]] = {
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
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_fault_in_the_analysis_is_seen(
    core: Core, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant](monkeypatch)
    assert shown(core)


@pytest.mark.slow
def test_without_a_fault_none_is_seen(core: Core) -> None:
    assert not shown(core)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return Core(tmp_path_factory.mktemp("bounds"))

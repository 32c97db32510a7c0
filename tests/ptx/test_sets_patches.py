"""Patches that make sets.py wrong: the cases of test_sets.py show each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from ptx.test_sets import CLOSED, OPEN, sets, text_of

from rankfold.proxy.ptx import arithmetic, flows, origins
from rankfold.proxy.ptx import sets as analysis
from rankfold.proxy.ptx.arithmetic import Heap, Registers, Use
from rankfold.proxy.ptx.flows import FLOWS, Flow
from rankfold.proxy.ptx.origins import INDEX, MIXED, NOTHING, WHOLE, Origin, Origins

Patch = pytest.MonkeyPatch


def shown() -> int:
    """How many cases are not as they should be."""
    closed = sum(
        (text_of(found := sets(body)), found.reasons) != (expected, ())
        for body, expected in CLOSED.values()
    )
    return closed + sum(sets(body).closed for body, _ in OPEN.values())


def without(use: Use) -> Callable[[Patch], None]:
    """Accesses of this kind are not noted."""
    noted = Registers._use

    def less(self: Registers, found: Iterable[Origin], given: Use) -> None:
        noted(self, found, given & ~use)

    return lambda patch: patch.setattr(Registers, "_use", less)


def as_flow(name: str, flow: Flow) -> Callable[[Patch], None]:
    """An instruction is taken for another one."""

    def set_(patch: Patch) -> None:
        patch.setitem(FLOWS, name, flow)
        flows.flow_of.cache_clear()

    return set_


def origin(name: str, changed: Callable[..., Origins]) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(origins, name, changed)


def shaped(shape: int) -> Callable[..., Origins]:
    return lambda found, *_: frozenset(o._replace(shape=shape) for o in found)


def method(owner: type, name: str, changed: Callable[..., object]) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, changed)


PATCHES: dict[str, Callable[[Patch], None]] = {
    "a read left out": without(Use.READ),
    "a write left out": without(Use.WRITTEN),
    "an atomic taken for a store": without(Use.ATOMIC),
    "an address that matters left out": without(Use.VALUE),
    "its lowest bits left out": without(Use.LOW_BITS),
    "an atomic taken for a load": as_flow("atom", Flow.LOAD),
    "a reduction passed over": as_flow("red", Flow.NOTHING),
    "a copy passed over": as_flow("cp", Flow.NOTHING),
    "a tile's store passed over": as_flow("wmma.store", Flow.NOTHING),
    "a discard passed over": as_flow("discard", Flow.NOTHING),
    "a select of its first operand": as_flow("selp", Flow.MOVE),
    "a sum of its first operand": as_flow("add", Flow.MOVE),
    "a shuffle that loses pointers": as_flow("shfl", Flow.SMALL),
    "an unseen comparison": as_flow("setp", Flow.NOTHING),
    "an instruction that is not known": as_flow("tex", Flow.NOTHING),
    "unseen printing": as_flow("vprintf", Flow.NOTHING),
    "unseen allocation": as_flow("malloc", Flow.NOTHING),
    "memory holds no pointers": lambda patch: patch.setattr(analysis, "FOUND", NOTHING),
    "what is multiplied is lost": origin("scaled", lambda *_: NOTHING),
    "what is multiplied is whole": origin("scaled", shaped(WHOLE)),
    "what is moved up far is an index": origin("scaled", shaped(INDEX)),
    "what is moved down is an index": origin("divided", shaped(INDEX)),
    "what is moved down far is an index": origin("lowered", shaped(INDEX)),
    "other bits are whole": origin("bitwise", shaped(WHOLE)),
    "mixed bits are an index": origin("mixed", shaped(INDEX)),
    "longer numbers may be anything": origin("bounded", shaped(MIXED)),
    "halves do not join": origin("joined", lambda low, high: origins.mixed(low | high)),
    "halves always join": origin(
        "joined", lambda low, high: frozenset(o._replace(shape=WHOLE) for o in low | high)
    ),
    "shared memory is empty": method(Heap, "get", lambda *_: NOTHING),
    "pieces are as good as the whole": method(
        Heap, "get", lambda self, _: NOTHING.union(*self.stored.values())
    ),
    "offsets in parameters are lost": method(
        Registers, "_displaced", lambda _self, found, _by: found
    ),
    "managed memory is like any": method(analysis._Analysis, "_why_not", lambda *_: ""),
    "special registers follow from the launch": method(
        analysis._Analysis, "_look_at_operands", lambda *_: None
    ),
    "one pass is enough": lambda patch: patch.setattr(analysis, "ROUNDS_MAX", 0),
    "all buffers are aligned to nothing": lambda patch: patch.setattr(
        arithmetic, "LOW_MASK_MAX", 0
    ),
}


@pytest.mark.parametrize("patch", PATCHES)
def test_a_fault_is_seen(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PATCHES[patch](monkeypatch)
    try:
        assert shown()
    finally:
        monkeypatch.undo()
        flows.flow_of.cache_clear()


def test_without_a_fault_none_is_seen() -> None:
    assert shown() == 0

"""Where a value comes from: what an address may be made of, and what arithmetic does to that.

A value has a set of *origins*: words of the parameters, variables, memory. An origin's *shape*
says how much of it is left. A pointer that only moves, or to which numbers are added, stays WHOLE;
the two halves of one in 32-bit registers are LOW and HIGH; a number of 32 bits made longer, and
what is multiplied, is an index, whose shape is how many bits it was moved up at most; all else is
MIXED, which may be anything again. An index points nowhere by itself: it counts from a pointer.

Origins do not follow conditions: a pointer that is put together bit by bit, by branches on another
one's bits, is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

WHOLE, LOW, HIGH, MIXED = -1, -2, -3, -4
INDEX = 0  # and what is above it: of a number of 32 bits, how far it was moved up at most
SCALED = 32  # and what is above it: of any other value
PLACE_BITS = 32  # what was moved up so far may be the upper half of a pointer
ADDRESS_BITS = 40  # no address of device memory is as small (channel.h: RF_DEV_BASE)
SOME_BITS = 4  # what a factor that is no power of two counts for


class Part(NamedTuple):
    """Bytes of the parameters, not 8."""

    start: int
    bytes: int


ANYWHERE = Part(-1, 0)


class Place(NamedTuple):
    """An address in the parameters; None: anywhere in that one."""

    param: str
    offset: int | None


class Origin(NamedTuple):
    """One origin. `kind` and `at`: "word": the 8 bytes at an offset of the parameters; "part": a
    Part; "place": a Place; "variable": a name; "own": shared, local or grid memory of the launch;
    "function"; "memory": what was found in memory."""

    kind: str
    at: int | str | Part | Place
    shape: int = WHOLE


Origins = frozenset[Origin]
NOTHING: Origins = frozenset()
FOUND: Origins = frozenset([Origin("memory", "")])
_FIXED = ("own", "function")  # shapes mean nothing to them


def _each(origins: Origins, shape: Callable[[int], int]) -> Origins:
    return frozenset(o if o.kind in _FIXED else o._replace(shape=shape(o.shape)) for o in origins)


def mixed(origins: Origins) -> Origins:
    return _each(origins, lambda _: MIXED) if origins else origins


def bounded(origins: Origins) -> Origins:
    """A number of at most 32 bits in a 64-bit register. A part of the parameters is still that."""
    return frozenset(
        o if o.kind in _FIXED else
        o._replace(shape=INDEX) if o.kind != "part" or o.shape in (WHOLE, INDEX) else
        Origin("part", ANYWHERE, INDEX)
        for o in origins
    )  # fmt: skip


def narrowed(origins: Origins, bits: int) -> Origins:
    """The lowest bits of 64."""
    if not origins:
        return origins
    if bits == 32:
        return _each(origins, lambda s: s if s >= INDEX or s in (LOW, HIGH) else
                     LOW if s == WHOLE else MIXED)  # fmt: skip
    return _each(origins, lambda s: s if s >= INDEX else MIXED)


def scaled(origins: Origins, factor: int | None) -> Origins:
    """Multiplied by a constant, or (None) by another value."""
    if not origins or factor in (1, 0):
        return origins if factor else NOTHING
    bits = SOME_BITS
    if factor is not None and factor & (factor - 1) == 0:
        bits = factor.bit_length() - 1

    def shape(old: int) -> int:
        start = old if old >= INDEX else SCALED
        end = SCALED if start < SCALED else SCALED + PLACE_BITS
        return start + bits if 0 < start + bits < end else MIXED

    return _each(origins, shape)


def divided(origins: Origins) -> Origins:
    """Shifted down, divided, or the rest of that: what was moved up may be back, but for what was
    too small before."""
    return _each(origins, lambda s: s if INDEX <= s < SCALED else MIXED) if origins else origins


def lowered(origins: Origins, by: int) -> Origins:
    """64 bits, shifted down so far. From ADDRESS_BITS on what is left is too small for an address;
    moved up again as far, it may be part of one."""
    if by < 64 - ADDRESS_BITS:
        return divided(origins)
    return _each(origins, lambda s: HIGH if s == WHOLE and by == 32 else INDEX + max(32 - by, 0))


def bitwise(origins: Origins) -> Origins:
    """What has other bits now, but not at other places."""
    return _each(origins, lambda s: s if s >= INDEX else MIXED) if origins else origins


def upper_half(origins: Origins) -> Origins:
    """Of 64 bits, in a 32-bit register or at the lower end of a longer one."""
    return _each(origins, lambda s: HIGH if s == WHOLE else MIXED) if origins else origins


def lower_half(origins: Origins) -> Origins:
    return narrowed(origins, 32)


def joined(low: Origins, high: Origins) -> Origins:
    """64 bits of two halves. What is only below is a number of 32 bits; halves of one pointer, or
    two neighbouring parts of the parameters, are that."""
    out: set[Origin] = set()
    taken: set[Origin] = set()
    for below in low:
        for above in high:
            whole = _whole(below, above)
            if whole:
                out.add(whole)
                taken |= {below, above}
    out |= bounded(low - taken) | mixed(high - taken)
    return frozenset(out)


def _whole(below: Origin, above: Origin) -> Origin | None:
    if below.kind in _FIXED:
        return below if below == above else None
    if (below.shape, above.shape) == (LOW, HIGH) and below[:2] == above[:2]:
        return below._replace(shape=WHOLE)
    if not (isinstance(below.at, Part) and isinstance(above.at, Part)):
        return None
    if below.shape not in (WHOLE, INDEX) or above.shape not in (WHOLE, INDEX):
        return None
    fits = below.at.bytes == above.at.bytes == 4 and above.at.start == below.at.start + 4
    return Origin("word", below.at.start) if fits and below.at != ANYWHERE else None

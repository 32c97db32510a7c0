"""Tracks where a value comes from: what addresses are made of, and what arithmetic changes.

A value has a set of *origins*: words of the parameters, variables, memory. An origin's *shape*
describes how much of it is left. A pointer that is only moved, or to which numbers are added,
remains WHOLE; its two halves in 32-bit registers are LOW and HIGH. A 32-bit number that was
extended, and the result of a multiplication, is an index; its shape is the maximum number of bits
by which it was shifted up, and that of its upper half is UPPER less that. Everything else is MIXED,
which may be anything again. An index alone refers to no memory: it is an offset from a pointer.

Origins do not follow conditions: a pointer that is assembled bit by bit, by branches on the bits of
another one, is not detected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

WHOLE, LOW, HIGH, MIXED = -1, -2, -3, -4
INDEX = 0  # and above: a 32-bit number, shifted up by at most this many bits
SCALED = 32  # and above: the same for any other value
UPPER = -100  # and below: the upper half of an index, UPPER less its shape
PLACE_BITS = 32  # a value that was shifted up so far may be the upper half of a pointer
ADDRESS_BITS = 40  # every address of device memory has more bits (channel.h: RF_DEV_BASE)
SOME_BITS = 4  # the assumed bits of a factor that is no power of two


class Part(NamedTuple):
    """Bytes of the parameters other than 8."""

    start: int
    bytes: int


ANYWHERE = Part(-1, 0)


class Place(NamedTuple):
    """An address in the parameters; offset None: anywhere in that parameter."""

    param: str
    offset: int | None


class Origin(NamedTuple):
    """One origin.

    `kind` and `at`: "word": the 8 bytes at an offset of the parameters; "slot": the number of a
    value that is loaded from an address among them; "part": a Part; "place": a Place; "variable": a
    name; "own": shared, local or grid memory of the launch; "function"; "memory": read from memory.
    """

    kind: str
    at: int | str | Part | Place
    shape: int = WHOLE


Origins = frozenset[Origin]
NOTHING: Origins = frozenset()
FOUND: Origins = frozenset([Origin("memory", "")])
POINTERS = ("word", "slot", "variable")  # kinds that may be addresses of device memory
_FIXED = ("own", "function")  # kinds without a meaningful shape


def _each(origins: Origins, shape: Callable[[int], int]) -> Origins:
    return frozenset(o if o.kind in _FIXED else o._replace(shape=shape(o.shape)) for o in origins)


def mixed(origins: Origins) -> Origins:
    return _each(origins, lambda _: MIXED) if origins else origins


def bounded(origins: Origins) -> Origins:
    """A number of at most 32 bits in a 64-bit register. A part of the parameters remains one."""
    return frozenset(
        o
        if o.kind in _FIXED
        else o._replace(shape=INDEX)
        if o.kind != "part" or o.shape in (WHOLE, INDEX)
        else Origin("part", ANYWHERE, INDEX)
        for o in origins
    )


def narrowed(origins: Origins, bits: int) -> Origins:
    """The lowest bits of a 64-bit value."""
    if not origins:
        return origins
    if bits == 32:
        return _each(
            origins, lambda s: s if s >= INDEX or s in (LOW, HIGH) else LOW if s == WHOLE else MIXED
        )
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
    """Shifted down, divided, or a remainder.

    Bits that were shifted up may be back, except in a number that was too small before.
    """
    return _each(origins, lambda s: s if INDEX <= s < SCALED else MIXED) if origins else origins


def lowered(origins: Origins, by: int) -> Origins:
    """A 64-bit value, shifted down by so many bits.

    From 64 - ADDRESS_BITS on the result is too small for an address; shifted up again as far, it
    may be part of one.
    """
    if by < 64 - ADDRESS_BITS:
        return divided(origins)
    return _each(origins, lambda s: HIGH if s == WHOLE and by == 32 else INDEX + max(32 - by, 0))


def bitwise(origins: Origins) -> Origins:
    """Values whose bits changed, but not their positions."""
    return _each(origins, lambda s: s if s >= INDEX else MIXED) if origins else origins


def upper_half(origins: Origins) -> Origins:
    """The upper half of a 64-bit value, in a 32-bit register or the low end of a longer one."""
    if not origins:
        return origins
    return _each(origins, lambda s: HIGH if s == WHOLE else UPPER - s if s >= INDEX else MIXED)


def lower_half(origins: Origins) -> Origins:
    return narrowed(origins, 32)


def joined(low: Origins, high: Origins) -> Origins:
    """A 64-bit value made of two halves.

    An origin that is only in the lower half is a number of 32 bits. Two halves of one pointer or
    index, or two neighbouring parts of the parameters, become that pointer, index or word.
    """
    out: set[Origin] = set()
    combined: set[Origin] = set()
    for below in low:
        for above in high:
            whole = _whole(below, above)
            if whole:
                out.add(whole)
                combined |= {below, above}
    out |= bounded(low - combined) | mixed(high - combined)
    return frozenset(out)


def _whole(below: Origin, above: Origin) -> Origin | None:
    if below.kind in _FIXED:
        return below if below == above else None
    if (below.shape, above.shape) == (LOW, HIGH) and below[:2] == above[:2]:
        return below._replace(shape=WHOLE)
    if below.shape >= INDEX and above == below._replace(shape=UPPER - below.shape):
        return below
    if not (isinstance(below.at, Part) and isinstance(above.at, Part)):
        return None
    if below.shape not in (WHOLE, INDEX) or above.shape not in (WHOLE, INDEX):
        return None
    fits = below.at.bytes == above.at.bytes == 4 and above.at.start == below.at.start + 4
    return Origin("word", below.at.start) if fits and below.at != ANYWHERE else None

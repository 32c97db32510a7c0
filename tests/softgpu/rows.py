"""Rows of the conformance tables: an instruction, and what it gives as exact Python integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import DTYPE, Array, Case, run
from softgpu.harness import Space

COUNT = 64
EXAMPLES = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_EDGES = [
    0,
    1,
    2,
    31,
    32,
    33,
    63,
    64,
    255,
    256,
    0x7F,
    0x80,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0xFFFFFFFFFFFFFFFF,
    1 << 63,
    (1 << 63) - 1,
]


@dataclass(frozen=True)
class Row:
    """`code` as in Case; `reference`: maps integers to an integer; only as many bits as
    the result has are compared.
    An operand of a signed kind is given as a signed integer."""

    code: str
    result: str
    operands: tuple[str, ...]
    reference: Callable[..., int]


def bits_of(kind: str) -> int:
    """A predicate is stored as a word: 0 or 1."""
    return 8 * int(np.dtype(DTYPE[kind]).itemsize)


def signed(value: int, bits: int) -> int:
    """The low bits as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


def clamp(value: int, kind: str) -> int:
    """The nearest number of an integer kind."""
    bits = bits_of(kind)
    low = -1 << (bits - 1) if kind[0] == "s" else 0
    return max(low, min(low + (1 << bits) - 1, value))


def operation(
    name: str,
    kinds: str | tuple[str, ...],
    reference: Callable[..., int],
    result: str = "",
    tail: str = "",
) -> Row:
    """name d, a, b, c: with as many operands as kinds; `tail` follows them."""
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    letters = ", ".join("{" + letter + "}" for letter in "abc"[: len(kinds)])
    target = "{p}" if result == "pred" else "{d}"
    return Row(f"{name} {target}, {letters}{tail};", result or kinds[0], kinds, reference)


def operands(width: int = 3) -> st.SearchStrategy[Array]:
    """Patterns of 64 bits: random, every third one an edge or what Hypothesis likes. An operand of
    fewer bits gets the low ones, shifted down by chance so that small numbers are frequent."""

    def mixed(seed: int, liked: list[int]) -> Array:
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2**64 - 1, (width, COUNT), np.uint64, endpoint=True)
        bits >>= rng.choice(np.array([0, 0, 32, 48, 56], np.uint64), (width, COUNT))
        chosen = rng.choice(np.array([*_EDGES, *liked], np.uint64), (width, COUNT))
        mixed = np.where(rng.random((width, COUNT)) < 0.33, chosen, bits)
        mixed[:, : len(_EDGES)] = _EDGES  # always: each edge with itself
        return mixed

    liked = st.lists(st.integers(0, 2**64 - 1), max_size=8)
    return st.builds(mixed, st.integers(0, 2**32 - 1), liked)


def _cut(bits: Array, kind: str) -> Array:
    dtype = np.dtype(DTYPE[kind])
    return bits.astype(f"uint{8 * dtype.itemsize}").view(dtype)


def check(kernels: Loader, space: Space, rows: list[Row], bits: Array) -> None:
    """Every row on the same patterns, all bits of the results compared."""
    cases = [Case(row.code, row.result, row.operands) for row in rows]
    inputs = [[_cut(bits[i], kind) for i, kind in enumerate(row.operands)] for row in rows]
    results = run(kernels, space, cases, inputs)
    for row, arrays, got in zip(rows, inputs, results, strict=True):
        mask = (1 << bits_of(row.result)) - 1
        pattern = got.view(f"uint{bits_of(row.result)}")
        for *values, result in zip(*(_numbers(a) for a in arrays), pattern.tolist(), strict=True):
            wanted = row.reference(*values) & mask
            assert result == wanted, (
                f"{row.code} of {[hex(v) for v in values]} gave {result:#x}, not {wanted:#x}"
            )


def _numbers(array: Array) -> list[Any]:
    if array.dtype.kind == "f":
        array = array.view(f"uint{8 * array.itemsize}")
    return list(array.tolist())

"""Arrays of numbers in the formats of matrix products, by their cudaDataType."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
R_32F, R_64F, R_16F, R_8I, R_32I, R_16BF = 0, 1, 2, 3, 10, 14
# bfloat16 travels as the upper half of a float.
TYPES = {R_32F: "<f4", R_64F: "<f8", R_16F: "<f2", R_8I: "<i1", R_32I: "<i4", R_16BF: "<u2"}


def encode(values: Array, kind: int) -> Array:
    """As the bits of that type; rounded to nearest, ties to even."""
    if kind != R_16BF:
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(TYPES[kind])
    bits = np.asarray(values, "<f4").view("<u4").astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def decode(bits: Array, kind: int) -> Array:
    """The exact values, as float64 (integers: int64)."""
    if kind == R_16BF:
        return (bits.astype("<u4") << 16).view("<f4").astype(np.float64)
    return bits.astype(np.int64 if kind in (R_8I, R_32I) else np.float64)

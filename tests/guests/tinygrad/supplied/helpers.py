"""Stands in for test/helpers.py, by what the tests want of it. A rank has one device."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
from tinygrad import Device, TinyJit
from tinygrad.codegen import get_program
from tinygrad.dtype import DType, _to_np_dtype, dtypes

REAL_DEV: str = Device.DEFAULT
RNG = np.random.default_rng(12)
needs_second_gpu = unittest.skip("a rank has one device")


def not_support_multi_device() -> bool:
    """A second device in one rank is refused."""
    return True


def slow(test: Any) -> Any:
    """Slow tests run."""
    return test


def rand_for_dtype(dtype: DType, size: int) -> Any:
    """Values that this type represents."""
    if dtypes.is_float(dtype):  # eighths below 2: every type with three bits of mantissa has them
        return RNG.integers(-15, 16, size).astype(_to_np_dtype(dtype)) / 8
    if dtype == dtypes.bool:
        return RNG.choice([True, False], size)
    return RNG.integers(dtype.min, dtype.max, size, _to_np_dtype(dtype), endpoint=True)


def assert_jit_cache_len(function: TinyJit, count: int) -> None:
    """The function holds `count` kernels, in graphs or alone."""
    kernels = [getattr(item.prg, "jit_cache", [item]) for item in function.jit_cache]
    assert sum(map(len, kernels)) == count


def get_uops(sink: Any, renderer: Any = None) -> list[Any]:
    """The instructions of the program for `sink`."""
    found: list[Any] = get_program(sink, renderer or Device[Device.DEFAULT].renderer).uops
    return found

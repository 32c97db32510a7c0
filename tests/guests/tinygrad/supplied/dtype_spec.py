"""Stands in for the names that test_dtype.py takes from test/unit/test_dtype_spec.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from tinygrad import Tensor
from tinygrad.device import is_dtype_supported
from tinygrad.dtype import DTYPES_DICT, DType, dtypes

FP8E4M3_MAX, FP8E5M2_MAX = 448.0, 57344.0
core_dtypes = list(DTYPES_DICT.values())
dtype_ints = [t for t in core_dtypes if dtypes.is_int(t) and is_dtype_supported(t)]
dtype_floats = [t for t in core_dtypes if dtypes.is_float(t) and is_dtype_supported(t)]
# Relative: one unit of the last place, or of float32's where NumPy computed the target.
TOLERANCES = {dtypes.half: 1e-3, dtypes.bfloat16: 1e-2, dtypes.fp8e4m3: 0.125, dtypes.fp8e5m2: 0.25}


def _assert_eq(tensor: Tensor, dtype: DType, target: Any) -> None:
    assert tensor.dtype == dtype, f"{tensor.dtype}, not {dtype}"
    np.testing.assert_allclose(
        tensor.numpy(), target, rtol=TOLERANCES.get(dtype, 1e-7), equal_nan=True
    )

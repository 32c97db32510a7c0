"""`elastic.eligible` says whether a job may use several types of CPU, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic.conftest import Python

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).parent / "examined.py"


@pytest.fixture(scope="module")
def found(python: Python) -> Any:
    """The answers for a model with convolutions and an operator of its own, and for another one."""
    done = python(SCRIPT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_model_of_matrix_products_may_mix_types_at_a_price(found: Any) -> None:
    words = found["words"]
    assert (words["mixes"], words["reasons"]) == (True, [])
    # MKL's path for all makers' CPUs is another one than it chooses by itself.
    assert {"aten.addmm.default", "aten.mm.default"} <= {*words["differing"]}
    assert not any("embedding" in name for name in words["differing"])
    assert words["factor"] > 0
    assert found["texts"]["words"].startswith("may use several types of CPU with D2: a step takes")


def test_operators_that_no_comparison_covers_keep_a_job_to_one_type(found: Any) -> None:
    images = found["images"]
    assert not images["mixes"]
    another, onednn = sorted(each for each in images["reasons"] if "as long" not in each)
    names = "aten.convolution.default, aten.convolution_backward.default: oneDNN also chooses"
    assert onednn.startswith(names)
    assert another.startswith("another.doubled.default: an operator of another library")
    assert found["texts"]["images"].startswith("keep to one type of CPU: a step takes")


def test_a_device_of_a_type_that_no_comparison_covers_is_refused(found: Any) -> None:
    reason = "weight on a device of type meta: comparisons cover CPUs only"
    assert found["refused"] == [
        reason,
        "elastic.eligible of a str: pass a torch.nn.Module",
        "at_most must be a number above 0, not 'x'",
    ]

"""Under torchrun and plain python, the lines of rankfold.elastic have no effect."""

from __future__ import annotations

import importlib

import pytest

# Not as a statement: mypy, which has no PyTorch, would follow it.
elastic = importlib.import_module("rankfold.elastic")

pytestmark = pytest.mark.unit


def test_the_lines_return_what_they_are_given() -> None:
    model, optimizer, scheduler, loader = ([each] for each in range(4))
    wrapped = elastic.wrap(model, optimizer, scheduler)
    assert all(a is b for a, b in zip(wrapped, (model, optimizer, scheduler), strict=True))
    assert elastic.steps(loader) is loader
    assert elastic.epochs(3) == range(3)
    assert vars(elastic.local(best=0.5)) == {"best": 0.5}

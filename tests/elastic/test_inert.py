"""Under torchrun and plain python, the lines of rankfold.elastic have no effect."""

from __future__ import annotations

import re

import pytest

from rankfold import elastic
from rankfold.paths import REPOSITORY

pytestmark = pytest.mark.unit


def test_the_lines_return_what_they_are_given() -> None:
    model, optimizer, scheduler, loader = ([each] for each in range(4))
    wrapped = elastic.wrap(model, optimizer, scheduler)
    assert all(a is b for a, b in zip(wrapped, (model, optimizer, scheduler), strict=True))
    assert elastic.steps(loader) is loader
    assert elastic.epochs(3) == range(3)
    assert vars(elastic.local(best=0.5)) == {"best": 0.5}


def test_private_names_of_pytorch_are_in_one_module() -> None:
    """Only self, os._exit and a NamedTuple's _replace have such names elsewhere."""
    name = re.compile(r"\b(?!self\._|os\._exit)\w+\._(?!replace\b)[a-z]\w*")
    found = {
        path.name: names
        for path in (REPOSITORY / "elastic").glob("*.py")
        if path.name != "private.py"
        if (names := name.findall(path.read_text()))
    }
    assert found == {}

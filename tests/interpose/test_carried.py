"""The PTX that the client carries is of the source next to it."""

from __future__ import annotations

import re

import pytest

from rankfold.interpose import carried
from rankfold.interpose.carried import Carried

TEXTS = [(each, kind) for each in carried.ALL for kind in each.types]


@pytest.mark.parametrize("each, kind", TEXTS)
def test_the_ptx_is_of_this_source(each: Carried, kind: str) -> None:
    """`make carried-ptx` compiles it again."""
    assert each.digest() in each.path(kind).read_text().partition("\n")[0]


@pytest.mark.slow
@pytest.mark.parametrize("each, kind", TEXTS)
def test_the_ptx_is_what_the_compiler_makes(each: Carried, kind: str) -> None:
    kept, made = each.path(kind).read_text(), each.compiled(kind)
    if re.findall(r"^\.version.*", kept, re.M) != re.findall(r"^\.version.*", made, re.M):
        pytest.skip("another release of nvcc")
    assert kept == made

"""Whatever is asked of the memory of ranks, in any order; faults seeded into it are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import Phase

from support.seeding import noticed

from . import test_adopting as adopting
from . import test_apart as apart
from . import test_beneath as beneath
from . import test_checking as checking
from . import test_copies as copies
from . import test_forgetting as forgetting
from . import test_handing as handing
from . import test_holding as holding
from . import test_memory as requests
from . import test_sharing as sharing
from .machine import run
from .mutants import MUTANTS, Fault
from .world import ROOM, Make, load, worlds


def test_any_requests_in_any_order(library: tuple[Any, Any]) -> None:
    run(library, 80)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_any_requests_in_any_order_at_length(library: tuple[Any, Any]) -> None:
    run(library, 5000)


def rules(*modules: ModuleType) -> Iterator[Callable[[Make], None]]:
    """What chance shows too seldom: all tests of these that need nothing but worlds."""
    for module in modules:
        for name, rule in vars(module).items():
            if not name.startswith("test_"):
                continue
            cases: list[dict[str, Any]] = [{}]
            for mark in getattr(rule, "pytestmark", ()):
                key, values = mark.args
                cases = [{**case, key: value} for case in cases for value in values]
            yield from (partial(rule, **case) for case in cases)


RULES = tuple(
    rules(
        sharing, apart, beneath, handing, forgetting, copies, adopting, holding, checking, requests
    )
)


def test_seeded_faults_fit_the_source() -> None:
    for mutant in MUTANTS:
        assert (ROOM / mutant.file).read_text().count(mutant.old) == 1, mutant.name


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_seeded_faults_are_noticed(tmp_path: Path, mutant: Fault) -> None:
    text = (ROOM / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    changed = tmp_path / Path(mutant.file).name
    changed.write_text(text.replace(mutant.old, mutant.new))
    library = load(tmp_path, changed)

    def all_of_them() -> None:
        for rule in RULES:
            with worlds(library) as make:
                rule(make)
        run(library, 1500, phases=[Phase.generate], database=None, report_multiple_bugs=False)

    assert noticed(all_of_them)

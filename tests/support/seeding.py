"""Tests that faults seeded into the core's source, one at a time, are noticed by other tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from barrier.mutants import Mutant

from support.native import CORE, REPOSITORY, noticed_by, with_fault


def seeded(
    faults: Sequence[tuple[str, Mutant]], *by: str, options: Sequence[str] = ()
) -> tuple[Callable[[], None], Callable[[Path, str, Mutant], None]]:
    """Two tests: that each fault fits its file, which is named from proxy/core on; and (slow) that
    `by`, files from the repository on, fail with it. `options` are pytest's."""

    def fit() -> None:
        for source, mutant in faults:
            assert (CORE / source).read_text().count(mutant.old) == 1, mutant.name

    @pytest.mark.slow
    @pytest.mark.parametrize(("source", "mutant"), faults, ids=[m.name for _, m in faults])
    def noticed(tmp_path: Path, source: str, mutant: Mutant) -> None:
        native = with_fault(tmp_path, CORE / source, mutant.old, mutant.new)
        noticed_by(native, *(REPOSITORY / each for each in by), options=options)

    return fit, noticed

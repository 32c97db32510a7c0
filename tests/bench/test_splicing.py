"""`make bench-splicing` writes what is promised, and both of its sides compute the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY

PROGRAMS = ("mlp", "gpt", "conv", "launch_bound", "large_state")


def run(out: Path, only: str) -> dict[str, dict[str, object]]:
    """The quick run of some parts: it ends with an error where the sides print different lines."""
    subprocess.run(
        [sys.executable, "-m", "benchmarks.splicing", "--quick", "--only", only, "--out", str(out)],
        cwd=REPOSITORY,
        check=True,
        env={**os.environ, "PYTHONPATH": "tests"},
    )
    written = json.loads((out / "splicing.json").read_text())
    assert set(written) == {"commit", "machine", "figures"}
    return dict(written["figures"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS)
def test_folded_ranks_compute_what_they_do_with_a_device_each(tmp_path: Path, program: str) -> None:
    figures = run(tmp_path, program)
    sides = (
        "fold",
        "fold_one",
        "fold_nosquash",
        "fold_one_noprepare",
        "switches",
        "moved",
        "moved_alike",
    )
    wanted = {f"{side}_{program}_2" for side in sides}
    if program != "launch_bound":  # it has neither parameters nor moments
        wanted.add(f"moved_stable_{program}_2")
    assert set(figures) == wanted | ({"memory_4_ranks"} if program == "large_state" else set())
    assert figures[f"moved_{program}_2"]["target"] is None
    assert program != "large_state" or float(str(figures["moved_large_state_2"]["value"])) > 0
    for figure in figures.values():
        assert set(figure) == {"value", "unit", "target", "better", "holds", "how"}
    assert (tmp_path / "splicing.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_switches_resizes_and_the_time_in_some_code_are_measured(tmp_path: Path) -> None:
    figures = run(tmp_path, "switch|resize|tandem|versions|order")
    assert set(figures) == {
        "switch_us",
        "resize_shared_over_apart",
        "suspend_shared_over_apart",
        "tandem_overhead",
        "versions_overhead",
        "unchecked_overhead",
    }
    for name in figures.keys() & {"tandem_overhead", "versions_overhead", "unchecked_overhead"}:
        # The code that is meant is marked.
        assert float(str(figures[name]["value"])) > 0

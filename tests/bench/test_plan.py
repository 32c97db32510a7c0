"""`make bench-plan` writes what is promised."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import plan


def test_the_figures_are_written(tmp_path: Path) -> None:
    plan.main(["--quick", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "plan.json").read_text())
    assert set(written["figures"]) == {"plan_turn_s", "plan_growth"}
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")

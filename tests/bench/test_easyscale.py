"""`make bench-easyscale` writes what is promised, and decides when it says."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import easyscale
from rankfold.simulator.trace import TraceJob

JOBS = [TraceJob("a", 10.0, 4, 1, 4, 50.0), TraceJob("b", 30.0, 4, 1, 4, 100.0)]


def test_jobs_with_ranges_complete_sooner(tmp_path: Path) -> None:
    easyscale.main(["--quick", "--out", str(tmp_path)])
    figures = json.loads((tmp_path / "easyscale.json").read_text())["figures"]
    values = {name: figure["value"] for name, figure in figures.items()}
    assert len(values) == 24 and all(value > 0.9 for value in values.values())
    ours = values["jct_over_baseline_drawn"]
    assert ours > values["jct_over_baseline_drawn_backfill_ticks"]


def test_the_baseline_waits_for_the_next_tick() -> None:
    """`a` runs from 10 s to 80 s, `b` after it; with ticks, from 60 s to 130 s, and from 180 s."""
    at_once = easyscale.one_at_a_time(JOBS, ticks=False)
    assert at_once == {"jct": (70.0 + 170.0) / 2, "makespan": 190.0}
    ticks = easyscale.one_at_a_time(JOBS, ticks=True)
    assert ticks == {"jct": (120.0 + 270.0) / 2, "makespan": 290.0}


def test_the_schedulers_wait_for_the_next_tick() -> None:
    """Both start at 60 s, on four devices each."""
    for scheduler in ("elastic", "fifo", "backfill", "las", "optimus", "srtf"):
        found = easyscale.simulated(JOBS, scheduler, ticks=True)
        assert found == {"jct": (120.0 + 150.0) / 2, "makespan": 170.0}, scheduler
    assert easyscale.simulated(JOBS, "elastic", ticks=False)["makespan"] == 140.0

"""`make bench-serving` writes what is promised, and its day has what the question is about."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from benchmarks import serving


def test_the_figures_are_written(tmp_path: Path) -> None:
    serving.main(["--devices", "16", "--out", str(tmp_path)])
    figures = json.loads((tmp_path / "serving.json").read_text())["figures"]
    assert figures["serving_failed_jobs"]["value"] == 0
    assert figures["serving_preemptions"]["value"] > 0
    used = figures["serving_allocation"]["value"] + figures["serving_gain"]["value"]
    assert 0.9 < used <= 1.0, "training uses what the service does not need"


def test_replicas_are_jobs_while_they_run() -> None:
    numbers = serving.replicas_of(
        serving.load_of_a_day(serving.requests(serving.AZURE), Random(1)), 8
    )
    assert max(numbers) == 8 and min(numbers) < 4
    jobs = list(serving.serving_jobs(numbers))
    for at in (0, 4000, len(numbers) - 1):
        second = at * serving.BIN_S
        start = serving.COSTS.start + serving.COSTS.suspend
        running = [j for j in jobs if j.arrival <= second < j.arrival + j.work + start]
        assert len(running) == numbers[at]

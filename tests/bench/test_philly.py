"""`make bench-philly` writes what is promised, about jobs with tiers and ranges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import philly


def test_the_figures_are_written(tmp_path: Path) -> None:
    philly.main(["--quick", "--out", str(tmp_path)])
    figures = json.loads((tmp_path / "philly.json").read_text())["figures"]
    assert figures["philly_large_violated"]["value"] == 0
    assert figures["philly_1_0_violated"]["value"] == 0
    assert 0 < figures["philly_1_0_used_static"]["value"] < 1
    assert {"philly_1_0_wait_h", "philly_1_0_wait_static_h"} <= set(figures)
    assert 0 < figures["philly_1_0_used"]["value"] < 1


def test_the_jobs_have_tiers_and_ranges_and_the_load() -> None:
    jobs = philly.jobs_for(64, 1.5, 400)
    assert {job.tier for job in jobs} == {"basic", "standard", "premium"}
    assert any(job.elastic for job in jobs) and not all(job.elastic for job in jobs)
    arrivals = [job.arrival for job in jobs]
    assert arrivals == sorted(arrivals) and arrivals[0] == 0
    assert philly.work_of(jobs) / (64 * arrivals[-1]) == pytest.approx(1.5)

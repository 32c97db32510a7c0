"""`make bench-policy` writes what is promised."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import policy
from rankfold.policy.decide import decide


def test_the_figures_are_written(tmp_path: Path) -> None:
    policy.main(["--quick", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "policy.json").read_text())
    sizes, kinds = ("small", "large"), ("first", "event")
    names = {f"policy_{k}_{s}" for k in kinds for s in sizes}
    names |= {f"policy_event_{s}_p99" for s in sizes}
    assert set(written["figures"]) == {f"{name}_s" for name in names}


def test_the_jobs_that_are_measured_have_tiers_ranges_and_fractions() -> None:
    fleet, jobs = policy.fleet_for(50), policy.jobs_for(50)
    decisions = decide(fleet, jobs, policy.RULES, 0.0)
    placed = [policy.carried_out(job, decisions[job.name], 0.0, 10.0) for job in jobs]
    assert {job.tier for job in placed if job.own} == {"basic", "standard", "premium"}
    assert any(job.guaranteed for job in placed) and any(not job.own for job in placed)
    assert sum(len(job.own) for job in placed) <= 500

"""Simulations of two published policies, built in and plugged in as a user would, give the
published numbers.

tests/simulate/data/README.md names the source of the workloads and of the numbers. No random number
is in these simulations, so each job's time must be equal.
"""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.leaks import State

DATA = Path(__file__).parents[1] / "simulate/data/pollux"
MEANS = {  # workload → mean seconds of a job
    "las": {1: 2473.65, 2: 5144.9625, 3: 3876.25625, 4: 3280.2625, 6: 3469.69375},
    "optimus": {1: 4087.0625, 2: 6913.875, 3: 3944.00625, 4: 5967.75, 6: 5301.875},
}
LAST_END = {1: 83751, 2: 85625, 3: 55541, 4: 98885, 6: 78609}  # with las, seconds
COSTS = "{start: 30, resume: 30, resize: 30}\n"


def expected(policy: str, workload: int) -> dict[str, float]:
    with (DATA / f"expected-{policy}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["workload"] == str(workload)]
    return {row["job"]: float(row["jct_s"]) for row in rows}


@pytest.mark.parametrize(
    "workload", [pytest.param(n, marks=() if n == 3 else pytest.mark.slow) for n in LAST_END]
)
def test_each_job_takes_as_long_as_published(
    workload: int, install: Callable[..., Path], state: State, tmp_path: Path
) -> None:
    install("published", *(f"own_{name}" for name in MEANS))
    plugged = [f"own_{name}" for name in MEANS] if workload == 3 else []
    costs = tmp_path / "costs.yaml"
    costs.write_text(COSTS)
    trace = DATA / f"workloads/workload-{workload}.csv"
    fleet = ("--nodes", "16", "--gpus-per-node", "4", "--applications", f"{DATA}/applications")
    options = (
        "--costs",
        str(costs),
        "--scheduler",
        ",".join([*MEANS, *plugged]),
        "-o",
        "json",
        "--deadline",
        "60",
    )
    command = [sys.executable, "-m", "rankfold", "simulate", str(trace), *fleet, *options]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["schedulers"]
    for policy, means in MEANS.items():
        jobs = {job["name"]: job["jct"] for job in found[policy]["jobs"]}
        assert jobs == expected(policy, workload) and len(jobs) == 160
        assert math.isclose(found[policy]["jct"]["mean"], means[workload], rel_tol=1e-12)
    for policy in plugged:
        assert found[policy] == found[policy.removeprefix("own_")], "the same in its own process"
    assert max(job["end"] for job in found["las"]["jobs"]) == LAST_END[workload]

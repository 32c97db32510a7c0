"""Jobs with a locality on a simulated fleet of several nodes."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rankfold.policy.vocabulary import TIERS
from rankfold.policy.windows import DAY, opens
from rankfold.reconciler.cli import cli
from rankfold.simulator.costs import Costs
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob

pytestmark = pytest.mark.unit

HEAD = "name,arrival,worldSize,min,max,tier,work,locality\n"
TRACE = f"""{HEAD}a,0,1,1,1,standard,2,any
b,1,1,1,1,standard,50,any
c,1,1,1,1,standard,50,any
wide,3,2,2,2,standard,10,node
"""
POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec: {devices: [{type: soft, count: 2, node: a}, {type: soft, count: 2, node: b}]}
"""
NODES = f"""{POOL[: POOL.index("spec:")]}spec:
  devices:
  - {{type: soft, count: 4, node: a}}
  - {{type: soft, count: 4, node: b}}
  - {{type: soft, count: 4, node: c}}
"""
POLICY = POOL[: POOL.index("spec:")].replace("Pool", "Policy")
# Jobs with their devices and seconds: each of the large ones fills a node with a small one.
LEFT = [("x", 3, 9), ("a", 1, 900), ("y", 3, 9), ("b", 1, 900), ("z", 3, 9), ("c", 1, 900)]


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Result]:
    def run(trace: str, *arguments: str | Path) -> Result:
        (tmp_path / "trace.csv").write_text(trace)
        words = ["simulate", str(tmp_path / "trace.csv"), *map(str, arguments)]
        return CliRunner().invoke(cli, words, standalone_mode=False)

    return run


@pytest.mark.parametrize("given_by", ["options", "pool"])
def test_a_job_moves_and_the_action_says_why(
    given_by: str, simulate: Callable[..., Result], tmp_path: Path
) -> None:
    fleet = ["--nodes", "2", "--gpus-per-node", "2"]
    if given_by == "pool":
        (tmp_path / "fleet").mkdir()
        (tmp_path / "fleet/pool.yaml").write_text(POOL)
        fleet = ["--fleet", str(tmp_path / "fleet")]
    actions = tmp_path / "actions.csv"
    done = simulate(TRACE, *fleet, "--scheduler", "tiers", "--actions", actions)
    assert done.exception is None, done.output
    (move,) = (line for line in actions.read_text().splitlines() if ",move," in line)
    node = "node-0" if given_by == "options" else "a"
    assert move == f"tiers,3.0,b,move,1,1,0.0,defragmentation,makes way for wide on node {node}"


@pytest.mark.parametrize("windows, moves", [("00:01-00:02", ["60.0", "61.0"]), ("", [])])
def test_nodes_are_made_free_when_a_window_begins(
    windows: str, moves: list[str], simulate: Callable[..., Result], tmp_path: Path
) -> None:
    """Each of three nodes has a small job left. The first one moves; when it computes again, the
    next one does."""
    given = f"{{defragmentation: {{windows: [{windows and repr(windows)}]}}}}"
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet/all.yaml").write_text(f"{NODES}---\n{POLICY}spec: {given}\n")
    (tmp_path / "costs.yaml").write_text("resize: 1\n")
    trace, actions = HEAD, tmp_path / "actions.csv"
    for at, (name, devices, work) in enumerate(LEFT):
        trace += f"{name},{at},{devices},{devices},{devices},standard,{work},any\n"
    options = ("--costs", tmp_path / "costs.yaml", "--actions", actions)
    done = simulate(trace, "--fleet", tmp_path / "fleet", "--scheduler", "tiers,srtf", *options)
    assert done.exception is None, done.output
    rows = csv.DictReader(actions.read_text().splitlines())
    found = [row for row in rows if row["action"] == "move"]
    assert [row["time"] for row in found] == moves
    for row, node in zip(found, "ac", strict=False):
        assert row["cause"] == "defragmentation"
        assert row["reason"] == f"leaves node {node}, so that it is free"


def test_a_scheduler_without_localities_is_refused(simulate: Callable[..., Result]) -> None:
    fleet = ("--nodes", "2", "--gpus-per-node", "2")
    done = simulate(TRACE, *fleet, "--scheduler", "fifo,srtf")
    reason = "srtf knows no nodes and domains, and the trace has jobs with a locality"
    assert done.exception is not None and reason in str(done.exception)
    done = simulate(TRACE.replace(",node", ",any"), *fleet, "--scheduler", "srtf")
    assert done.exception is None


def test_a_job_that_fits_no_node_is_refused(simulate: Callable[..., Result]) -> None:
    done = simulate(HEAD + "a,0,4,3,4,basic,10,node\n", "--nodes", "2", "--gpus-per-node", "2")
    assert done.exception is None and done.return_value == 65
    reason = "min: needs 3; the fleet has 2 devices of type gpu in one node"
    assert reason in done.output


@given(st.data())
def test_every_job_ends_and_none_straddles(data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    places = tuple((f"d{at // 2}", f"n{at}", size) for at, size in enumerate(nodes))
    kind = Kind("gpu", sum(nodes), places=places)
    jobs, arrival = [], 0.0
    for number in range(data.draw(st.integers(1, 12))):
        arrival += data.draw(st.sampled_from([0.0, 1.0, 5.0]))
        locality = data.draw(st.sampled_from(["any", "domain", "node"]))
        most = data.draw(st.integers(1, min(4, kind.most(locality))))  # type: ignore[arg-type]
        job = TraceJob(
            f"j{number}", arrival, most, data.draw(st.sampled_from([1, most])), most,
            float(data.draw(st.integers(1, 20))), tier=data.draw(st.sampled_from(TIERS)),
            locality=locality,  # type: ignore[arg-type]
        )  # fmt: skip
        jobs.append(job)
    scheduler = data.draw(st.sampled_from(["fifo", "backfill", "tiers"]))
    windows = data.draw(st.sampled_from([(), ((0, 1),), ((0, DAY),)]))
    pause = data.draw(st.sampled_from([0.0, 1.0]))
    costs = Costs(pause, pause, pause, pause)
    result = Events(jobs, [kind], costs, {}, windows=windows).run(scheduler)
    assert len(result.jobs) == len(jobs)
    work = sum(job.work * job.max for job in jobs)
    assert sum((s.end - s.start) * s.devices for s in result.spans) >= work - 1e-6


def test_a_window_begins_each_day() -> None:
    windows, day = ((60, 120), (1380, 30)), DAY * 60.0
    assert opens(windows, 0.0) == 3600.0
    assert opens(windows, 3600.0) == 23 * 3600.0
    assert opens(windows, day - 1.0) == day + 3600.0
    assert opens((), 0.0) == float("inf")

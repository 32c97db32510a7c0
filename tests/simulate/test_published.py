"""las and optimus run traces whose jobs have a known work, as they run those of Pollux."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rankfold.policy.published import DEMOTED_S
from rankfold.reconciler.cli import cli
from rankfold.simulator import easyscale
from rankfold.simulator.costs import Costs
from rankfold.simulator.published import PUBLISHED
from rankfold.simulator.result import Result as Simulated
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob

pytestmark = pytest.mark.unit

HOUR = 3600.0
DATA = Path(__file__).parent / "data"


def fixed(name: str, arrival: float, devices: int, work: float, kind: int = 0) -> TraceJob:
    return TraceJob(name, arrival, devices, devices, devices, work, kind)


def ranged(name: str, arrival: float, ranks: int, work: float, kind: int = 0) -> TraceJob:
    return TraceJob(name, arrival, ranks, 1, ranks, work, kind)


def run(
    scheduler: str, jobs: Sequence[TraceJob], *devices: int, costs: Costs | None = None
) -> Simulated:
    kinds = [Kind(f"k{at}", number) for at, number in enumerate(devices)]
    return Events(jobs, kinds, costs or Costs(), {}).run(scheduler)


def times(result: Simulated) -> dict[str, tuple[float, float]]:
    return {each.name: (each.start, each.end) for each in result.jobs}


def test_las_demotes_a_job_that_was_served_for_16_device_hours() -> None:
    """`long` has two devices, so that it is demoted after eight hours, when nothing else happens;
    it continues when `new` has ended, and is not demoted again."""
    assert DEMOTED_S == 16 * HOUR
    jobs = [fixed("long", 0.0, 2, 20 * HOUR), fixed("new", HOUR, 1, HOUR)]
    result = run("las", jobs, 2, costs=Costs(resume=60.0))
    assert times(result) == {
        "new": (8 * HOUR, 9 * HOUR),
        "long": (0, 21 * HOUR + 60),
    }
    assert result.lost == {"order": 120.0} and result.decisions == 5


@pytest.mark.parametrize(
    ("work", "ends"),
    [(300.0, {"short": 260.0, "long": 400.0}), (200.0, {"short": 160, "long": 250})],
)
def test_optimus_gives_devices_to_the_job_that_gains_most(
    work: float, ends: dict[str, float]
) -> None:
    """`long` has all four devices until 60, when each job gets one, and `long` a second. The last
    one would save `short` 100 s, and `long` two thirds of what it has left on four."""
    jobs = [ranged("long", 0.0, 4, work), ranged("short", 60.0, 2, 100.0)]
    result = run("optimus", jobs, 4)
    had = {(each.job, each.start, each.devices) for each in result.spans}
    assert had >= {("long", 0.0, 4), ("long", 60.0, 3 if work == 300.0 else 2)}
    assert {each.name: each.end for each in result.jobs} == ends
    costs = Costs(start=10.0, resize=5.0)
    assert len(run("optimus", jobs, 4, costs=costs).spans) == len(result.spans)


def test_optimus_counts_what_is_left_of_a_job_in_steps() -> None:
    """At 50, `first` would need 10 s more on its two devices, and `second` 35 s on its one: 5 and
    11.7 s on three. `second` gets another device, and then `first` gains more by the last one."""
    jobs = [ranged("first", 0.0, 3, 30.0), ranged("second", 0.0, 3, 30.0)]
    found = run("optimus", [*jobs, ranged("third", 10.0, 2, 20.0)], 4)
    had = {(each.job, each.devices) for each in found.spans if each.start == 50.0}
    assert had == {("second", 2)} and times(found)["first"] == (0.0, 60.0)


def test_each_kind_of_device_is_decided_on_apart() -> None:
    """A job of the second kind does not wait for those of the first, nor gets their devices."""
    jobs = [fixed("a", 0.0, 2, 10.0), fixed("b", 0.0, 2, 10.0), fixed("c", 0.0, 1, 5.0, kind=1)]
    ends = {"a": (0, 10), "b": (10, 20), "c": (0, 5)}
    assert times(run("las", jobs, 2, 1)) == ends
    jobs = [ranged("a", 0.0, 2, 10.0), ranged("c", 0.0, 2, 5.0, kind=1)]
    assert times(run("optimus", jobs, 2, 1)) == {"a": (0, 10), "c": (0, 10)}


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    jobs, at = [], 0.0
    for number in range(draw(st.integers(1, 10))):
        at += draw(st.sampled_from([0.0, 1.0, 7 * HOUR]))
        ranks, work = draw(st.integers(1, 4)), draw(st.sampled_from([1.0, 100.0, 9 * HOUR]))
        jobs.append(TraceJob(f"j{number}", at, ranks, 1, ranks, work, draw(st.integers(0, 1))))
    return jobs


@pytest.mark.parametrize("scheduler", PUBLISHED)
@given(jobs=traces())
def test_jobs_do_their_work_on_the_devices_that_there_are(
    scheduler: str, jobs: list[TraceJob]
) -> None:
    run(scheduler, jobs, 4, 4, costs=Costs(1.0, 2.0, 3.0, 4.0))  # with costs, it ends
    found = run(scheduler, jobs, 4, 4)
    of = {job.name: job for job in jobs}
    done = dict.fromkeys(of, 0.0)
    for span in found.spans:
        done[span.job] += (span.end - span.start) / of[span.job].folds(span.devices)
        together = (each for each in found.spans if each.start <= span.start < each.end)
        kind = of[span.job].kind
        assert sum(each.devices for each in together if of[each.job].kind == kind) <= 4
        assert scheduler == "optimus" or span.devices == of[span.job].max
    assert done == pytest.approx({job.name: job.work for job in jobs})


# ---- the command


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Result]:
    def run(text: str, *words: str) -> Result:
        trace = tmp_path / "trace.csv"
        trace.write_text(text)
        return CliRunner().invoke(cli, ["simulate", str(trace), *words], standalone_mode=False)

    return run


CSV = "name,arrival,worldSize,min,max,tier,work,locality\n"
GPUS = ("--nodes", "2", "--gpus-per-node", "4")


def test_philly_and_easyscale_run_with_them(simulate: Callable[..., Result]) -> None:
    with gzip.open(DATA / "philly/jobs.csv.gz", "rt") as file:
        philly = "".join(file.readlines()[:40])
    done = simulate(philly, "--devices", "gpu=64", "--scheduler", "las,fifo,srtf", "-o", "json")
    schedulers = json.loads(done.stdout)["schedulers"]
    assert list(schedulers) == ["las", "fifo", "srtf"]
    assert {len(each["jobs"]) for each in schedulers.values()} == {39}
    text = ",".join(easyscale.HEADER) + "\none,5,bert,4,8,4,1,p100,0.4\ntwo,7,ncf,2,1000,1,0,t4\n"
    done = simulate(text, "--devices", "p100=4,t4=2", "--scheduler", "las,optimus", "-o", "json")
    found = json.loads(done.stdout)["schedulers"]
    assert found["las"]["jobs"] == found["optimus"]["jobs"], "each has all devices of its type"


@pytest.mark.parametrize(
    ("row", "scheduler", "reason"),
    [
        ("a,0,4,2,4,basic,5,any", "optimus", "from 1 on, and the trace has jobs that need more"),
        ("a,0,1,1,1,basic,5,node", "optimus", "cannot keep the locality of jobs"),
        ("a,0,4,4,4,basic,5,node", "las", "cannot keep the locality of jobs"),
    ],
)
def test_traces_that_they_cannot_run_are_refused(
    simulate: Callable[..., Result], row: str, scheduler: str, reason: str
) -> None:
    error = simulate(f"{CSV}{row}\n", *GPUS, "--scheduler", f"fifo,{scheduler}").exception
    assert isinstance(error, click.BadParameter)
    assert reason in error.message and scheduler in error.message

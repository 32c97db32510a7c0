"""Workloads that others published are read as their authors meant them, or refused with file, line
and column."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rankfold.reconciler.cli import cli
from rankfold.reconciler.commands.common import EXIT_INVALID
from rankfold.simulator import easyscale
from rankfold.simulator.costs import Costs
from rankfold.simulator.formats import form_of, read
from rankfold.simulator.runs import Events
from rankfold.simulator.table import BadTrace
from rankfold.simulator.trace import Kind, TraceJob

pytestmark = pytest.mark.unit

GAVEL = Path(__file__).parent / "data/gavel"
EASYSCALE = ",".join(easyscale.HEADER) + "\n"
TYPES = [Kind("v100", 32), Kind("p100", 16), Kind("t4", 16)]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "w.csv"
    path.write_text(text)
    return path


def faults(path: Path, kinds: list[Kind], measured: Path | None = None) -> list[str]:
    with pytest.raises(BadTrace) as refused:
        read(path, kinds, measured=measured)
    return [fault.removeprefix(f"{path}:") for fault in refused.value.faults]


# ---- EasyScale: rows of our own in its form


def test_a_job_of_easyscale_takes_its_steps_on_the_type_that_it_prefers(tmp_path: Path) -> None:
    text = EASYSCALE + "one,5,bert,4,8,4,1,p100,0.4\ntwo,7.5,ncf,2,1000,1,0,t4\n"
    one = 111 * 0.6007  # 4 epochs of a hundredth of 88,641 samples, 32 in a step
    two = 25 * 0.0110
    assert read(written(tmp_path, text), TYPES) == [
        TraceJob("one", 5.0, 4, 1, 4, one, 1),
        TraceJob("two", 7.5, 2, 1, 2, two, 2),
    ]
    equal = read(tmp_path / "w.csv", [Kind("gpu", 8)])
    assert [(job.kind, job.work) for job in equal] == [(0, one), (0, two)]


def test_a_job_that_keeps_its_bits_may_mix_types(tmp_path: Path) -> None:
    """With the longer steps that keep them, in proportion to those on the type that it prefers."""
    text = EASYSCALE + "one,5,bert,4,8,4,1,p100,0.4\ntwo,7.5,ncf,2,1000,1,0,t4\n"
    path = written(tmp_path, text)
    one, two = read(path, [*TYPES, Kind("a100", 8)], mixed=True)
    assert (one.work, one.kind) == (111 * 0.5998, 1)
    assert one.capabilities == (0.5998 / 0.4390, 1.0, 0.5998 / 0.6661, 0.0)
    assert two == read(path, TYPES)[1]
    assert read(path, [Kind("gpu", 8)], mixed=True)[0].capabilities == ()


MIXED = TraceJob("a", 0.0, 4, 1, 4, 10.0, capabilities=(1.0, 0.5))


def test_a_mixed_job_is_as_fast_as_eq_1_says() -> None:
    """On one device of each type, the fast one has three ranks, the slow one the fourth."""
    for devices, seconds in (((1, 1), 30.0), ((2, 1), 20.0), ((4, 1), 10.0), ((1, 2), 20.0)):
        kinds = [Kind("fast", devices[0]), Kind("slow", devices[1])]
        for scheduler in ("fifo", "backfill", "tiers"):
            result = Events([MIXED], kinds, Costs(), {}).run(scheduler)
            assert result.makespan == seconds, (devices, scheduler)
    kinds = [Kind("fast", 1), Kind("slow", 9)]
    assert Events([MIXED], kinds, Costs(), {}).run("srtf").makespan == 40.0, "it mixes no types"


def test_a_mixed_job_continues_with_its_work_when_its_devices_change() -> None:
    """Another job takes the slow device from 10 s to 20 s: the first one has then done a third of
    its work, and takes 40 s for all of it on the fast device alone."""
    other = TraceJob("b", 10.0, 1, 1, 1, 10.0, kind=1)
    jobs = [MIXED, other]
    kinds = [Kind("fast", 1), Kind("slow", 1)]
    result = Events(jobs, kinds, Costs(), {}).run("tiers")
    ends = {done.name: done.end for done in result.jobs}
    assert ends["b"] == 20.0 and ends["a"] == pytest.approx(20.0 + (1 - 10 / 30 - 10 / 40) * 30.0)


def test_types_are_mixed_by_an_option(simulate: Callable[..., Result], tmp_path: Path) -> None:
    path = written(tmp_path, EASYSCALE + "one,5,bert,4,8,4,1,p100,0.4\n")
    devices = ("--devices", "v100=2,p100=2", "--scheduler", "tiers", "-o", "json")
    apart, mixed = (
        json.loads(simulate(path, *devices, *more).stdout)["schedulers"]["tiers"]["makespan"]
        for more in ((), ("--mix-types",))
    )
    assert apart == pytest.approx(2 * 111 * 0.6007) and mixed == pytest.approx(111 * 0.5998)
    for wrong in (
        (path, "--nodes", "2", "--gpus-per-node", "2"),
        (GAVEL / "jobs.csv", "--devices", "v100=9", "--applications", GAVEL),
    ):
        done = simulate(*wrong, "--mix-types")
        assert "--mix-types is for traces of format easyscale" in str(done.exception)


def test_its_rows_are_sorted_and_replaced_and_the_last_has_no_end(tmp_path: Path) -> None:
    row = ",resnet50,2,64,1,1,v100"
    text = f"{EASYSCALE}late,9{row},1\nearly,3{row}\nlate,4{row},1\nlast,5{row}"
    jobs = read(written(tmp_path, text), TYPES)
    assert [(job.name, job.arrival) for job in jobs] == [("early", 3), ("late", 4), ("last", 5)]


def test_errors_in_a_workload_of_easyscale(tmp_path: Path) -> None:
    good = "a,1,bert,4,8,4,1,v100,0.4\n"
    for wrong, expected in {
        good.replace("bert", "gpt"): "2:5: application: must be one of shufflenetv2, resnet50,",
        good.replace("v100", "a100"): "2:18: preferred_gpu: must be one of v100, p100, t4, not",
        good.replace(",4,8,4", ",0,8,4"): "2:10: max_parallelism: must be a whole number from 1",
        good.replace(",8,", ",-8,"): "2:12: batch_size: must be a whole number from 1",
        good.replace(",8,4,", ",8,nan,"): "2:14: epochs: must be a whole number from 1",
        good.replace("a,1", "a,nan"): "2:3: time: must be a number at least 0",
        "a,1,bert,4,8,4\n": "2:15: -: has 6 values, the header has 8: the line may be truncated",
        good.strip() + ",1\n": "2:28: -: has 10 values, the header has 8",
    }.items():
        (found,) = faults(written(tmp_path, EASYSCALE + wrong), TYPES)
        assert found.startswith(expected)
    (found,) = faults(written(tmp_path, EASYSCALE + good), TYPES[1:])
    assert found == (
        "2:18: preferred_gpu: the fleet has p100, t4, not v100: give --devices "
        "v100=32,p100=16,t4=16"
    )


# ---- Gavel


def test_a_job_of_gavel_takes_its_steps_at_the_measured_speed() -> None:
    jobs = read(GAVEL / "jobs.csv", [Kind("v100", 8)], measured=GAVEL)
    assert len(jobs) == 34 and [job.arrival for job in jobs] == sorted(job.arrival for job in jobs)
    by_name = {job.name: job for job in jobs}
    first, eight = by_name["line-2"], by_name["line-4"]
    assert first == TraceJob("line-2", 0.0, 1, 1, 1, 14612 / 5.44611, quota="23dbec")
    assert (eight.min, eight.max, eight.work) == (8, 8, 19178 / 9.71702)
    slow = read(GAVEL / "jobs.csv", [Kind("k80", 8)], measured=GAVEL)
    assert {job.name: job.work for job in slow}["line-2"] == 14612 / 0.981583
    other = read(GAVEL / "jobs.csv", [Kind("gpu", 8)], measured=GAVEL)
    assert {job.name: job.work for job in other}["line-2"] == first.work, "as the fastest type"


def test_numbers_that_were_not_measured_have_the_speed_of_the_next_lower_one() -> None:
    jobs = read(GAVEL / "jobs.csv", [Kind("v100", 8)], measured=GAVEL)
    (alone,) = (job for job in jobs if job.name == "line-10")  # CycleGAN, on one device only
    assert alone.work == pytest.approx(55992 / (8 * 4.42609))
    jobs = read(GAVEL / "jobs.csv", [Kind("k80", 8)], measured=GAVEL)
    (eight,) = (job for job in jobs if job.name == "line-6")  # ResNet-50, 128: 1 device of K80
    assert eight.work == pytest.approx(33895 / (8 * 0.347224))


def test_errors_in_a_workload_of_gavel(tmp_path: Path) -> None:
    head = "virtual_cluster,model,batch_size,steps,arrival_s,gpus\n"
    text = head + "a,LM,5,10,7,1\nb,LM,5,10,3,1\na,LM,5,10,6,9\nb,LM,6,10,4,1\nb,GPT,5,0,4,1\n"
    assert faults(written(tmp_path, text), [Kind("v100", 8)], GAVEL) == [
        "4:11: arrival_s: is before that of line 2, of the same virtual cluster: sort its rows by "
        "arrival_s",
        "4:13: gpus: needs 9; the fleet has 8 devices of type v100",
        "5:6: batch_size: must be one of 10, 20, 40, 5, 80, not '6'",
        "6:9: steps: must be a number at least 1 and at most 1e+12, not '0'",
        "6:3: model: must be one of A3C, CycleGAN, LM, Recommendation, ResNet-18, ResNet-50, "
        "Transformer, not 'GPT'",
    ]


def test_errors_in_the_measurements_of_gavel(tmp_path: Path) -> None:
    shutil.copy(GAVEL / "jobs.csv", tmp_path)
    measured = tmp_path / "throughputs.csv"
    head = "model,batch_size,gpus,k80_steps_per_s,p100_steps_per_s,v100_steps_per_s\n"
    for text, expected in {
        head + "LM,5,1,1,1,-1\n": "2:12: v100_steps_per_s: must be a number above 0",
        head + "LM,5,1,1,1,nan\n": "2:12: v100_steps_per_s: must be a number above 0",
        head + "LM,5,1,1,1,1\nLM,5,1,1,1,2\n": "3:6: gpus: these devices were measured before",
        head + "LM,5,1,1,1,\n": "1:1: v100_steps_per_s: has no measurements",
        head: "1:1: v100_steps_per_s: has no measurements",
    }.items():
        measured.write_text(text)
        with pytest.raises(BadTrace) as refused:
            read(tmp_path / "jobs.csv", [Kind("v100", 8)], measured=tmp_path)
        assert refused.value.faults[0].startswith(f"{measured}:{expected}")
    measured.unlink()
    with pytest.raises(BadTrace, match=r"throughputs\.csv:1:1: -: cannot be read: No such file"):
        read(tmp_path / "jobs.csv", [Kind("v100", 8)], measured=tmp_path)


@given(data=st.binary(max_size=200))
def test_no_bytes_make_reading_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.csv"
    for head, form in ((EASYSCALE, "easyscale"), (EASYSCALE.replace(",\n", "\n"), "easyscale")):
        for content in (
            data,
            head.encode() + data,
            head.encode() + b"a,1,bert,4,8,4,1,v100" + data,
        ):
            path.write_bytes(content)
            try:
                jobs = read(path, TYPES, form)
            except BadTrace as refused:
                assert refused.faults
            else:
                assert jobs


# ---- the command


@pytest.fixture
def simulate() -> Callable[..., Result]:
    def run(*arguments: str | Path) -> Result:
        words = ["simulate", *map(str, arguments)]
        return CliRunner().invoke(cli, words, standalone_mode=False)

    return run


def test_the_header_names_the_format(simulate: Callable[..., Result], tmp_path: Path) -> None:
    path = written(tmp_path, EASYSCALE + "a,1,bert,4,8,4,1,t4,0.4\nb,1,bert,4,8,4,1,v100,0.4\n")
    assert (form_of(path), form_of(GAVEL / "jobs.csv")) == ("easyscale", "gavel")
    done = simulate(path, "--devices", "v100=2,t4=4", "-o", "json")
    assert done.return_value == 0, done.output
    found = json.loads(done.stdout)
    assert found["devices"] == {"t4": 4, "v100": 2}
    jct = {job["name"]: job["jct"] for job in found["schedulers"]["fifo"]["jobs"]}
    assert jct["a"] == pytest.approx(111 * 0.6819) and jct["b"] == pytest.approx(2 * 111 * 0.4406)
    done = simulate(GAVEL / "jobs.csv", "--applications", GAVEL, "--devices", "v100=8")
    assert done.return_value == 0 and done.stdout.splitlines()[1].startswith("fifo")
    done = simulate(GAVEL / "jobs.csv", "--applications", GAVEL, "--devices", "v100=7")
    assert done.return_value == EXIT_INVALID
    assert "needs 8; the fleet has 7 devices of type v100" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (GAVEL / "jobs.csv", "--devices", "v100=8"),
        (GAVEL / "jobs.csv", "--devices", "v100=0", "--applications", GAVEL),
        (GAVEL / "jobs.csv", "--devices", "v100=1,v100=2", "--applications", GAVEL),
        (GAVEL / "jobs.csv", "--devices", "v100", "--applications", GAVEL),
        (GAVEL / "jobs.csv", "--devices", "v100=nan", "--applications", GAVEL),
        (GAVEL / "jobs.csv", "--devices", "v100=8", "--nodes", "1", "--applications", GAVEL),
        (GAVEL / "jobs.csv", "--devices", "v100=8", "--fleet", ".", "--applications", GAVEL),
        (GAVEL / "jobs.csv", "--devices", "v100=8", "--tick", "60", "--applications", GAVEL),
    ],
)
def test_wrong_use(simulate: Callable[..., Result], arguments: tuple[str | Path, ...]) -> None:
    assert isinstance(simulate(*arguments).exception, click.UsageError)

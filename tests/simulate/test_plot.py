"""The plot of a simulation: areas as large as what jobs had, and files that are refused."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from rankfold.reconciler.cli import cli
from rankfold.reconciler.commands.common import EXIT_INVALID
from rankfold.simulator import plot
from rankfold.simulator.costs import Costs
from rankfold.simulator.result import Result as Simulated
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"
TITLE = re.compile(r"(.*): ([0-9.e+]+) device-seconds")


def simulated(jobs: Sequence[TraceJob], devices: int, scheduler: str = "fifo") -> Simulated:
    return Events(jobs, [Kind("gpu", devices)], Costs(), {}).run(scheduler)


def job(name: str, arrival: float, devices: int, work: float, **more: Any) -> TraceJob:
    return TraceJob(name, arrival, devices, devices, devices, work, **more)


def points_of(path: str) -> list[tuple[float, float]]:
    """The corners of a path of absolute horizontal and vertical lines."""
    x = y = 0.0
    points = []
    for command, numbers in re.findall(r"([MHVZ])([0-9.,]*)", path):
        if command == "M":
            x, y = map(float, numbers.split(","))
        x = float(numbers) if command == "H" else x
        y = float(numbers) if command == "V" else y
        points.append((x, y))
    return points


def areas_of(image: str) -> list[tuple[str, float, float]]:
    """Each area of an image: its name, the device-seconds that its title gives, and its size."""
    found = []
    for path in ET.fromstring(image).iter(f"{SVG}path"):
        title = path.find(f"{SVG}title")
        if title is None or title.text is None:
            continue
        named = TITLE.fullmatch(title.text)
        assert named is not None
        corners = points_of(path.get("d", ""))
        around = itertools.pairwise([*corners, corners[0]])
        twice = sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in around)
        found.append((named[1], float(named[2]), abs(twice) / 2))
    return found


def check_sizes(image: str, devices: int, seconds: float) -> dict[str, float]:
    """Group → the device-seconds in its area, which are those of its title."""
    whole = plot.COLUMNS * plot.HEIGHT
    areas = areas_of(image)
    for _, held, size in areas:
        assert size / whole == pytest.approx(held / (devices * seconds), abs=2e-4)
    return {name: held for name, held, _ in areas}


def test_areas_are_as_large_as_what_jobs_had() -> None:
    jobs = [job("long", 0.0, 1, 10.0), job("wide", 1.0, 2, 3.0), job("short", 2.0, 1, 4.0)]
    image = plot.draw({"backfill": simulated(jobs, 2, "backfill")})
    assert check_sizes(image, 2, 13.0) == {"long": 10, "wide": 6, "short": 4}


def test_areas_are_one_above_another() -> None:
    jobs = [job("a", 0.0, 1, 10.0), job("b", 0.0, 2, 10.0)]
    (a, b) = (
        points_of(path.get("d", ""))
        for path in ET.fromstring(plot.draw({"fifo": simulated(jobs, 4)})).iter(f"{SVG}path")
        if path.find(f"{SVG}title") is not None
    )
    top, height = plot.ABOVE, plot.HEIGHT
    assert {y for _, y in a} == {top + height, top + 3 * height / 4}
    assert {y for _, y in b} == {top + 3 * height / 4, top + height / 4}
    assert {x for x, _ in a} == {plot.LEFT, plot.LEFT + plot.COLUMNS}


def test_a_long_trace_is_averaged_and_loses_no_device_second() -> None:
    jobs = [
        job(
            f"job-{number}", float(number), 1 + number % 3, 2.0 + number % 7, quota="ab"[number % 2]
        )
        for number in range(5000)
    ]
    result = simulated(jobs, 12, "backfill")
    image = plot.draw({"backfill": result}, "quota")
    held = check_sizes(image, 12, result.makespan)
    assert sum(held.values()) == sum(each.max * each.work for each in jobs)
    assert len(image) < 50_000


def test_jobs_that_lose_their_devices_have_none_meanwhile() -> None:
    jobs = [job("long", 0.0, 2, 10.0), job("short", 1.0, 2, 3.0)]
    result = simulated(jobs, 2, "srtf")
    assert [(each.job, each.start, each.end) for each in result.spans] == [
        ("long", 0, 1),
        ("short", 1, 4),
        ("long", 4, 13),
    ]
    check_sizes(plot.draw({"srtf": result}), 2, 13.0)


def test_many_jobs_are_shown_by_tier_and_the_smallest_groups_as_one() -> None:
    few, many = plot.GROUPS_MAX, plot.GROUPS_MAX + 3
    jobs = [job(f"j{number:02}", 0.0, 1, 1.0 + number, tier="basic") for number in range(many)]
    result = simulated(jobs, many)
    assert [name for name, _, _ in areas_of(plot.draw({"fifo": result}))] == ["basic"]
    names = [name for name, _, _ in areas_of(plot.draw({"fifo": result}, "job"))]
    assert names == [f"j{number:02}" for number in range(3, many)] + ["3 others"]
    some = plot.draw({"fifo": simulated(jobs[:few], many)})
    assert len(areas_of(some)) == few


def test_tiers_are_in_their_order() -> None:
    jobs = [job("b", 0.0, 1, 1.0, tier="basic"), job("p", 1.0, 1, 1.0, tier="premium")]
    image = plot.draw({"fifo": simulated(jobs, 2)}, "tier")
    assert [name for name, _, _ in areas_of(image)] == ["premium", "basic"]


def test_names_are_text_and_not_markup() -> None:
    jobs = [job('</svg><&">', 0.0, 1, 1.0), job("n" * 200, 0.0, 1, 1.0), job("others", 0.0, 1, 1.0)]
    image = plot.draw({"<fifo>": simulated(jobs, 3)})
    texts = [each.text or "" for each in ET.fromstring(image).iter(f"{SVG}text")]
    assert "<fifo>" in texts and '</svg><&">' in texts and "others" in texts
    assert max(map(len, texts)) < 40


def test_schedulers_share_an_axis_of_time() -> None:
    jobs = [job("long", 0.0, 1, 10.0), job("wide", 1.0, 2, 3.0), job("short", 2.0, 1, 4.0)]
    results = {name: simulated(jobs, 2, name) for name in ("fifo", "backfill", "srtf")}
    image = plot.draw(results)
    longest = max(result.makespan for result in results.values())
    assert len(areas_of(image)) == 9
    check_sizes(image, 2, longest)


@pytest.mark.parametrize("most", [1e-6, 0.3, 1, 2, 7, 59.9, 64, 1e5, 3e11])
def test_an_axis_has_some_round_ticks(most: float) -> None:
    found = plot.ticks(most)
    assert found[0] == 0 and found[-1] <= most * (1 + 1e-9)
    assert plot.TICKS / 2 <= len(found) <= plot.TICKS + 1


# ---- the command


TRACE = """\
name,arrival,worldSize,min,max,tier,work
a,0,1,1,1,standard,10
b,1,2,2,2,premium,3
"""


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Result]:
    (tmp_path / "trace.csv").write_text(TRACE)

    def run(*arguments: str | Path) -> Result:
        words = ["simulate", str(tmp_path / "trace.csv"), "--nodes", "1", "--gpus-per-node", "2"]
        return CliRunner().invoke(cli, [*words, *map(str, arguments)], standalone_mode=False)

    return run


def test_the_command_replaces_an_earlier_image(
    simulate: Callable[..., Result], tmp_path: Path
) -> None:
    image = tmp_path / "plot.svg"
    image.write_text("earlier")
    assert simulate("--plot", image, "--plot-by", "tier").return_value == 0
    assert [name for name, _, _ in areas_of(image.read_text())] == ["premium", "standard"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plot.svg", "trace.csv"]


def test_a_refused_trace_leaves_an_earlier_image(
    simulate: Callable[..., Result], tmp_path: Path
) -> None:
    image = tmp_path / "plot.svg"
    image.write_text("earlier")
    (tmp_path / "trace.csv").write_text(TRACE.replace("a,0", "a,7"))
    assert simulate("--plot", image).return_value == EXIT_INVALID
    assert image.read_text() == "earlier"


def test_the_trace_is_not_overwritten(simulate: Callable[..., Result], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    before = trace.read_text()
    (tmp_path / "link.csv").symlink_to(trace)
    for name in ("trace.csv", "link.csv"):
        done = simulate("--actions", tmp_path / name)
        assert "it would be overwritten; give another name" in str(done.exception)
    assert trace.read_text() == before


def test_an_image_that_cannot_be_written_is_refused_before_the_simulation(
    simulate: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "trace.csv").write_text("not a trace\n")
    for arguments, words in (
        (("--plot", tmp_path / "plot.png"), "the file is SVG; name it"),
        (("--plot", tmp_path / "folder.svg"), "it exists and is not a file"),
        (("--plot", tmp_path / "none/plot.svg"), f"{tmp_path}/none is not a folder"),
        (("--plot-by", "job"), "--plot-by needs --plot FILE.svg"),
    ):
        refused = simulate(*arguments)
        assert isinstance(refused.exception, click.UsageError)
        assert words in str(refused.exception)

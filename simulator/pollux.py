"""Jobs of the Pollux workloads: six applications whose step times and gradient statistics were
measured on 64 GPUs, for batches and placements of many sizes.

A job trains with a fixed batch, and each device gets an equal part of it. If a part is too large
for a device, the device computes it in several steps and accumulates the gradients. Progress is
counted in steps with the smallest batch: larger batches make less progress per sample, by as much
as the measured variance of the gradients says.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rankfold import legible
from rankfold.plural import count
from rankfold.simulator.table import SECONDS_MAX, BadTrace, Row, Table, shown

WORKLOAD = ("name", "time", "application", "num_replicas", "batch_size")
PLACEMENTS = ("placement", "local_bsz", "step_time", "sync_time")
SCALABILITY = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
VALIDATION = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LOCAL_MAX = {"yolov3": 8}  # samples of a device; elsewhere the most that was measured
FIXED = {"ncf"}  # does not grow beyond one device
NODES_MEASURED = 16
SAMPLES_MAX = 1 << 24
STEP_MAX = 1e6  # seconds
STATISTIC_MAX = 1e300
ROUNDING = 1e-8  # a quotient that is this little above a whole number is that number

Placement = tuple[int, ...]  # devices of each node, in the order of the ranks


class NotMeasured(Exception):
    """An application was not measured on such a placement with so many samples."""


class Epoch(Struct, frozen=True):
    """The end of an epoch, with one batch size. progress: steps with the smallest batch.
    iterations: steps with this one. grad_sqr, grad_var: statistics of the gradients."""

    progress: float
    iterations: float
    grad_sqr: float
    grad_var: float


class Measured(Struct, frozen=True):
    """Seconds of a step with so many samples on each device, and of the exchange in it."""

    local: int
    step: float
    sync: float


class Point(Struct, frozen=True):
    """The same, on so many nodes and devices."""

    nodes: int
    devices: int
    local: int
    step: float
    sync: float


class Application:
    """Measurements of a program. initial, largest: the smallest and the largest batch."""

    def __init__(self, folder: Path):
        self.name, self.epochs = folder.name, EPOCHS[folder.name]
        self._validations = {
            int(path.stem.partition("-")[2]): _validation(path, self.epochs)
            for path in folder.glob("validation-*.csv")
            if path.stem.partition("-")[2].isdigit()
        }
        if len(self._validations) < 2:
            reason = "has no validation-BATCH.csv for two batches"
            raise BadTrace([f"{legible.name(folder)}: {reason}"])
        self._batches = sorted(self._validations)
        self.initial, self.largest = self._batches[0], self._batches[-1]
        self._ends = [
            min(epochs[at].progress for epochs in self._validations.values())
            for at in range(self.epochs)
        ]
        self._placed, means = _placements(folder / "placements.csv")
        samples = [row.local for rows in self._placed.values() for row in rows]
        self.local_min, measured = min(samples), max(samples)
        self.local_max = LOCAL_MAX.get(self.name, measured)
        self._points = [*means, *_scalability(folder / "scalability.csv")]
        self._times: dict[tuple[Placement, int], tuple[float, float]] = {}

    def end_of(self, epoch: int) -> float:
        """The progress with which an epoch ends."""
        return self._ends[epoch]

    def statistics(self, batch: float, epoch: int) -> tuple[float, float]:
        """The squared norm and the variance of the gradients."""
        low, high = self._around(batch)
        a, b = self._validations[low][epoch], self._validations[high][epoch]
        return (
            _at(batch, low, high, a.grad_sqr, b.grad_sqr),
            _at(batch, low, high, a.grad_var, b.grad_var),
        )

    def iterations(self, batch: int, epoch: int) -> float:
        """Steps with a batch until an epoch has ended."""
        low, high = self._around(batch)
        a, b = self._validations[low][epoch], self._validations[high][epoch]
        return _at(batch, low, high, a.iterations, b.iterations)

    def _around(self, batch: float) -> tuple[int, int]:
        """The measured batches around a batch; twice the same if it was measured itself."""
        index = bisect_left(self._batches, batch)
        if index == len(self._batches) or (index == 0 and batch != self._batches[0]):
            raise NotMeasured(f"{self.name}: a batch of {batch:g} samples")
        low = self._batches[index] if batch == self._batches[index] else self._batches[index - 1]
        return low, self._batches[index]

    def times(self, placement: Placement, local: int) -> tuple[float, float]:
        """Seconds of a step, and of these for the exchange of gradients. local: samples of each
        device. Raises NotMeasured."""
        turned = min(placement[at:] + placement[:at] for at in range(len(placement)))
        key = (turned, local)
        if key not in self._times:
            rows = self._placed.get(turned)
            seconds = _between(rows, local) if rows else self._estimate(turned, local)
            if seconds is None or not all(map(math.isfinite, seconds)):
                where = "+".join(map(str, turned))
                raise NotMeasured(
                    f"{self.name}: on devices {where}, each with {count(local, 'sample')}"
                )
            self._times[key] = seconds
        return self._times[key]

    def _estimate(self, placement: Placement, local: int) -> tuple[float, float]:
        nodes = min(len(placement), NODES_MEASURED)
        step, sync = self._interpolator([nodes, sum(placement), local])[0]
        return float(step), float(sync)

    @functools.cached_property
    def _interpolator(self) -> Any:
        try:
            from scipy.interpolate import LinearNDInterpolator  # an optional dependency
        except ImportError:
            raise NotMeasured(
                f"{self.name}: placements that were not measured need scipy: "
                "pip install 'rankfold[simulate]'"
            ) from None
        points = [(float(p.nodes), float(p.devices), float(p.local)) for p in self._points]
        return LinearNDInterpolator(points, [(p.step, p.sync) for p in self._points])


def _at(x: float, low: float, high: float, a: float, b: float) -> float:
    """Between a at low and b at high, linearly."""
    return a if low == high else ((x - low) * b + (high - x) * a) / (high - low)


def _between(rows: Sequence[Measured], local: int) -> tuple[float, float] | None:
    """Step and exchange, interpolated linearly; None outside of what was measured."""
    if not rows[0].local <= local <= rows[-1].local:
        return None
    if len(rows) == 1:
        return rows[0].step, rows[0].sync
    index = max(1, bisect_left(rows, local, key=lambda row: row.local))
    low, high = rows[index - 1], rows[index]
    width, over = high.local - low.local, local - low.local
    return (
        (high.step - low.step) / width * over + low.step,
        (high.sync - low.sync) / width * over + low.sync,
    )


# ---- files


def _validation(path: Path, epochs: int) -> list[Epoch]:
    found: list[Epoch] = []
    for row in Table(path).rows(VALIDATION, ()):
        epoch = Epoch(
            row.number("progress", 0, SECONDS_MAX, above=True),
            row.number("iteration", 0, SECONDS_MAX, above=True),
            row.number("grad_sqr", 0, STATISTIC_MAX),
            row.number("grad_var", 0, STATISTIC_MAX, above=True),
        )
        if found and epoch.progress <= found[-1].progress:
            row.fault("progress", "is not above that of the line before")
        found.append(epoch)
    if len(found) < epochs:
        reason = f"ends after epoch {len(found)} of {epochs}: the file may be truncated"
        raise BadTrace([f"{legible.name(path)}:{len(found) + 1}:1: -: {reason}"])
    return found


def _placements(path: Path) -> tuple[dict[Placement, list[Measured]], list[Point]]:
    """Measurements of each placement, ascending; and the means of placements on as many nodes and
    devices."""
    placed: dict[Placement, list[Measured]] = {}
    groups: dict[tuple[int, int, int], list[Measured]] = {}
    for row in Table(path).rows(PLACEMENTS, ()):
        placement = tuple(map(int, str(row.whole("placement", 1, 10**NODES_MEASURED))))
        measured = _measured(row)
        rows = placed.setdefault(placement, [])
        if 0 in placement:
            row.fault("placement", "must not have a node with no device")
        if rows and measured.local <= rows[-1].local:
            row.fault("local_bsz", "is not above that of the line before of the same placement")
        rows.append(measured)
        groups.setdefault((len(placement), sum(placement), measured.local), []).append(measured)
    if not placed:
        raise BadTrace([f"{legible.name(path)}:1:1: -: has no measurements"])
    means = [
        Point(
            *key,
            sum(each.step for each in groups[key]) / len(groups[key]),
            sum(each.sync for each in groups[key]) / len(groups[key]),
        )
        for key in sorted(groups)
    ]
    return placed, means


def _scalability(path: Path) -> list[Point]:
    points = []
    for row in Table(path).rows(SCALABILITY, ()):
        nodes, devices = row.whole("num_nodes", 1, 1024), row.whole("num_replicas", 1, 1 << 16)
        measured = _measured(row)
        points.append(Point(nodes, devices, measured.local, measured.step, measured.sync))
    return points


def _measured(row: Row) -> Measured:
    return Measured(
        row.whole("local_bsz", 1, SAMPLES_MAX),
        row.number("step_time", 0, STEP_MAX, above=True),
        row.number("sync_time", 0, STEP_MAX),
    )


def read_workload(path: Path, applications: Path, devices: int) -> list[PolluxJob]:
    """The jobs of a workload. applications: a folder for each application. devices: of the fleet.
    Raises BadTrace and NotMeasured."""
    jobs: list[PolluxJob] = []
    lines: dict[str, int] = {}
    known: dict[str, Application] = {}
    for row in Table(path).rows(WORKLOAD, ()):
        name, kind = row.text("name"), row.text("application")
        if lines.setdefault(name, row.line) != row.line:
            row.fault("name", f"{shown(name)} is also the name of line {lines[name]}")
        arrival = row.number("time", 0, SECONDS_MAX)
        if jobs and arrival < jobs[-1].arrival:
            row.fault("time", f"is before that of line {row.line - 1}: sort the file by time")
        number, batch = row.whole("num_replicas", 1, 1 << 16), row.whole("batch_size", 1, 1 << 24)
        if number > devices:
            row.fault("num_replicas", f"needs {number}; the fleet has {count(devices, 'device')}")
        if kind not in EPOCHS:
            row.fault("application", f"must be one of {', '.join(EPOCHS)}, not {shown(kind)}")
            continue
        if kind not in known:
            known[kind] = Application(applications / kind)
        application = known[kind]
        if not application.initial <= batch <= application.largest:
            limits = f"{application.initial} to {application.largest}"
            row.fault("batch_size", f"must be from {limits} for {kind}, not {batch}")
        jobs.append(PolluxJob(name, arrival, application, number, batch))
    if not jobs:
        raise BadTrace([f"{legible.name(path)}:1:1: -: the trace has no jobs"])
    return jobs


# ---- jobs


class PolluxJob:
    """A job that trains an application. devices: number that it requests. batch: samples."""

    def __init__(
        self, name: str, arrival: float, application: Application, devices: int, batch: int
    ):
        self.name, self.arrival, self.application = name, arrival, application
        self.devices, self.batch = devices, batch

    def fits(self, devices: int) -> int:
        """The most of `devices` to which the job can grow: each needs as many samples as were
        measured."""
        fit = 1 if self.application.name in FIXED else self.batch // self.application.local_min
        return min(devices, max(1, fit))

    def parts(self, devices: int, accumulate: bool) -> tuple[int, int]:
        """Samples of each device in one go, and the number of goes in addition to the first.
        accumulate: one device always has two."""
        application = self.application
        local = _ceiling(self.batch / devices)
        more = _ceiling(local / application.local_max) - 1
        if devices == 1 and (accumulate or self.batch > application.initial):
            more = max(1, more)
        goes = more + 1
        return min(_ceiling(local / goes), application.largest // (devices * goes)), more

    def step_s(self, devices: int, per_node: int) -> float:
        """Seconds of a step on devices of as few nodes as possible. As Optimus estimates it, one
        device always accumulates."""
        whole, rest = divmod(devices, per_node)
        placement = (per_node,) * whole + ((rest,) if rest else ())
        local, more = self.parts(devices, accumulate=True)
        step, sync = self.application.times(placement, local)
        return step + (step - sync) * more

    def steps_left(self, epoch: int) -> float:
        """Steps until its end, from the end of an epoch."""
        application = self.application
        last = application.iterations(self.batch, application.epochs - 1)
        return max(0.0, last - application.iterations(self.batch, epoch))


def _ceiling(quotient: float) -> int:
    return math.ceil(quotient - ROUNDING)


class Training:
    """How far a job is. progress: steps with the smallest batch."""

    def __init__(self, job: PolluxJob):
        self.job, self.progress, self.epoch = job, 0.0, 0

    @property
    def done(self) -> bool:
        return self.epoch >= self.job.application.epochs

    def advance(self, placement: Placement, seconds: float) -> float:
        """Train on a placement. The end of an epoch is at a whole second. Returns how many of the
        seconds are left after its end; below 0 if the last epoch ends in the next second."""
        application = self.job.application
        devices = sum(placement)
        local, more = self.job.parts(devices, accumulate=False)
        step, sync = application.times(placement, local)
        batch = devices * local * (more + 1)
        scale = batch / application.initial
        while seconds > 0 and not self.done:
            square, variance = application.statistics(batch, self.epoch)
            gain = (variance + square) / (variance / scale + square)
            rate = gain / (step + (step - sync) * more)
            end = application.end_of(self.epoch)
            if self.progress + rate * seconds < end:
                self.progress += rate * seconds
                return 0.0
            seconds -= round((end - self.progress) / rate)
            self.progress, self.epoch = end, self.epoch + 1
        return seconds

"""The jobs that Gavel's authors (OSDI '20) derived from the Philly trace, and the speeds that they
measured: steps per second of each model on 1 to 8 devices of three types.

All have a fixed number of devices. Each virtual cluster is a trace of its own that begins at 0;
together they are in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rankfold.plural import count
from rankfold.simulator.table import SECONDS_MAX, BadTrace, Row, Table, shown
from rankfold.simulator.trace import Kind, TraceJob

COLUMNS = ("virtual_cluster", "model", "batch_size", "steps", "arrival_s", "gpus")
TYPES = ("k80", "p100", "v100")
MEASURED = ("model", "batch_size", "gpus", *(f"{each}_steps_per_s" for each in TYPES))
THROUGHPUTS = "throughputs.csv"
DEVICES_MAX, STEPS_MAX, RATE_MAX = 1 << 16, 1e12, 1e9
Model = tuple[str, str]  # its name, and the size of its batch; empty: it has only one
Speeds = Mapping[Model, Mapping[int, float]]  # model → number of devices → steps per second


def read_gavel(path: Path, kinds: Sequence[Kind], folder: Path) -> list[TraceJob]:
    """The jobs, on devices of the first kind. folder: has THROUGHPUTS. Raises BadTrace."""
    kind = kinds[0]
    speeds = _speeds(folder / THROUGHPUTS, kind.type if kind.type in TYPES else TYPES[-1])
    jobs: list[TraceJob] = []
    last: dict[str, tuple[float, int]] = {}  # virtual cluster → arrival and line of its last job
    for row in Table(path).rows(COLUMNS, ()):
        cluster, arrival = row.text("virtual_cluster"), row.number("arrival_s", 0, SECONDS_MAX)
        before, line = last.get(cluster, (0.0, 0))
        if arrival < before:
            reason = f"is before that of line {line}, of the same virtual cluster"
            row.fault("arrival_s", f"{reason}: sort its rows by arrival_s")
        last[cluster] = (arrival, row.line)
        devices, steps = row.whole("gpus", 1, DEVICES_MAX), row.number("steps", 1, STEPS_MAX)
        if devices > kind.devices:
            there = count(kind.devices, "device")
            row.fault("gpus", f"needs {devices}; the fleet has {there} of type {kind.type}")
        rate = _rate(row, speeds, devices)
        name = f"line-{row.line}"
        jobs.append(TraceJob(name, arrival, devices, devices, devices, steps / rate, quota=cluster))
    return sorted(jobs, key=lambda job: job.arrival)


def _rate(row: Row, speeds: Speeds, devices: int) -> float:
    """Steps per second. On numbers of devices that were not measured, each is as fast as on the
    next lower number that was."""
    model = row.text("model"), row.maybe("batch_size")
    measured = speeds.get(model)
    if measured is None:
        if not any(name == model[0] for name, _ in speeds):
            known = ", ".join(sorted({name for name, _ in speeds}))
            row.fault("model", f"must be one of {known}, not {shown(model[0])}")
        else:
            sizes = ", ".join(batch or "none" for name, batch in speeds if name == model[0])
            row.fault("batch_size", f"must be one of {sizes}, not {shown(model[1])}")
        return 1.0
    nearest = max((number for number in measured if number <= devices), default=min(measured))
    return measured[nearest] * devices / nearest


def _speeds(path: Path, type: str) -> Speeds:
    speeds: dict[Model, dict[int, float]] = {}
    for row in Table(path).rows(MEASURED, ()):
        model = row.text("model"), row.maybe("batch_size")
        number, column = row.whole("gpus", 1, DEVICES_MAX), f"{type}_steps_per_s"
        if not row.maybe(column):
            continue  # it was not measured
        rate = row.number(column, 0, RATE_MAX, above=True)
        if speeds.setdefault(model, {}).setdefault(number, rate) != rate:
            row.fault("gpus", "these devices were measured before, with another speed")
    if not speeds:
        raise BadTrace([f"{path}:1:1: {type}_steps_per_s: has no measurements"])
    return speeds

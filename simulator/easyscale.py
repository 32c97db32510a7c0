"""The workload of EasyScale (SC '23), which has no licence: it is read where a user has it.

Its jobs train with a fixed number of logical workers, on any number of devices from one on. A step
computes one batch for each worker; it takes as long as EasyScale's authors measured on the device
that the job prefers, whatever the size of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from rankfold.simulator.table import SECONDS_MAX, Row, Table, shown
from rankfold.simulator.trace import Kind, TraceJob

COLUMNS = (
    "name", "time", "application", "max_parallelism", "batch_size", "epochs",
    "enable_heterogeneous_deterministic", "preferred_gpu",
)  # fmt: skip
HEADER = (*COLUMNS, "")  # the last column has no name, and some rows lack it
TYPES = ("v100", "p100", "t4")
EPOCH = 0.01  # part of the samples that an epoch of a simulation has
WORKERS_MAX, BATCH_MAX, EPOCHS_MAX = 1 << 16, 1 << 24, 10**6
IMAGENET, VOC, SQUAD, MOVIELENS = 1_280_000, 16_551, 88_641, 4_970_845
# Samples, and seconds of a step on each of TYPES, with the same bits on any number of them (D1).
APPLICATIONS = {
    "shufflenetv2": (IMAGENET, (0.2167, 0.3310, 0.4022)),
    "resnet50": (IMAGENET, (0.2688, 0.4393, 0.6591)),
    "vgg19": (IMAGENET, (0.3924, 0.6514, 0.9439)),
    "yolov3": (VOC, (0.4590, 0.7169, 0.8133)),
    "ncf": (MOVIELENS, (0.0105, 0.0130, 0.0110)),
    "bert": (SQUAD, (0.4406, 0.6007, 0.6819)),
    "electra": (SQUAD, (0.4418, 0.6023, 0.6853)),
    "swintransformer": (IMAGENET, (0.4114, 0.5945, 0.5974)),
}
# Seconds of a step with the same bits on all types (D2).
SAME_BITS = {
    "shufflenetv2": (0.4697, 0.8722, 0.6782),
    "resnet50": (0.5860, 1.1595, 1.2230),
    "vgg19": (1.1327, 2.0655, 2.2755),
    "yolov3": (0.5491, 0.9833, 1.0355),
    "ncf": (0.0107, 0.0127, 0.0118),
    "bert": (0.4390, 0.5998, 0.6661),
    "electra": (0.4433, 0.5958, 0.6654),
    "swintransformer": (0.4289, 0.5941, 0.6153),
}


def read_easyscale(path: Path, kinds: Sequence[Kind], mixed: bool = False) -> list[TraceJob]:
    """The jobs in the order of arrival; a later row replaces an earlier one of its name, as in
    EasyScale's simulator. mixed: jobs that keep their bits on all types may use several types at
    once. Raises BadTrace."""
    jobs: dict[str, TraceJob] = {}
    for row in Table(path, ragged=True).rows(COLUMNS, ()):
        name, arrival = row.text("name"), row.number("time", 0, SECONDS_MAX)
        workers = row.whole("max_parallelism", 1, WORKERS_MAX)
        batch = row.whole("batch_size", 1, BATCH_MAX)
        epochs = row.whole("epochs", 1, EPOCHS_MAX)
        samples, steps_s = _application(row)
        steps, kind = math.ceil(epochs * EPOCH * samples / (batch * workers)), _kind(row, kinds)
        capabilities: tuple[float, ...] = ()
        if mixed and row.whole("enable_heterogeneous_deterministic", 0, EPOCHS_MAX):
            steps_s = SAME_BITS.get(row.text("application"), steps_s)
            of_type = dict(zip(TYPES, steps_s, strict=True))
            step_s = _preferred(row, steps_s)
            capabilities = tuple(
                step_s / of_type[each.type] if each.type in of_type else 0.0 for each in kinds
            )
        work = steps * _preferred(row, steps_s)
        job = TraceJob(name, arrival, workers, 1, workers, work, kind)
        jobs[name] = replace(job, capabilities=capabilities if any(capabilities) else ())
    return sorted(jobs.values(), key=lambda job: job.arrival)


def _application(row: Row) -> tuple[int, tuple[float, ...]]:
    """Its samples, and seconds of a step on each type of device."""
    name, preferred = row.text("application"), row.text("preferred_gpu")
    if name not in APPLICATIONS:
        row.fault("application", f"must be one of {', '.join(APPLICATIONS)}, not {shown(name)}")
    if preferred not in TYPES:
        row.fault("preferred_gpu", f"must be one of {', '.join(TYPES)}, not {shown(preferred)}")
    if name not in APPLICATIONS or preferred not in TYPES:
        return 1, (1.0,) * len(TYPES)
    return APPLICATIONS[name]


def _preferred(row: Row, steps_s: Sequence[float]) -> float:
    """Seconds of a step on the type of device that the job prefers."""
    preferred = row.text("preferred_gpu")
    return steps_s[TYPES.index(preferred)] if preferred in TYPES else 1.0


def _kind(row: Row, kinds: Sequence[Kind]) -> int:
    """The devices of the type that the job prefers; if all are equal, these are of that type."""
    preferred, known = row.text("preferred_gpu"), [kind.type for kind in kinds]
    if preferred in known:
        return known.index(preferred)
    if len(kinds) > 1 and preferred in TYPES:
        there = ", ".join(known)
        reason = f"the fleet has {there}, not {preferred}: give --devices v100=32,p100=16,t4=16"
        row.fault("preferred_gpu", reason)
    return 0

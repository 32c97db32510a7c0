"""The command simulate: a trace of jobs on a fleet that only its files describe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
from msgspec import structs

from rankfold.legible import name as legible_name
from rankfold.plural import count
from rankfold.reconciler.commands.common import EXIT_INVALID, fail, output_option, show
from rankfold.reconciler.model.desired import Desired
from rankfold.reconciler.report.lines import emit, say
from rankfold.reconciler.source import spec, yamldoc
from rankfold.reconciler.source.invalid import Fault, InvalidInput
from rankfold.reconciler.source.schemas import load_schema, schema_faults
from rankfold.simulator.compare import BUILT_IN, compare
from rankfold.simulator.costs import Costs
from rankfold.simulator.formats import FORMATS, read
from rankfold.simulator.result import Result
from rankfold.simulator.table import BadTrace
from rankfold.simulator.trace import Kind

FORMAT_VERSION = 1
COUNTED_S = 0.2  # between two updates of the progress bar
HEAD = ("SCHEDULER", "JCT MEAN", "P50", "P99", "WAIT MEAN", "MAKESPAN", "USED", "DISTURBED")


@click.command("simulate")
@click.argument("trace", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--fleet", type=click.Path(path_type=Path), help="Directory of its pools.")
@click.option("--nodes", type=click.IntRange(1, 100_000), help="Instead of --fleet.")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), help="With --nodes.")
@click.option("--scheduler", default="fifo", show_default=True, help=", ".join(BUILT_IN))
@click.option("--costs", "costs_file", type=click.Path(path_type=Path), help="YAML; else none.")
@click.option("--format", "form", type=click.Choice(sorted(FORMATS)), help="Default: by header.")
@output_option()
def simulate(
    trace: Path,
    fleet: Path | None,
    nodes: int | None,
    gpus_per_node: int | None,
    scheduler: str,
    costs_file: Path | None,
    form: str | None,
    output: str,
) -> int:
    """Run a trace of jobs in simulated time, and report how long the jobs take.

    The schedulers are those of the planner. Nothing is started, and no fleet is used. TRACE is a
    CSV file, compressed with gzip or not; docs/simulate.md describes it. Several schedulers are
    separated by commas. Exit code 65 and one line for each fault, as file:line:column: name:
    reason, if a file is refused.
    """
    names = _schedulers(scheduler)
    kinds = _kinds(fleet, nodes, gpus_per_node)
    costs = _costs(costs_file) if costs_file else Costs()
    try:
        jobs = read(trace, kinds, form)
    except BadTrace as bad:
        for fault in bad.faults:
            say(fault)
        return EXIT_INVALID
    with _progress(names, len(jobs)) as progress:
        results = compare(jobs, kinds, names, costs, progress)
    if output == "json":
        show(
            {
                "format_version": FORMAT_VERSION,
                "trace": legible_name(trace),
                "jobs": len(jobs),
                "devices": {kind.type: kind.devices for kind in kinds},
                "costs": structs.asdict(costs),
                "schedulers": {name: result.json() for name, result in results.items()},
            }
        )
    else:
        _print(results)
    return 0


def _schedulers(given: str) -> list[str]:
    names = list(dict.fromkeys(given.split(",")))
    for name in names:
        if name not in BUILT_IN:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(BUILT_IN)}")
    return names


# ---- the fleet


def _kinds(fleet: Path | None, nodes: int | None, gpus_per_node: int | None) -> list[Kind]:
    """The devices, the type with the most first."""
    if fleet is None:
        if nodes is None or gpus_per_node is None:
            raise click.UsageError("give either --fleet DIR, or --nodes N and --gpus-per-node M")
        return [Kind("gpu", nodes * gpus_per_node)]
    if nodes is not None or gpus_per_node is not None:
        raise click.UsageError("give --fleet, or --nodes and --gpus-per-node, not both")
    loaded = spec.load_dir(fleet)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    desired = loaded.check().desired
    if desired.jobs:
        say(f"not simulated: {count(len(desired.jobs), 'job')} of {legible_name(fleet)}")
    return _kinds_of(desired, fleet)


def _kinds_of(desired: Desired, fleet: Path) -> list[Kind]:
    found: dict[str, Kind] = {}
    for device in desired.devices().values():
        kind = found.get(device.type, Kind(device.type, 0, device.speed))
        if kind.speed != device.speed:
            fail(
                f"{legible_name(fleet)}: devices of type {device.type} have different speeds, "
                "which is not simulated",
                EXIT_INVALID,
            )
        found[device.type] = structs.replace(kind, devices=kind.devices + 1)
    if not found:
        fail(f"{legible_name(fleet)}: there is no device in any pool", EXIT_INVALID)
    return sorted(found.values(), key=lambda kind: -kind.devices)


# ---- costs


def _costs(path: Path) -> Costs:
    try:
        text = path.read_bytes()[: yamldoc.TEXT_MAX * 4 + 1].decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            [Fault(legible_name(path), 1, "-", "not a text file in UTF-8")]
        ) from None
    documents, problems = yamldoc.parse(text)
    faults = [(each.line, each.path, each.reason) for each in problems]
    if len(documents) != 1:
        faults.append((1, (), f"must have one document, not {len(documents)}"))
    schema = load_schema("costs")
    for document in documents:
        for at, reason in schema_faults(schema, document.value):
            faults.append((document.line(at), at, reason))
    if faults:
        file = legible_name(path)
        raise InvalidInput(
            Fault(file, line, yamldoc.dotted(at) or "-", reason) for line, at, reason in faults
        )
    return Costs(**documents[0].value)


# ---- what is shown


@contextlib.contextmanager
def _progress(names: Sequence[str], jobs: int) -> Iterator[Callable[[str, int], None]]:
    """A bar for each scheduler on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda scheduler, done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=1 / COUNTED_S)
    with bar:
        tasks = {name: bar.add_task(name, total=jobs) for name in names}
        yield lambda scheduler, done: bar.update(tasks[scheduler], completed=done)


def _print(results: dict[str, Result]) -> None:
    rows: list[tuple[str, ...]] = [HEAD]
    for name, result in results.items():
        found = result.json()
        jct, waiting = found["jct"], found["queueing"]
        times = (jct["mean"], jct["p50"], jct["p99"], waiting["mean"], found["makespan"])
        rows.append(
            (
                name,
                *(f"{seconds:.1f} s" for seconds in times),
                f"{found['utilisation']:.1%}",
                str(found["disturbances"]),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        emit("  ".join([first.ljust(widths[0]), *cells]))

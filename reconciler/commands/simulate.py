"""The command simulate: a trace of jobs on a fleet that only its files describe."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource
from msgspec import Struct, structs

from rankfold.legible import name as legible_name
from rankfold.plugins import DECISION_S, Plugin, installed
from rankfold.plural import count
from rankfold.policy.vocabulary import Decision, Fleet, Job, Rules
from rankfold.policy.windows import Windows
from rankfold.reconciler.commands.common import EXIT_INVALID, fail, output_option, show
from rankfold.reconciler.commands.forecasting import show_effects
from rankfold.reconciler.model.desired import Desired
from rankfold.reconciler.model.rules import rules_of
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.report.lines import emit, say
from rankfold.reconciler.source import spec, yamldoc
from rankfold.reconciler.source.invalid import Fault, InvalidInput
from rankfold.reconciler.source.schemas import load_schema, schema_faults
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import NotDone
from rankfold.simulator.formats import EASYSCALE, FORMATS, GAVEL, POLLUX, form_of, read
from rankfold.simulator.plot import By, draw
from rankfold.simulator.pollux import NotMeasured, read_workload
from rankfold.simulator.published import PUBLISHED
from rankfold.simulator.result import Action, Result, Span
from rankfold.simulator.runs import BUILT_IN, TICK_S, Events, Policies, Ticks, Trace
from rankfold.simulator.table import BadTrace, open_file
from rankfold.simulator.ticks import Nodes
from rankfold.simulator.trace import Kind
from rankfold.simulator.whole import RULES, Decide

FORMAT_VERSION = 1
FAILURES_MAX = 10  # of a policy in a row
COUNTED_S = 0.2  # between two updates of the progress bar
HEAD = ("SCHEDULER", "JCT MEAN", "P50", "P99", "WAIT MEAN", "MAKESPAN", "USED", "DISTURBED")


class Seconds(click.FloatRange):
    """A range that NaN is not in."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        number = super().convert(value, param, context)
        if math.isnan(number):
            self.fail(f"it must be from {self.min:g} to {self.max:g} seconds, not {value}", param)
        return float(number)


@click.command("simulate")
@click.argument(
    "trace", required=False, type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@click.option(
    "-f",
    "--file",
    "place",
    type=click.Path(path_type=Path),
    help="Jobs, file or folder; instead of TRACE, with --from-state.",
)
@click.option(
    "--from-state", is_flag=True, help="Add the jobs of -f to the fleet of this state directory."
)
@click.option("--fleet", type=click.Path(path_type=Path), help="Directory of its pools.")
@click.option("--nodes", type=click.IntRange(1, 100_000), help="Instead of --fleet.")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), help="With --nodes.")
@click.option(
    "--devices",
    metavar="TYPE=N,...",
    help="Instead of --fleet: numbers of devices of several types.",
)
@click.option(
    "--scheduler", default="fifo", show_default=True, help=", ".join((*BUILT_IN, *PUBLISHED))
)
@click.option("--costs", "costs_file", type=click.Path(path_type=Path), help="YAML; else none.")
@click.option(
    "--format", "form", type=click.Choice([*FORMATS, GAVEL, POLLUX]), help="Default: by header."
)
@click.option(
    "--applications",
    type=click.Path(path_type=Path),
    help="Folder of measurements; of formats gavel and pollux.",
)
@click.option(
    "--growth-delay",
    type=Seconds(0, 1e6),
    help="Seconds for which an elastic job has its devices before it grows; default: 0.",
)
@click.option(
    "--mix-types",
    is_flag=True,
    help="Jobs may use several types of devices at once; of format easyscale, with --devices.",
)
@click.option("--tick", type=Seconds(1, 86_400), help="Seconds; of format pollux.")
@click.option(
    "--deadline",
    type=Seconds(0.01, 3600),
    default=DECISION_S,
    show_default=True,
    help="Seconds for a decision of a policy that is not built in.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Draw who had how many devices over time.",
)
@click.option(
    "--plot-by",
    type=click.Choice(get_args(By)),
    help="Draw one area for each of these; default: jobs if there are few, otherwise tiers.",
)
@click.option(
    "--actions",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Write every change of a job's devices, with its cost and its reason.",
)
@click.option(
    "--grants",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Write only how many devices each job had, and when.",
)
@output_option()
@click.pass_context
def simulate(
    context: click.Context,
    trace: Path | None,
    place: Path | None,
    from_state: bool,
    fleet: Path | None,
    nodes: int | None,
    gpus_per_node: int | None,
    devices: str | None,
    scheduler: str,
    costs_file: Path | None,
    form: str | None,
    applications: Path | None,
    growth_delay: float | None,
    mix_types: bool,
    tick: float | None,
    deadline: float,
    plot: Path | None,
    plot_by: By | None,
    actions: Path | None,
    grants: Path | None,
    output: str,
) -> int:
    """Run a trace of jobs in simulated time, and report how long the jobs take.

    The schedulers are those of the planner. Nothing is started, and no fleet is used. TRACE is a
    CSV file, compressed with gzip or not; docs/simulate.md describes it. Several schedulers are
    separated by commas; a policy of an installed package is one, too. Exit code 65 and one line
    for each fault, as file:line:column: name: reason, if a file is refused.

    With `-f FILE --from-state`: print which devices new jobs would get now, when those that wait
    would start, and whom they disturb. Changes nothing.
    """
    if from_state or place is not None:
        return _from_state(context, place)
    if trace is None:
        raise click.UsageError("give a TRACE, or -f FILE --from-state")
    names = _schedulers(scheduler)
    _check_files(plot, plot_by, {"--actions": actions, "--grants": grants}, (trace, costs_file))
    there = There(fleet, nodes, gpus_per_node, _devices(devices) if devices else None)
    given = Given(trace, form, there, applications, growth_delay, tick, mix_types)
    costs = _costs(costs_file) if costs_file else Costs()
    with contextlib.ExitStack() as stack:
        plugins = {
            name: stack.enter_context(Plugin(name, deadline))
            for name in names
            if name not in (*BUILT_IN, *PUBLISHED)
        }
        policies = {name: _deciding(plugin) for name, plugin in plugins.items()}
        try:
            simulated = _simulated(given, costs, policies)
            _check_schedulers(names, simulated)
            with _progress(names, simulated.jobs) as progress:
                results = {name: simulated.run(name, partial(progress, name)) for name in names}
        except BadTrace as bad:
            for fault in bad.faults:
                say(fault)
            return EXIT_INVALID
        except NotMeasured as missing:
            fail(f"{legible_name(trace)}: not measured: {missing}", EXIT_INVALID)
        except NotDone as waits:
            fail(f"job {waits} waits, and the scheduler gives it no devices")
    for name, plugin in plugins.items():
        results[name].failures = len(plugin.failures)
    if plot is not None:
        _write("--plot", plot, draw(results, plot_by))
    _write_tables(results, actions, grants)
    _print(results, _report(trace, simulated, costs, results) if output == "json" else None)
    return 0


class There(Struct, frozen=True):
    """The options that give the devices."""

    fleet: Path | None
    nodes: int | None
    gpus_per_node: int | None
    devices: Mapping[str, int] | None  # type → number


class Given(Struct, frozen=True):
    """The options that give the jobs, and the devices for them."""

    trace: Path
    form: str | None
    there: There
    applications: Path | None
    growth_delay: float | None
    tick: float | None
    mix_types: bool


def _simulated(given: Given, costs: Costs, policies: Policies) -> Trace:
    form = given.form or form_of(given.trace)
    folder = given.applications
    if folder is None and form in (GAVEL, POLLUX):
        raise click.UsageError(f"a trace of format {form} needs --applications DIR")
    if folder is not None and form not in (GAVEL, POLLUX):
        raise click.UsageError("--applications is only for traces of formats gavel and pollux")
    if given.mix_types and (form != EASYSCALE or given.there.devices is None):
        raise click.UsageError("--mix-types is for traces of format easyscale, with --devices")
    if form == POLLUX:
        assert folder is not None
        if given.growth_delay is not None:
            raise click.UsageError("--growth-delay is not for traces of format pollux")
        nodes = _nodes(given.there)
        workload = read_workload(given.trace, folder, nodes.devices)
        return Ticks(workload, nodes, costs, policies, given.tick or TICK_S)
    if given.tick is not None:
        raise click.UsageError("--tick is only for traces of format pollux")
    kinds, rules, windows = _kinds(given.there)
    rules = structs.replace(rules, growth_delay=given.growth_delay or 0.0)
    jobs = read(given.trace, kinds, form, folder, given.mix_types)
    return Events(jobs, kinds, costs, policies, rules, windows)


def _check_schedulers(names: Sequence[str], simulated: Trace) -> None:
    """Refuse a scheduler that cannot run the trace."""
    for name in names:
        if reason := simulated.objection(name):
            raise click.BadParameter(reason, param_hint="--scheduler")


def _report(trace: Path, simulated: Trace, costs: Costs, results: Mapping[str, Result]) -> Json:
    """As in schemas/simulation.schema.json."""
    return {
        "format_version": FORMAT_VERSION,
        "trace": legible_name(trace),
        "jobs": simulated.jobs,
        "devices": simulated.devices,
        "costs": structs.asdict(costs),
        "schedulers": {name: result.json() for name, result in results.items()},
    }


def _from_state(context: click.Context, place: Path | None) -> int:
    """Add jobs to the present fleet."""
    if place is None or not context.params["from_state"]:
        raise click.UsageError("-f FILE and --from-state need each other")
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if given and name not in ("place", "from_state", "output"):
            shown = max(option.opts, key=len) if name != "trace" else "TRACE"
            raise click.UsageError(
                f"{shown} is not for --from-state, which uses the fleet as it is"
            )
    return show_effects(context.obj, place, context.params["output"])


def _schedulers(given: str) -> list[str]:
    names = list(dict.fromkeys(given.split(",")))
    for name in names:
        if name not in (*BUILT_IN, *PUBLISHED) and name not in installed():
            known = ", ".join([*BUILT_IN, *PUBLISHED, *installed()])
            raise click.BadParameter(f"{name!r} is not one of {known}")
    return names


def _deciding(plugin: Plugin) -> Decide:
    """The decisions of a policy. Its failures are reported; the command ends after some in a
    row."""
    row = 0

    def decide(fleet: Fleet, jobs: list[Job], now: float) -> Mapping[str, Decision]:
        nonlocal row
        before = len(plugin.failures)
        decisions = plugin.decide(fleet, jobs, RULES, now)
        row = row + 1 if len(plugin.failures) > before else 0
        for failure in plugin.failures[before:]:
            say(f"at {now:g} s: {failure}")
        if row == FAILURES_MAX:
            fail(f"policy {plugin.name} failed {row} times in a row, for the reasons above")
        return decisions

    return decide


# ---- the fleet


def _devices(given: str) -> dict[str, int]:
    """Type → number, as --devices gives them."""
    found: dict[str, int] = {}
    for each in given.split(","):
        match = re.fullmatch(r"([a-z0-9][-a-z0-9]{0,39})=([0-9]{1,6})", each)
        if match is None or not int(match[2]) or match[1] in found:
            reason = "is not TYPE=N with a different type and a number from 1 to 999999"
            raise click.BadParameter(f"{each!r} {reason}", param_hint="--devices")
        found[match[1]] = int(match[2])
    return found


def _nodes(there: There) -> Nodes:
    others = there.fleet is not None or there.devices is not None
    if others or there.nodes is None or there.gpus_per_node is None:
        raise click.UsageError("a trace of format pollux needs --nodes N and --gpus-per-node M")
    return Nodes(there.nodes, there.gpus_per_node)


def _kinds(there: There) -> tuple[list[Kind], Rules, Windows]:
    """The devices, the type with the most first, and the rules of the fleet's Policy, with its
    windows for defragmentation."""
    numbered = there.nodes is not None or there.gpus_per_node is not None
    ways = [there.fleet is not None, numbered, there.devices is not None]
    whole = not numbered or (there.nodes is not None and there.gpus_per_node is not None)
    if sum(ways) != 1 or not whole:
        raise click.UsageError(
            "give one of --fleet DIR, --nodes N with --gpus-per-node M, and --devices TYPE=N,…"
        )
    if there.devices is not None:
        kinds = [Kind(name, number) for name, number in there.devices.items()]
        return sorted(kinds, key=lambda kind: -kind.devices), RULES, ()
    if there.nodes is not None and there.gpus_per_node is not None:
        places = (("", f"node-{at}", there.gpus_per_node) for at in range(there.nodes))
        devices = there.nodes * there.gpus_per_node
        return [Kind("gpu", devices, places=tuple(places))], RULES, ()
    fleet = there.fleet
    assert fleet is not None
    loaded = spec.load_dir(fleet)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    desired = loaded.check().desired
    if desired.jobs:
        say(f"not simulated: {count(len(desired.jobs), 'job')} of {legible_name(fleet)}")
    rules = rules_of(desired, RULES.ranks_on_a_device)
    return _kinds_of(desired, fleet), rules, desired.defragmentation.windows


def _kinds_of(desired: Desired, fleet: Path) -> list[Kind]:
    kinds: dict[str, Kind] = {}
    places: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for device in desired.devices().values():
        kind = kinds.get(device.type, Kind(device.type, 0, device.speed))
        if kind.speed != device.speed:
            fail(
                f"{legible_name(fleet)}: devices of type {device.type} have different speeds, "
                "which is not simulated",
                EXIT_INVALID,
            )
        places[device.type][device.domain, device.node] += 1
        kinds[device.type] = structs.replace(kind, devices=kind.devices + 1)
    for name, kind in kinds.items():
        those = tuple((*place, number) for place, number in places[name].items())
        kinds[name] = structs.replace(kind, places=those)
    if not kinds:
        fail(f"{legible_name(fleet)}: there is no device in any pool", EXIT_INVALID)
    return sorted(kinds.values(), key=lambda kind: -kind.devices)


# ---- costs


def _costs(path: Path) -> Costs:
    try:
        with open_file(path) as stream:
            text = stream.read(yamldoc.TEXT_MAX * 4 + 1).decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            [Fault(legible_name(path), 1, "-", "not a text file in UTF-8")]
        ) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise InvalidInput([Fault(legible_name(path), 1, "-", reason)]) from None
    documents, problems = yamldoc.parse(text)
    faults = [(each.line, each.path, each.reason) for each in problems]
    if len(documents) != 1:
        faults.append((1, (), f"must have one document, not {len(documents)}"))
    schema = load_schema("costs")
    for document in documents:
        for path_in, reason in schema_faults(schema, document.value):
            faults.append((document.line(path_in), path_in, reason))
    if faults:
        file = legible_name(path)
        raise InvalidInput(
            Fault(file, line, yamldoc.dotted(path_in) or "-", reason)
            for line, path_in, reason in faults
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


def _check_files(
    plot: Path | None,
    by: By | None,
    tables: Mapping[str, Path | None],
    inputs: Sequence[Path | None],
) -> None:
    """tables: option → the file that it writes; inputs: files that are read."""
    if plot is None and by is not None:
        raise click.UsageError("--plot-by needs --plot FILE.svg")
    _check("--plot", plot, ".svg")
    for option, path in tables.items():
        _check(option, path, ".csv")
        _keep_inputs(option, path, inputs)
    written = [path.resolve() for path in tables.values() if path is not None]
    if len(written) != len(set(written)):
        raise click.UsageError(f"{' and '.join(tables)}: give them different names")


def _keep_inputs(option: str, path: Path | None, inputs: Iterable[Path | None]) -> None:
    """Refuse to overwrite a file that is read."""
    if path is None or not path.exists():
        return
    if any(each is not None and each.exists() and path.samefile(each) for each in inputs):
        shown = legible_name(path)
        raise click.UsageError(f"{option} {shown}: it would be overwritten; give another name")


def _check(option: str, path: Path | None, suffix: str) -> None:
    """Refuse a file that cannot be written, before the simulation takes its time."""
    if path is None:
        return
    shown, folder = legible_name(path), path.parent
    if path.suffix != suffix:
        form = suffix[1:].upper()
        raise click.UsageError(f"{option} {shown}: the file is {form}; name it {shown}{suffix}")
    if path.exists() and not path.is_file():
        raise click.UsageError(f"{option} {shown}: it exists and is not a file; give another name")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = "cannot be written to" if folder.is_dir() else "is not a folder"
        raise click.UsageError(f"{option} {shown}: {legible_name(folder)} {reason}")


def _write(option: str, path: Path, text: str) -> None:
    """Write a whole file in place of an earlier one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        fail(f"{option} {legible_name(path)}: {error.strerror}")


def _write_tables(results: Mapping[str, Result], actions: Path | None, grants: Path | None) -> None:
    if actions is not None:
        _write("--actions", actions, _actions(results))
    if grants is not None:
        _write("--grants", grants, _grants(results))


def _actions(results: Mapping[str, Result]) -> str:
    """CSV of all actions."""
    return _table(Action, {name: result.actions for name, result in results.items()})


def _grants(results: Mapping[str, Result]) -> str:
    """CSV of who had how many devices when, in the order of the beginnings."""
    first = attrgetter("start", "job")
    return _table(Span, {name: sorted(result.spans, key=first) for name, result in results.items()})


def _table(kind: type[Struct], results: Mapping[str, Sequence[Struct]]) -> str:
    """CSV of records of a kind, with the scheduler of each."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["scheduler", *kind.__struct_fields__])
    for scheduler, records in results.items():
        rows.writerows([scheduler, *structs.astuple(each)] for each in records)
    return text.getvalue()


def _print(results: Mapping[str, Result], report: Json | None) -> None:
    """Print the report, or a line for each scheduler."""
    if report is not None:
        show(report)
        return
    rows: list[tuple[str, ...]] = [HEAD]
    for name, result in results.items():
        summary = result.json()
        jct, waiting = summary["jct"], summary["queueing"]
        times = (jct["mean"], jct["p50"], jct["p99"], waiting["mean"], summary["makespan"])
        rows.append(
            (
                name,
                *(f"{seconds:.1f} s" for seconds in times),
                f"{summary['utilisation']:.1%}",
                str(summary["disturbances"]),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        emit("  ".join([first.ljust(widths[0]), *cells]))

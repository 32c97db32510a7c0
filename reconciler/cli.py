"""The command `rankfold`. Data to stdout, the rest to stderr. Exit codes, which are a promise:
0 done, 1 error, 2 changes pending, 64 wrong usage, 65 invalid input files."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from rankfold import __version__, control, inspect, paths
from rankfold.messages import DEVICES_MAX, RANKS_MAX
from rankfold.reconciler import doctor, plan, report, revision, spec, watch
from rankfold.reconciler.client import NoReconciler, Reconciler, reconciler_runs
from rankfold.reconciler.console import blocks_of, event_line, say, tables
from rankfold.reconciler.follow import Follower
from rankfold.reconciler.git import is_elsewhere
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model import Device, Job, Json, Pool, count, to_json
from rankfold.reconciler.rows import desired_of
from rankfold.reconciler.store import Store, StoreError, database
from rankfold.reconciler.watching import Watching
from rankfold.reconciler.yamldoc import unusable

EXIT_ERROR, EXIT_CHANGES, EXIT_USAGE, EXIT_INVALID = 1, 2, 64, 65
POLL_S = 0.1
QUIET_S = 3.0  # before `run` says why its job has not started


def main() -> NoReturn:
    """Entry point: click's errors become our exit codes."""
    try:
        result = cli.main(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.UsageError as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        fail(error.format_message())
    except spec.InvalidInput as error:
        for fault in error.faults:
            say(str(fault))
        sys.exit(EXIT_INVALID)
    except (control.ControlError, NoReconciler, StoreError, sqlite3.Error) as error:
        fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_ERROR)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def fail(text: str, code: int = EXIT_ERROR) -> NoReturn:
    say(f"rankfold: {text}")
    sys.exit(code)


def show(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def output_option(*more: str) -> Callable[[Any], Any]:
    choices = click.Choice(["text", "json", *more])
    return click.option("-o", "--output", type=choices, default="text", help="Form of the output.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rankfold")
@click.option(
    "--state", type=click.Path(file_okay=False, path_type=Path), default=None,
    help="Folder of the fleet's state. Default: $RANKFOLD_STATE, else $XDG_STATE_HOME/rankfold.",
)  # fmt: skip
@click.pass_context
def cli(context: click.Context, state: Path | None) -> None:
    """Fold the ranks of training jobs onto however many GPUs there are.

    Data go to stdout, the rest to stderr. Exit codes: 0 done, 1 error, 2 changes pending
    (`plan --detailed-exitcode`), 64 wrong usage, 65 invalid input files.
    """
    context.obj = (state or paths.default_state()).absolute()


# ---- desired state -------------------------------------------------------------------------


@cli.command()
@click.argument(
    "places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR..."
)
@output_option()
def validate(places: tuple[Path, ...], output: str) -> int:
    """Check YAML files, without looking at the fleet.

    Exit code 65 and one line for each fault, as file:line: field: reason.
    """
    loaded = spec.load_dir(*places)
    if output == "json":
        faults = [
            {"file": f.file, "line": f.line, "field": f.field, "reason": f.reason}
            for f in loaded.faults
        ]
        show({"valid": not faults, "faults": faults, "warnings": [str(w) for w in loaded.warnings]})
        return EXIT_INVALID if faults else 0
    warn(loaded)
    loaded.check()
    jobs, pools = len(loaded.desired.jobs), len(loaded.desired.pools)
    click.echo(f"valid: {count(jobs, 'job')}, {count(pools, 'pool')}")
    return 0


def warn(loaded: spec.Loaded) -> None:
    for warning in loaded.warnings:
        say(f"warning: {warning}")


@cli.command("plan")
@click.option(
    "-f",
    "--file",
    "place",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory or file.",
)
@click.option("--detailed-exitcode", is_flag=True, help="2 if something would change.")
@output_option("markdown")
@click.pass_obj
def plan_command(state: Path, place: Path, detailed_exitcode: bool, output: str) -> int:
    """Say what `apply` would change, and which of it disturbs a running job.

    Changes nothing. With --detailed-exitcode: 0 nothing would change, 2 something would.
    """
    loaded = spec.load_dir(place)
    warn(loaded)
    loaded.check()
    snap = report.snapshot(state)
    hand_made = frozenset((o.kind, o.name) for o in snap.objects if o.source is None)
    live_by_hand = frozenset(
        name for kind, name in hand_made
        if kind == "Job" and (name not in snap.records or snap.records[name].step != "ended")
    )  # fmt: skip
    faults = revision.revision_faults(loaded, snap.records, live_by_hand)
    faults += revision.emptied_files(loaded, snap.objects)
    if faults:
        raise spec.InvalidInput(faults)
    now = desired_of(snap.objects)
    overridden = {
        o.name: o.spec for o in snap.objects if isinstance(o.spec, Job) and o.override
    }  # fmt: skip
    then = revision.merged(now, loaded, hand_made, snap.records, overridden)
    found = revision.differences(now, then, snap.records)
    planned = plan.plan(then, snap.records, plan.assume_fleet(then, snap.observed), time.time())
    data = report.plan_json(found, planned, watch.directory_revision(loaded).id)
    if output == "json":
        show(data)
    else:
        for line in report.plan_lines(data, output == "markdown"):
            click.echo(line)
    return EXIT_CHANGES if detailed_exitcode and found else 0


@cli.command()
@click.option(
    "-f",
    "--file",
    "place",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory or file.",
)
@click.option("--wait", "wait_", is_flag=True, help="Return when everything is as desired.")
@click.option("--timeout", default="5m", show_default=True, help="How long --wait waits.")
@output_option()
@click.pass_obj
def apply(state: Path, place: Path, wait_: bool, timeout: str, output: str) -> int:
    """Make the fleet as the files say, once.

    The files become the fleet's desired state as a whole: a job that they no longer name is
    suspended. With --wait: exit code 1 if a job failed or the time was over.
    """
    limit = duration(timeout)
    loaded = spec.load_dir(place)
    warn(loaded)
    loaded.check()
    with Reconciler(state) as reconciler:
        reply = reconciler.ask("attach", source={"dir": str(place.resolve())})
        if reply["faults"]:
            for fault in reply["faults"]:
                say(fault)
            return EXIT_INVALID
        code = _wait_converged(reconciler, set(loaded.desired.jobs), limit) if wait_ else 0
    if output == "json":
        show(report.status(report.snapshot(state)))
    else:
        click.echo(f"applied {reply['revision']}" + ("" if code == 0 else ", but not as desired"))
    return code


def _wait_converged(reconciler: Reconciler, names: set[str], limit: float) -> int:
    """Until the jobs of these names are as desired and all devices are up; 1 if they are not."""
    deadline = time.monotonic() + limit
    told: set[str] = set()
    while True:
        now = reconciler.ask("state")
        for device, words in now["devices_failing"].items():
            if device not in told:
                say(f"{device} does not start: {words}")
                told.add(device)
        jobs = {name: job for name, job in now["jobs"].items() if name in names}
        failed = [name for name, job in jobs.items() if job["phase"] == "Failed"]
        for name in failed:
            say(f"Job/{name} failed: {jobs[name]['message']}")
        stalled = {name: job["stalled"] for name, job in jobs.items() if job["stalled"]}
        for name, why in stalled.items():
            say(f"Job/{name} is stalled: {why}")
        if failed or stalled:
            return EXIT_ERROR
        open_ = {name: job for name, job in jobs.items() if not job["converged"]}
        if not open_ and now["fleet_ready"]:
            return 0
        if time.monotonic() > deadline:
            for name, job in open_.items():
                say(f"Job/{name} is not as desired: {'; '.join(job['waiting']) or job['step']}")
            if not now["fleet_ready"]:
                say("not every device is up: see `rankfold status`")
            return EXIT_ERROR
        time.sleep(POLL_S)


def duration(text: str) -> float:
    """Seconds of ``90``, ``30s``, ``5m`` or ``2h``."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        return float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time such as 30s, 5m or 2h") from None


@cli.command("watch")
@click.argument("place", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@click.option("--git", "repo", metavar="REPO", help="Follow a branch of this repository instead.")
@click.option("--branch", default="main", show_default=True, help="Branch to follow.")
@click.option("--path", "inside", default="", help="Folder in the repository; default: all of it.")
@output_option()
@click.pass_obj
def watch_command(
    state: Path, place: Path | None, repo: str | None, branch: str, inside: str, output: str
) -> int:
    """Keep the fleet as a directory or a git branch says.

    Follows the files of DIR as they are saved, or the commits of a branch. Prints what happens; on
    a terminal, jobs and devices are shown below it. What cannot be read or written for a while is
    reported once, and waited for. Ctrl-C ends the watching; jobs go on.
    """
    if (place is None) == (repo is None):
        raise click.UsageError("give either a directory, or --git REPO")
    source: Json
    if repo is not None:
        there = repo if is_elsewhere(repo) else str(Path(repo).expanduser().resolve())
        source = {"git": there, "branch": branch, "path": inside}
    else:
        assert place is not None
        source = {"dir": str(place.resolve())}
    with Reconciler(state) as reconciler, terminating():
        try:
            Watching(state, reconciler, source, output).run()
        except KeyboardInterrupt:
            say("no longer watching; jobs go on")
            return 0


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM interrupts like Ctrl-C while this lasts."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


# ---- looking -------------------------------------------------------------------------------------


@cli.command()
@output_option()
@click.pass_obj
def status(state: Path, output: str) -> int:
    """Show jobs and devices as they are now.

    Exit code 0 whatever state they are in; 1 if the state cannot be read.
    """
    data = report.status(report.snapshot(state))
    if output == "json":
        show(data)
        return 0
    tables(blocks_of(data))
    if data["revision"]:
        click.echo(f"revision {data['revision']} of {data['source']['name']}")
    for condition in data["source"]["conditions"]:
        if condition["reason"] == "Unreachable":
            since = report.clock(condition["since"])
            say(f"since {since} the source cannot be read: {condition['message']}")
        elif condition["status"] == "False":
            say(
                f"the last revision was refused, the fleet stays as it was:\n{condition['message']}"
            )
    warn_of_reconciler(data["reconciler"])
    return 0


def warn_of_reconciler(reconciler: Json) -> None:
    """One line if none runs and one is needed."""
    if reconciler["message"]:
        say(f"rankfold: {reconciler['message']}")


@cli.command()
@click.argument("name")
@output_option()
@click.pass_obj
def describe(state: Path, name: str, output: str) -> int:
    """Show everything about one job: conditions, ranks, changes, events."""
    snap = report.snapshot(state)
    job = next((j for j in report.status(snap)["jobs"] if j["name"] == name), None)
    if job is None:
        fail(f"there is no job {name!r}")
    with Store(state, readonly=True) as store:
        events = [vars(e) for e in store.events(name)]
        reconciler = snap.reconciler_status()
        actions = store.actions(name)
        job = {**job, "events": events, "actions": actions, "reconciler": reconciler}
    warn_of_reconciler(reconciler)
    if output == "json":
        show(job)
        return 0
    for line in report.describe_lines(job):
        click.echo(line)
    return 0


@cli.command()
@click.argument("name", required=False)
@output_option()
@click.pass_obj
def events(state: Path, name: str | None, output: str) -> int:
    """Print what happened, oldest first; with NAME, to one job or device."""
    if not database(state).exists():
        if output == "json":
            show([])
        return 0
    with Store(state, readonly=True) as store:
        found = store.events(name)
        known = name is None or found or store.object("Job", name)
        runs, followed = reconciler_runs(Layout(state)), store.get("watching")
        now = report.reconciler_status(runs, store.objects(), store.records(), followed)
    if not known:
        fail(f"nothing is known of {name!r}")
    warn_of_reconciler(now)
    if output == "json":
        show([vars(e) for e in found])
        return 0
    for each in found:
        click.echo(event_line(each))
    return 0


@cli.command("inspect")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--consumed", default=20, show_default=True, type=click.IntRange(min=0),
    help="How many of the requests that the proxy has taken.",
)  # fmt: skip
def inspect_command(file: Path, consumed: int) -> int:
    """Print a rank's channel, or the saved state in its image, as text.

    FILE is a copy of one, or the memfd itself: /proc/PID/fd/N of the rank's launcher, where
    `ls -l` says /memfd:rankfold and /memfd:rankfold-image-RANK. Exit code 1 if it is damaged.
    """
    found = inspect.Found()
    try:
        for line in inspect.lines(file, consumed, found):
            click.echo(line)
    except inspect.NotOurs as error:
        fail(str(error))
    return EXIT_ERROR if found.damaged else 0


@cli.command()
@click.argument("name")
@click.option("--rank", type=int, default=None, help="Of one rank only.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
@click.pass_obj
def logs(state: Path, name: str, rank: int | None, follow: bool) -> int:
    """Print what a job's ranks wrote: their stdout to stdout, their stderr to stderr.

    With several ranks, every line begins with its rank.
    """
    snap = report.snapshot(state)
    job = next((o for o in snap.objects if o.kind == "Job" and o.name == name), None)
    if job is None or not isinstance(job.spec, Job):
        fail(f"there is no job {name!r}")
    ranks = range(job.spec.world_size) if rank is None else [rank]
    if rank is not None and not 0 <= rank < job.spec.world_size:
        fail(f"{name} has ranks 0 to {job.spec.world_size - 1}")
    follower = Follower(Layout(state).logs(name), ranks, prefix=len(ranks) > 1)
    with terminating():
        try:
            while True:
                # Look first: what is written before the end is printed after we saw the end.
                over = not follow or job_over(state, name)
                follower.pump()
                if over:
                    follower.finish()
                    return 0
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            return 130


def job_over(state: Path, name: str) -> bool:
    with Store(state, readonly=True) as store:
        record = store.record(name)
    return record is not None and record.step == "ended"


@cli.command("doctor")
@output_option()
@click.pass_obj
def doctor_command(state: Path, output: str) -> int:
    """Say what is missing on this machine, and what works without it.

    Exit code 1 if something is missing that rankfold cannot do without.
    """
    findings = doctor.examine(state)
    if output == "json":
        show([vars(f) for f in findings])
    else:
        for f in findings:
            click.echo(
                f"{'ok  ' if f.ok else 'MISS' if f.needed else 'note'}  {f.what}: {f.detail}"
            )
    return EXIT_ERROR if any(f.needed and not f.ok for f in findings) else 0


# ---- acting on one job -----------------------------------------------------------------------


def by_hand(state: Path, name: str, override: bool, **fields: Any) -> int:
    with Reconciler(state) as reconciler:
        reconciler.ask("override", name=name, fields=fields, force=override)
    return 0


OVERRIDE = click.option(
    "--override",
    is_flag=True,
    help="Even though a file describes the job; lasts until it changes there.",
)


@cli.command()
@click.argument("name")
@click.option("--gpus", type=int, required=True, help="Number of devices.")
@OVERRIDE
@click.pass_obj
def scale(state: Path, name: str, gpus: int, override: bool) -> int:
    """Change how many devices a job has."""
    return by_hand(state, name, override, gpus=gpus)


@cli.command()
@click.argument("name")
@OVERRIDE
@click.pass_obj
def suspend(state: Path, name: str, override: bool) -> int:
    """Free a job's devices; it rests in memory until resumed."""
    return by_hand(state, name, override, suspend=True)


@cli.command()
@click.argument("name")
@OVERRIDE
@click.pass_obj
def resume(state: Path, name: str, override: bool) -> int:
    """Let a suspended job go on."""
    return by_hand(state, name, override, suspend=False)


@cli.command()
@click.argument("name")
@OVERRIDE
@click.pass_obj
def cancel(state: Path, name: str, override: bool) -> int:
    """End a job. It fails with reason Cancelled."""
    return by_hand(state, name, override, cancelled=True)


@cli.command()
@click.argument("name")
def checkpoint(name: str) -> int:
    """Save a job to disk. Not built yet: refused with exit code 1."""
    fail(
        "checkpoint is not built yet; `rankfold suspend` frees the devices, the job rests in memory"
    )


@cli.command()
@click.option("--cancel", "cancel_", is_flag=True, help="Cancel every job first.")
@click.pass_obj
def stop(state: Path, cancel_: bool) -> int:
    """End the background reconciler and idle proxies. Jobs go on, and are found again."""
    with Reconciler(state) as reconciler:
        try:
            now = reconciler.ask("state", start=cancel_)
        except NoReconciler as error:
            say(str(error))
            return 0
        if cancel_:
            for name, job in now["jobs"].items():
                if not job["phase"]:
                    reconciler.ask("override", name=name, fields={"cancelled": True}, force=True)
            told: set[str] = set()
            while live := {
                name: job for name, job in reconciler.ask("state")["jobs"].items()
                if not job["phase"]
            }:  # fmt: skip
                for why in {w for job in live.values() for w in job["silent"]} - told:
                    say(f"waiting: {why}")
                    told.add(why)
                time.sleep(POLL_S)
        done = reconciler.ask("stop", start=False)
    if done["jobs"]:
        say(f"these jobs go on without a reconciler: {', '.join(done['jobs'])}")
    for device, why in done["left"].items():
        say(f"the proxy of {device} was told to end, and has not answered: {why}")
    return 0


# ---- run -------------------------------------------------------------------------------------


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--world-size", type=click.IntRange(1, RANKS_MAX), required=True, help="Number of ranks."
)
@click.option(
    "--gpus", type=click.IntRange(1, DEVICES_MAX), default=None,
    help="Devices; default: one for each rank.",
)
@click.option(
    "--device", "kind", type=click.Choice(["soft", "nvidia"]), default=None, help="Kind of device."
)
@click.option(
    "--memory", default="1GiB", show_default=True, help="Of each device of a temporary fleet."
)
@click.option("--name", default=None, help="Name of the job; default: the program's.")
@click.option(
    "--determinism", type=click.Choice(["D0", "D1"]), default="D1", show_default=True,
    help="D1: the same bits on any number of devices. D0: on the same devices.",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@click.pass_obj
def run(
    state: Path, world_size: int, gpus: int | None, kind: str | None, memory: str,
    name: str | None, determinism: str, command: tuple[str, ...],
) -> int:  # fmt: skip
    """Run one job in the foreground; the exit status is the job's.

    The job uses the fleet's devices. Where no pool has been applied, as many as --gpus says are
    made for it, software GPUs unless --device says otherwise, and removed after it. Its ranks have
    the environment of this command. Ctrl-C cancels the job.
    """
    gpus = min(world_size, DEVICES_MAX) if gpus is None else gpus
    if gpus > world_size:
        raise click.UsageError(
            f"--gpus {gpus} is more than --world-size {world_size}: a rank uses one device"
        )
    for problem in spec.command_faults(list(command)):
        raise click.UsageError(problem)
    size = spec.device_memory(memory)
    if size is None:
        raise click.UsageError(f"--memory {memory} is no size such as 512MiB, from 4MiB to 512GiB")
    if kind == "nvidia" and (missing := nvidia_missing()):
        raise click.UsageError(f"--device nvidia: {missing}")
    snap = report.snapshot(state)
    name = name or unused_name(snap, command[0])
    if spec.bad_name(name):
        raise click.UsageError(f"--name {name}: {spec.bad_name(name)}")
    pool = None if permanent_pools(snap) else temporary_pool(name, kind or "soft", gpus, size)
    job = Job(
        name, command, os.getcwd(), world_size, gpus,
        env=own_environment(), env_whole=True, device_types=(kind,) if kind else (),
        determinism=determinism,
    )  # fmt: skip
    check_capacity(snap, job, pool)
    with Reconciler(state) as reconciler, terminating():
        reconciler.ask(
            "run", job=to_json(job), pool=to_json(pool) if pool else None, token=uuid.uuid4().hex
        )
        return _follow_run(state, reconciler, job)


def own_environment() -> tuple[tuple[str, str], ...]:
    """For the ranks. What steers rankfold itself is the background reconciler's."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("RANKFOLD_")}
    for name in [k for k, v in ours.items() if unusable(k) or unusable(v)]:
        say(f"rankfold: {name!a} is not UTF-8: the ranks do not get it")
        del ours[name]
    return tuple(sorted(ours.items()))


def _follow_run(state: Path, reconciler: Reconciler, job: Job) -> int:
    several = job.world_size > 1
    follower = Follower(Layout(state).logs(job.name), range(job.world_size), prefix=several)
    interrupted, told, since = 0, "", time.monotonic()
    while True:
        try:
            fleet = reconciler.ask("state")
            now = fleet["jobs"].get(job.name)
            follower.pump()
            if now is None:
                fail(f"{job.name} is gone")
            if now["phase"]:
                follower.finish()
                return run_status(now, interrupted)
            if now["stalled"]:
                say(f"rankfold: {now['stalled']}")
                reconciler.ask("override", name=job.name, fields={"cancelled": True}, force=True)
            why = "; ".join([*now["waiting"], *map(": ".join, fleet["devices_failing"].items())])
            if now["step"] == "new" and why != told and time.monotonic() - since > QUIET_S:
                say(f"rankfold: {why}")
                told = why
            time.sleep(POLL_S / 2)
        except KeyboardInterrupt:
            interrupted += 1
            if interrupted > 1:
                say("rankfold: the job is being cancelled in the background")
                return 130
            say(f"rankfold: cancelling {job.name} (again: do not wait)")
            # The interrupt may have cut a request in two: begin a fresh connection.
            reconciler.close()
            reconciler.ask("override", name=job.name, fields={"cancelled": True}, force=True)


def run_status(now: Json, interrupted: int) -> int:
    """The job's exit status as a shell would give it: of the first rank that failed."""
    if interrupted:
        return 130
    if now["phase"] == "Succeeded":
        return 0
    how = now["message"].split("\n")[0]  # the rank's last words, which follow, were printed already
    say(f"rankfold: {now['reason']}: {how}")
    if now["reason"] == "RankFailed":
        exits, rank = dict(enumerate(now["exits"])), now["rank"]
        first = exits.get(rank)
        if rank is None:  # the journal was written by an older rankfold
            first = next(filter(None, exits.values()), None)
        if first:
            return 128 - first if first < 0 else int(first)
    return EXIT_ERROR


def permanent_pools(snap: report.Snapshot) -> list[Pool]:
    return [o.spec for o in snap.objects if isinstance(o.spec, Pool) and o.spec.only_for is None]


def nvidia_missing() -> str:
    """Why there can be no device of type nvidia here; empty: a driver is installed."""
    try:
        ctypes.CDLL(os.environ.get("RANKFOLD_CUDA_DRIVER", "libcuda.so.1"))
    except OSError as error:
        return f"no NVIDIA driver: {error}; install it, or use --device soft"
    return ""


def temporary_pool(job: str, kind: str, count: int, memory: int) -> Pool:
    memory -= memory % (2 << 20)
    devices = (Device(f"{job}/{kind}-{i}", kind, memory, only_for=job) for i in range(count))
    return Pool(job, tuple(devices), only_for=job)


def check_capacity(snap: report.Snapshot, job: Job, pool: Pool | None) -> None:
    """Refuse what could never start."""
    pools = [pool] if pool else permanent_pools(snap)
    fit = [
        d for p in pools for d in p.devices if not job.device_types or d.type in job.device_types
    ]
    if len(fit) < job.gpus:
        kind = " or ".join(job.device_types) or "any kind"
        raise click.UsageError(f"--gpus {job.gpus}: the pools have {len(fit)} devices of {kind}")


def unused_name(snap: report.Snapshot, program: str) -> str:
    stem = "".join(c if c.isalnum() and c.isascii() else "-" for c in Path(program).stem.lower())
    stem = stem.strip("-")[:40] or "job"
    taken = {o.name for o in snap.objects}
    return next(n for n in (stem, *(f"{stem}-{i}" for i in range(2, 10**6))) if n not in taken)

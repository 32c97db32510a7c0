"""`rankfold run`: runs one job in the foreground."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from rankfold.control import ControlError
from rankfold.job_limits import DEVICES_MAX, RANKS_MAX
from rankfold.reconciler.client import Reconciler, Unresponsive
from rankfold.reconciler.commands import local_gpus
from rankfold.reconciler.commands.common import EXIT_ERROR, POLL_S, fail, terminating
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import RESTARTS_MAX, Device, Job, Pool
from rankfold.reconciler.model.fitting import Groups
from rankfold.reconciler.model.recorded import Record, to_json
from rankfold.reconciler.model.values import CAPABILITIES, Json, most_devices, too_many_devices
from rankfold.reconciler.report import snapshot
from rankfold.reconciler.report.lines import say
from rankfold.reconciler.report.logs import Follower
from rankfold.reconciler.source import field_rules
from rankfold.reconciler.source.yamldoc import unusable
from rankfold.reconciler.wording import count

SAVE_EVERY_S = 600  # for a job that may be restarted
NAME_ATTEMPTS = 1000  # each fails only because another job got the name
QUIET_S = 3.0  # before `run` reports why its job has not started


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--world-size", type=click.IntRange(1, RANKS_MAX), required=True, help="Number of ranks."
)
@click.option(
    "--gpus",
    type=click.IntRange(1, DEVICES_MAX),
    default=None,
    help="Devices; default: one for each rank, and no more than this machine has GPUs if they are "
    "made of type nvidia for the job.",
)
@click.option(
    "--device", "kind", type=click.Choice(["soft", "nvidia"]), default=None, help="Kind of device."
)
@click.option(
    "--memory", default="1GiB", show_default=True, help="Of each device of a temporary fleet."
)
@click.option(
    "--compute-capability",
    "capability",
    default=None,
    metavar="MAJOR.MINOR",
    help="Of each device of a temporary fleet, such as 9.0; default: the GPUs' own.",
)
@click.option("--name", default=None, help="Name of the job; default: the program's.")
@click.option(
    "--determinism",
    type=click.Choice(["D0", "D1"]),
    default="D1",
    show_default=True,
    help="D1: the same bits on any number of devices. D0: only on the same devices.",
)
@click.option(
    "--check-order",
    "check_order",
    flag_value="certain",
    help="Report accesses of different streams that the program does not order.",
)
@click.option(
    "--possible-races",
    "check_order",
    flag_value="possible",
    help="Also report accesses that may not overlap: it is not known which bytes they reach.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0, RESTARTS_MAX),
    default=0,
    show_default=True,
    help="How often to restart after a fault, from the last checkpoint; one is "
    "made every 10 minutes.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@click.pass_obj
def run(
    state: Path,
    world_size: int,
    gpus: int | None,
    kind: str | None,
    memory: str,
    capability: str | None,
    name: str | None,
    determinism: str,
    check_order: str | None,
    max_restarts: int,
    command: tuple[str, ...],
) -> int:
    """Run one job in the foreground; the exit status is the job's.

    The job uses the fleet's devices. If no pool has been applied, as many as --gpus requests are
    made for it, software GPUs unless --device says otherwise, and removed after it. Its ranks have
    the environment of this command, without CUDA_VISIBLE_DEVICES. Ctrl-C cancels the job.
    """
    if gpus is not None and (reason := too_many_devices(gpus, world_size)):
        raise click.UsageError(f"--gpus {reason}")
    need_utf8("the argument", command)
    need_utf8("the working directory", [os.getcwd()])
    for problem in field_rules.command_faults(list(command)):
        raise click.UsageError(problem)
    size = field_rules.device_memory(memory)
    if size is None:
        raise click.UsageError(f"--memory {memory} is not {field_rules.DEVICE_MEMORY_WORDS}")
    if capability and not field_rules.is_capability(capability):
        raise click.UsageError(f"--compute-capability {capability} is not one such as 9.0")
    if name is not None and (problem := field_rules.bad_name(name)):
        raise click.UsageError(f"--name {name}: {problem}")
    snap = snapshot.snapshot(state)
    gpus = devices_for(snap, world_size, gpus, kind)
    job = Job(
        name or unused_name(snap, command[0]),
        command,
        os.getcwd(),
        world_size,
        gpus,
        env=own_environment(),
        env_whole=True,
        device_types=(kind,) if kind else (),
        determinism=determinism,
        check_order=check_order or "none",
        max_restarts=max_restarts,
        save_every_s=SAVE_EVERY_S if max_restarts else 0,
    )
    pool = temporary_fleet(snap, job, size, capability)
    if pool and pool.devices[0].type == "nvidia":  # for the reconciler that starts now, if one does
        folders = ":".join(map(str, local_gpus.library_folders(command[0])))
        os.environ["RANKFOLD_LIBRARIES"] = os.environ.get("RANKFOLD_LIBRARIES") or folders
    with Reconciler(state) as reconciler, terminating():
        if name is not None:
            _request(reconciler, job, pool)
        else:
            job = _start_unnamed(state, reconciler, job, pool, size, capability)
        return _follow_run(state, reconciler, job)


def _request(reconciler: Reconciler, job: Job, pool: Pool | None) -> None:
    reconciler.request(
        "run", job=to_json(job), pool=to_json(pool) if pool else None, token=uuid.uuid4().hex
    )


def _start_unnamed(
    state: Path,
    reconciler: Reconciler,
    job: Job,
    pool: Pool | None,
    memory: int,
    capability: str | None,
) -> Job:
    """Send the job to the reconciler, under another name if another `run` of the same program took
    its name first. Returns the job with its final name."""
    for _ in range(NAME_ATTEMPTS):
        try:
            _request(reconciler, job, pool)
            return job
        except ControlError as error:
            if error.code != "exists":
                raise
        snap = snapshot.snapshot(state)
        job = replace(job, name=unused_name(snap, job.command[0]))
        pool = temporary_fleet(snap, job, memory, capability)
    fail(
        f"other jobs already have the first {NAME_ATTEMPTS} names that were tried: choose a --name"
    )


def temporary_fleet(
    snap: snapshot.Snapshot, job: Job, memory: int, capability: str | None
) -> Pool | None:
    """The devices that are made for this job; None: it uses those of the pools. Refuses a job that
    could never start. `memory`: of each device, in bytes."""
    pools = permanent_pools(snap)
    if capability and pools:
        raise click.UsageError(
            "--compute-capability is for a temporary fleet; the job would use the devices of pool "
            f"{pools[0].name}: set computeCapability there"
        )
    kind = job.device_types[0] if job.device_types else "soft"
    pool = None if pools else temporary_pool(job.name, kind, job.gpus, memory, capability)
    check_capacity(job, [pool] if pool else pools)
    return pool


def need_utf8(source: str, texts: Sequence[str]) -> None:
    """Raises click.UsageError for the first text that cannot be stored as JSON."""
    for text in texts:
        if unusable(text):
            raise click.UsageError(f"{source} {os.fsencode(text)!r} is not UTF-8, as jobs need")


def own_environment() -> tuple[tuple[str, str], ...]:
    """The environment of the ranks. Variables of rankfold itself are left out: those of the
    background reconciler apply. So is CUDA_VISIBLE_DEVICES, which is about this machine's devices:
    ranks see the job's.
    """
    ours = {k: v for k, v in os.environ.items() if not k.startswith("RANKFOLD_")}
    ours.pop("CUDA_VISIBLE_DEVICES", None)
    for name in [k for k, v in ours.items() if unusable(k) or unusable(v)]:
        say(f"rankfold: {name!a} is not UTF-8: the ranks do not get it")
        del ours[name]
    return tuple(sorted(ours.items()))


class Waits:
    """Prints why a job does not continue: once, and again only after another reason.

    A job that continues for a moment and then waits for the same again, as while many kernels are
    compiled, does not repeat the line."""

    def __init__(self) -> None:
        self.reported = ""

    def report(self, reasons: Sequence[str]) -> None:
        why = "; ".join(reasons)
        if why and why != self.reported:
            say(f"rankfold: {why}")
            self.reported = why


def _follow_run(state: Path, reconciler: Reconciler, job: Job) -> int:
    several = job.world_size > 1
    follower = Follower(Layout(state).logs(job.name), range(job.world_size), prefix=several)
    interrupted, stalled, since = 0, False, time.monotonic()
    waits, outage, restarts = Waits(), "", 0
    races: list[str] = []
    while True:
        try:
            fleet = reconciler.request("state")
            now = fleet["jobs"].get(job.name)
            outage = ""
            follower.pump()
            if now is None:
                fail(f"Job/{job.name} was removed")
            for race in now["races"][len(races) :]:
                say(f"rankfold: race: {race}")
            races = now["races"]
            if now["restarts"] > restarts:
                say(f"rankfold: {now.get('restart_cost') or 'restarted'}")
                restarts = now["restarts"]
            if now["phase"]:
                follower.finish()
                return EXIT_ERROR if stalled else run_status(now, interrupted)
            if now["stalled"]:
                say(f"rankfold: {now['stalled']}")
                stalled = True  # this is the reason; the cancel below is not
                reconciler.request(
                    "override", name=job.name, fields={"cancelled": True}, force=True
                )
            if now["step"] != "new":
                waits.report(now.get("standing", ()))
            elif time.monotonic() - since > QUIET_S:
                failing = map(": ".join, fleet["devices_failing"].items())
                waits.report([*now["waiting"], *failing])
            time.sleep(POLL_S / 2)
        except Unresponsive as error:  # wait: our exit status has to be the job's
            if outage != error.message:
                say(f"rankfold: {error}; waiting for it")
            outage = error.message
        except KeyboardInterrupt:
            interrupted += 1
            if interrupted > 1:
                say("rankfold: the job is being cancelled in the background")
                return 130
            say(f"rankfold: cancelling {job.name} (again: do not wait)")
            # The interrupt may have cut a request off, so use a new connection.
            reconciler.close()
            reconciler.request("override", name=job.name, fields={"cancelled": True}, force=True)


def run_status(now: Json, interrupted: int) -> int:
    """The job's exit status as a shell would return it: that of the first rank that failed."""
    if interrupted:
        return 130
    if now["phase"] == "Succeeded":
        return 0
    how = now["message"].split("\n")[0]  # without the rank's last lines, which were printed already
    say(f"rankfold: {now['reason']}: {how}")
    if now["reason"] == "RankFailed":
        exits, rank = dict(enumerate(now["exits"])), now["rank"]
        first = exits.get(rank)
        if rank is None:  # an older rankfold wrote the journal
            first = next(filter(None, exits.values()), None)
        if first:
            return 128 - first if first < 0 else int(first)
    return EXIT_ERROR


def devices_for(
    snap: snapshot.Snapshot, world_size: int, gpus: int | None, kind: str | None
) -> int:
    """The number of devices for a job that requests `gpus`. Of a temporary fleet of NVIDIA GPUs it
    gets no more than there are here: it would wait for the others."""
    most = most_devices(world_size)
    if kind == "nvidia" and not permanent_pools(snap):
        try:
            here = local_gpus.number()
        except local_gpus.NoGpu as error:
            raise click.UsageError(f"--device nvidia: {error}") from None
        if gpus is not None and gpus > here:
            shown = count(here, "GPU")
            raise click.UsageError(
                f"--gpus {gpus}: the driver shows {shown} (CUDA_VISIBLE_DEVICES?); ranks share one"
            )
        most = min(most, here)
    return most if gpus is None else gpus


def permanent_pools(snap: snapshot.Snapshot) -> list[Pool]:
    return [o.spec for o in snap.objects if isinstance(o.spec, Pool) and o.spec.only_for is None]


def temporary_pool(
    job: str, kind: str, number: int, memory: int, capability: str | None = None
) -> Pool:
    """`memory`: of each device, in bytes. `capability`: None is that of a Pool's devices."""
    capability = capability or CAPABILITIES[kind]
    first = Device(f"{job}/{kind}-0", kind, memory, capability, only_for=job)
    devices = tuple(replace(first, name=f"{job}/{kind}-{i}") for i in range(number))
    return Pool(job, devices, only_for=job)


def check_capacity(job: Job, pools: Sequence[Pool]) -> None:
    """Refuse a job that could never start."""
    most = Groups(d for each in pools for d in each.devices).most(job, Record(job.name))
    if most < job.gpus:
        kind = " or ".join(job.device_types) or "any kind"
        raise click.UsageError(
            f"--gpus {job.gpus}: the pools have {count(most, 'device')} of {kind}"
        )


def unused_name(snap: snapshot.Snapshot, program: str) -> str:
    stem = "".join(c if c.isalnum() and c.isascii() else "-" for c in Path(program).stem.lower())
    stem = stem.strip("-")[:40] or "job"
    # Exclude names of removed jobs, too: the store may have checkpoints of them.
    taken = {o.name for o in snap.objects} | (snap.meta.get("incarnations") or {}).keys()
    return next(n for n in (stem, *(f"{stem}-{i}" for i in range(2, 10**6))) if n not in taken)

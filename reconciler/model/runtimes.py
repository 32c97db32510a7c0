"""The runtimes of jobs: which devices each may get, what launchers start for it, and which program
serves its devices. A device serves jobs of one runtime. No other module distinguishes them. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankfold.reconciler.model.desired import Device, Job
from rankfold.reconciler.model.values import Json

PROXY, ELASTIC = "proxy", "elastic"
DEVICES = {PROXY: ("soft", "nvidia"), ELASTIC: ("cpu", "nvidia")}
USUAL = {"soft": PROXY, "nvidia": PROXY, "cpu": ELASTIC}  # of devices whose pool names none
SERVERS = {PROXY: "rankfold.proxy.server", ELASTIC: "rankfold.proxy.runs"}
PYTHON = re.compile(r"python[0-9.]*")
# The job's Python finds this package after its own ones.
RUN = (
    "import sys; sys.path.append({path!r}); from rankfold.elastic.__main__ import main; "
    "sys.exit(main(sys.argv[1:]))"
)


def of_pool(device_type: str, given: str) -> str:
    """The runtime in the description of a device, if its pool gives this one; both are empty for
    the usual one of its type. Raises ValueError if there is no such device."""
    if given and device_type not in DEVICES[given]:
        allowed = " and ".join(DEVICES[given])
        raise ValueError(f"runtime {given} has {allowed}, not {device_type}")
    return "" if given == USUAL[device_type] else given


def _of(device: Device) -> str:
    return device.runtime or USUAL[device.type]


def server(device: Device) -> str:
    """The module that serves a device."""
    return SERVERS[_of(device)]


def serves(device: Device, job: Job) -> bool:
    """Whether the device is for jobs of this runtime."""
    return _of(device) == job.runtime


def runs_on(job: Job, own: tuple[int, int], seen: tuple[int, int]) -> bool:
    """Whether a job that sees the compute capability `seen` runs on a device with another one. The
    elastic runtime uses a GPU as it is: other GPUs have other bits. 0.0: not known."""
    return own == seen or seen == (0, 0) if job.runtime == ELASTIC else own >= seen


def device_types(runtime: str, determinism: str) -> tuple[str, ...]:
    """The types of device for a job whose file names none; empty: any that the runtime has."""
    if runtime != ELASTIC:
        return ()
    return DEVICES[runtime] if determinism != "D2" else ("cpu",)


def no_saves(job: Job, no_processes: str) -> str:
    """Why the job cannot be saved where `no_processes` says why no process can be; empty: it can.
    Jobs of the elastic runtime keep their state in files."""
    return "" if job.runtime == ELASTIC else no_processes


def faults(
    runtime: str, command: Sequence[str], device_types: Sequence[str], determinism: str
) -> list[tuple[str, str]]:
    """(field, reason) for each fault of a job's description."""
    found = []
    if other := [each for each in device_types if each not in DEVICES[runtime]]:
        allowed = " and ".join(DEVICES[runtime])
        found.append(("deviceTypes", f"runtime {runtime} has {allowed}, not {', '.join(other)}"))
    if runtime == ELASTIC and not _is_script(command):
        reason = "runtime elastic needs [python, SCRIPT.py, ARGUMENT…]"
        found.append(("command", reason))
    if runtime != ELASTIC and determinism == "D2":
        found.append(("determinism", "D2 needs runtime elastic; use D0 or D1"))
    elif determinism == "D2" and "nvidia" in device_types:
        reason = "D2 is for CPUs: no comparison covers two types of GPU; use D0 or D1"
        found.append(("determinism", reason))
    return found


def _is_script(command: Sequence[str]) -> bool:
    named = len(command) > 1 and PYTHON.fullmatch(command[0].rpartition("/")[2])
    return bool(named) and not command[1].startswith("-")


def of_launcher(job: Job, rank: int, incarnation: int, folder: str, packages: str) -> Json:
    """Fields of the config of a rank's launcher. `folder`: the job's in the state directory, as an
    absolute path; `packages`: the folder that has this package."""
    if job.runtime != ELASTIC:
        return {}
    state = f"{folder}/elastic-{incarnation}"  # as in proxy/runs.py
    python, script, *arguments = job.command
    run = ["run", "--world", str(job.world_size), "--suspended", "--state", state]
    run += ["--determinism", job.determinism, "--logs", f"{folder}/logs", script, *arguments]
    command = run if rank == 0 else ["attend", state]
    return {
        "command": [python, "-c", RUN.format(path=packages), *command],
        "preload": [],
        "hidden": [],  # the run writes all logs, and its state
        "state_folder": state,
    }

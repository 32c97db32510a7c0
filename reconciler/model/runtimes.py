"""The runtimes of jobs: which devices each may get, what launchers start for it, and which program
serves its devices. No other module distinguishes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.values import Json

PROXY, ELASTIC = "proxy", "elastic"
DEVICES = {PROXY: ("soft", "nvidia"), ELASTIC: ("cpu",)}
SERVERS = {"cpu": "rankfold.proxy.cpu"}  # of other types: rankfold.proxy.server
PYTHON = re.compile(r"python[0-9.]*")
# The job's Python finds this package after its own ones.
RUN = (
    "import sys; sys.path.append({path!r}); from rankfold.elastic.__main__ import main; "
    "sys.exit(main(sys.argv[1:]))"
)


def server(device_type: str) -> str:
    """The module that serves a device of this type."""
    return SERVERS.get(device_type, "rankfold.proxy.server")


def may_get(job: Job, device_type: str) -> bool:
    """Whether the job's runtime and its file allow a device of this type."""
    return device_type in DEVICES[job.runtime] and device_type in (
        job.device_types or (device_type,)
    )


def device_types(runtime: str) -> tuple[str, ...]:
    """The types of device for a job whose file names none; empty: any that the runtime has."""
    return DEVICES[runtime] if runtime == ELASTIC else ()


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
    return found


def _is_script(command: Sequence[str]) -> bool:
    named = len(command) > 1 and PYTHON.fullmatch(command[0].rpartition("/")[2])
    return bool(named) and not command[1].startswith("-")


def of_launcher(job: Job, rank: int, incarnation: int, folder: str, packages: str) -> Json:
    """Fields of the config of a rank's launcher. `folder`: the job's in the state directory, as an
    absolute path; `packages`: the folder that has this package."""
    if job.runtime != ELASTIC:
        return {}
    state = f"{folder}/elastic-{incarnation}"  # as in proxy/cpu.py
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

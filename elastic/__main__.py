"""`python -m rankfold.elastic run` runs a script without a fleet; other commands change the run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

from . import determinism, requests, sealing

ATTEND_AGAIN_S = 0.05
STATES = "states"  # the folder, in that of --state, with saved state
OUTPUT = re.compile(r"rank-\d+\.(out|err)")
# Torchrun sets the first for several processes; the second is gloo's interface on one machine.
DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # on GPUs, the same bits in each run need one
}


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if "" in names:
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name")
    return names


def _counts(text: str) -> tuple[tuple[int, int], ...]:
    """`STEP:P,STEP:P…` as pairs."""
    try:
        pairs = [tuple(map(int, part.split(":"))) for part in text.split(",")]
    except ValueError:
        pairs = [()]
    if any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form STEP:P,STEP:P")
    return tuple((step, count) for step, count in pairs)


HELP = {
    "status": "show where the run in DIR is, as JSON",
    "scale": "continue in N processes",
    "suspend": "save the state and end all processes of the run, which waits",
    "resume": "continue a suspended run",
    "checkpoint": "save the state",
    "cancel": "end the run",
}


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rankfold.elastic")
    commands = parser.add_subparsers(required=True, dest="command")
    attend = commands.add_parser("attend", help="wait for the run in DIR; exit with its status")
    attend.add_argument("folder", type=Path, metavar="DIR")
    for name in requests.REQUESTS:
        command = commands.add_parser(name, help=HELP[name])
        command.add_argument("folder", type=Path, metavar="DIR", help="the run's --state")
        if name in ("scale", "resume"):
            count = None if name == "scale" else "?"
            command.add_argument("processes", type=int, nargs=count, metavar="N")
    compare = commands.add_parser(
        "compare",
        help="compare runs on a GPU with stock PyTorch, and note its type if they have equal bits",
    )
    compare.add_argument(
        "--gpu", default="0", metavar="NAME", help="as CUDA_VISIBLE_DEVICES names it (default: 0)"
    )
    compare.add_argument("--covered", type=Path, metavar="FILE", help="where types are noted")
    run = commands.add_parser("run", help="run a script of DistributedDataParallel")
    _add_run(run)
    options = parser.parse_args(arguments)
    if options.command == "run":
        _check_run(run, options)
    return options


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--world", type=int, required=True, help="number of logical workers (ranks)")
    run.add_argument("--processes", type=int, default=1, help="number of processes (default: 1)")
    run.add_argument(
        "--schedule",
        type=_counts,
        default=(),
        metavar="STEP:P,STEP:P…",
        help="change to P processes before step STEP, counted from 0",
    )
    run.add_argument(
        "--checkpoint-every", type=int, metavar="N", help="save the state each N steps"
    )
    run.add_argument(
        "--resume", action="store_true", help="continue from the saved state in --state"
    )
    run.add_argument(
        "--state",
        type=Path,
        default=Path("elastic-run"),
        help="folder for rank-<r>.out and .err, and saved state",
    )
    run.add_argument(
        "--logs", type=Path, metavar="DIR", help="folder for rank-<r>.out and .err instead"
    )
    run.add_argument(
        "--suspended",
        action="store_true",
        help="wait for `resume` without processes, then continue from saved state, if there is any",
    )
    run.add_argument(
        "--determinism",
        choices=determinism.LEVELS,
        default="D1",
        help="the same bits in as many processes (D0), in any number (default: D1), and also on "
        "any type of CPU (D2)",
    )
    run.add_argument(
        "--gpus",
        type=_names,
        default=(),
        metavar="NAME,NAME…",
        help="GPUs of the processes, in turn, as CUDA_VISIBLE_DEVICES names them (default: none)",
    )
    run.add_argument(
        "--covered",
        type=Path,
        metavar="FILE",
        help="types of GPU that the run may use, as `compare` has written them (default: its file)",
    )
    run.add_argument("script", type=Path)
    run.add_argument("arguments", nargs=argparse.REMAINDER)


def _check_run(run: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits with a message for what cannot be run. Prepares the folder of --state."""
    if options.world < 1:
        run.error(f"--world must be at least 1, not {options.world}")
    if not 1 <= options.processes <= options.world:
        run.error(f"--processes must be between 1 and --world ({options.world})")
    options.counts = ((0, options.processes), *options.schedule)
    if options.schedule and options.schedule[0][0] == 0:
        options.counts = options.schedule
    steps = [step for step, _ in options.counts]
    if steps != sorted(set(steps)) or steps[0] < 0:
        run.error("--schedule: steps must increase")
    if not all(1 <= count <= options.world for _, count in options.schedule):
        run.error(f"--schedule: processes must be between 1 and --world ({options.world})")
    if options.checkpoint_every is not None and options.checkpoint_every < 1:
        run.error("--checkpoint-every must be at least 1")
    try:
        str(options.state.absolute()).encode()
    except UnicodeEncodeError:
        run.error(f"--state: {str(options.state)!r} is not UTF-8, which PyTorch needs")
    if not options.script.is_file():
        run.error(f"{options.script} is not a file")
    try:
        if options.suspended:
            _check_unused(options.state)
            (options.state / STATES).mkdir(parents=True, exist_ok=True)
        elif options.resume:
            _check_saved(options.state, options.world)
        else:
            prepare_folder(options.state, options.world)
    except OSError as error:
        run.error(f"--state: {error}")
    except Unsuitable as error:
        run.error(str(error))


class Unsuitable(Exception):
    """The folder of --state cannot be used so."""


def _saved(folder: Path, world: int) -> list[Path]:
    """The saved states, newest first. A run that was killed while it saved may have left two, and
    one that all processes have written, without its name."""
    for path in (folder / STATES).glob("unfinished-*"):
        with contextlib.suppress(sealing.Damaged, OSError):
            sealing.check(path, world)
            sealing.synchronize(path)
            path.rename(path.with_name(f"step-{path.name[11:]}"))
    states = [each for each in (folder / STATES).glob("step-*") if each.name[5:].isdecimal()]
    return sorted(states, key=lambda each: int(each.name[5:]), reverse=True)


def _check_saved(folder: Path, world: int) -> None:
    """Raises Unsuitable if there is no saved state of so many ranks."""
    _check_unused(folder)
    states = _saved(folder, world)
    if not states:
        raise Unsuitable(f"--resume: {folder / STATES} has no saved state")
    ranks = 1 + max((int(each.stem[5:]) for each in states[0].glob("rank-*.pt")), default=-1)
    if ranks != world:
        raise Unsuitable(f"--resume: the saved state has a world of {ranks}, not of {world}")


def _check_unused(folder: Path) -> None:
    if requests.runs(folder):
        raise Unsuitable(f"--state: a run uses {folder} now")


def prepare_folder(folder: Path, world: int) -> None:
    """Creates the folder, and removes the output of an earlier run: it may have had more ranks.
    Raises OSError; Unsuitable if it has saved state."""
    folder.mkdir(parents=True, exist_ok=True)
    _check_unused(folder)
    if states := _saved(folder, world):
        raise Unsuitable(f"{states[0]} is the saved state of a run: pass --resume, or remove it")
    shutil.rmtree(folder / STATES, ignore_errors=True)
    for old in folder.iterdir():
        if OUTPUT.fullmatch(old.name):
            old.unlink()


def main(arguments: list[str]) -> int:
    options = _parsed(arguments)
    if options.command == "attend":
        return _attend(options.folder)
    if options.command == "compare":
        return _compare(options)
    return _run(options) if options.command == "run" else _request(options)


def _compare(options: argparse.Namespace) -> int:
    from . import compare, gpu

    try:
        found = compare.cover(options.gpu, options.covered or gpu.COVERED)
    except compare.Differs as reason:
        print(reason, file=sys.stderr)
        return 1
    print(found)
    return 0


def _attend(folder: Path) -> int:
    """Waits until a run begins in the folder, and until it ends. Returns its exit status; if it is
    killed, so is this process."""
    while not requests.runs(folder):
        time.sleep(ATTEND_AGAIN_S)
    try:
        status: int = requests.ask(folder, request="ended")["status"]
    except requests.Refused:
        os.kill(os.getpid(), signal.SIGKILL)
    return status


def _request(options: argparse.Namespace) -> int:
    fields = {"request": options.command}
    if getattr(options, "processes", None) is not None:
        fields["processes"] = options.processes
    try:
        print(json.dumps(requests.ask(options.folder, **fields)))
    except requests.Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> int:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        if options.determinism == "D2":
            determinism.pin()
        import torch

        if options.determinism == "D2":
            determinism.check(torch.backends.cpu.get_cpu_capability())
    except ImportError as missing:
        print(f"the elastic runtime needs PyTorch: {missing}", file=sys.stderr)
        return 2
    except determinism.NotPinned as reason:
        print(f"--determinism D2 cannot be: {reason}", file=sys.stderr)
        return 2
    return _run_with_torch(options, torch)


def _run_with_torch(options: argparse.Namespace, torch: ModuleType) -> int:
    from . import gpu, private
    from .process import Script
    from .run import Parent, Plan
    from .selftest import sums_are_equal

    try:
        private.check_version(torch.__version__)
    except private.UntestedVersion as untested:
        print(untested, file=sys.stderr)
        return 2
    counts = [count for _, count in options.counts]
    ordered = options.determinism != "D0" and min(counts) < options.world
    if ordered and not sums_are_equal(options.world):
        print("this build of gloo adds in another order than the elastic runtime", file=sys.stderr)
        return 2
    path = options.script.resolve()
    try:
        code = compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError, OSError) as error:
        print(f"{options.script} cannot be run: {error}", file=sys.stderr)
        return 1
    private.import_all()
    logs = (options.logs or options.state).resolve()
    script = Script(path, code, tuple(options.arguments), logs)
    states = (options.state / STATES).resolve()
    states.mkdir(exist_ok=True)
    plan = Plan(
        options.world,
        options.counts,
        options.checkpoint_every,
        states,
        script,
        options.suspended,
        options.determinism != "D0",
        threads=torch.get_num_threads(),
        gpus=tuple(gpu.Gpu(name) for name in options.gpus),
        covered=(options.covered or gpu.COVERED).expanduser().absolute(),
    )
    try:
        return Parent(plan, requests.Requests(options.state.resolve())).run()
    except sealing.Damaged as damaged:
        print(damaged, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m rankfold.elastic run`: runs a script without a fleet."""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .process import Run

PR_SET_PDEATHSIG = 1
# Torchrun sets the first for several processes; the second is gloo's interface on one machine.
OUTPUT = re.compile(r"rank-\d+\.(out|err)")
DEFAULTS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rankfold.elastic")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run a script of DistributedDataParallel")
    run.add_argument("--world", type=int, required=True, help="number of logical workers (ranks)")
    run.add_argument("--processes", type=int, default=1, help="number of processes (default: 1)")
    run.add_argument(
        "--state", type=Path, default=Path("elastic-run"), help="folder for rank-<r>.out and .err"
    )
    run.add_argument("script", type=Path)
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.world < 1:
        run.error(f"--world must be at least 1, not {options.world}")
    if not 1 <= options.processes <= options.world:
        run.error(f"--processes must be between 1 and --world ({options.world})")
    if not options.script.is_file():
        run.error(f"{options.script} is not a file")
    try:
        prepare_folder(options.state)
    except OSError as error:
        run.error(f"--state: {error}")
    return options


def prepare_folder(folder: Path) -> None:
    """Creates the folder, and removes the output of an earlier run: it may have had more ranks.
    Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if OUTPUT.fullmatch(old.name):
            old.unlink()


def _processes(run: Run, rendezvous: Path) -> int:
    """Forks them after the one import of PyTorch. Returns 0, or the status of the first that
    failed; the others are killed then. Also returns in each child, with its own status."""
    from .process import work

    libc = ctypes.CDLL(None)
    parent = os.getpid()
    running: dict[int, int] = {}
    for index in range(run.processes):
        child = os.fork()
        if child == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                return 1
            return work(run, index, rendezvous)
        running[child] = index
    failed = 0
    while running:
        child, how = os.wait()
        index = running.pop(child)
        code = os.waitstatus_to_exitcode(how)
        if code == 0 or failed:
            continue
        failed = code if code > 0 else 128 - code
        reason = f"exited with {code}" if code > 0 else f"was killed by signal {-code}"
        ranks = ", ".join(map(str, run.blocks()[index]))
        print(f"process {index} (ranks {ranks}) {reason}; see {run.folder}", file=sys.stderr)
        for other in running:
            os.kill(other, signal.SIGKILL)
    return failed


def main(arguments: list[str]) -> int:
    options = _parsed(arguments)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import torch
    except ImportError as missing:
        print(f"the elastic runtime needs PyTorch: {missing}", file=sys.stderr)
        return 2
    from . import private
    from .process import Run

    try:
        private.check_version(torch.__version__)
    except private.UntestedVersion as untested:
        print(untested, file=sys.stderr)
        return 2
    run = Run(
        options.world, options.processes, options.state, options.script, tuple(options.arguments)
    )
    folder, parent = tempfile.mkdtemp(prefix="rankfold-elastic-"), os.getpid()
    try:
        return _processes(run, Path(folder, "rendezvous"))
    finally:
        if os.getpid() == parent:  # its children return, too
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

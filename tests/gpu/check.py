"""make gpu-check: everything that a machine with an NVIDIA GPU can show, in under nine minutes.

Writes build/gpu/report.json, anew after each part (parts.py), the most important first; those after
`parts.SIDE_BY_SIDE` concurrently. A part runs in a process group of its own, with a time limit of
its own: whatever it does, the others run. It passes, fails, is skipped with a reason, or is not run
for want of time. The exit status is 0 if none failed and all had their time; without a GPU, one
line and 1.

This file needs nothing but Python, so that it can say what else is missing. `--part` is how it
starts itself for one part, in the virtual environment once that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gpu import parts
from gpu.parts import ROOT
from rankfold import nvidia_packages

REPORT = ROOT / "build/gpu/report.json"
TOTAL_S = 530.0
TAIL = 4000  # characters of a part's output in the report
SKIPPED = 77  # a part's exit status; its last line is the reason
LAST_WORDS_S = 6.0  # of a part's limit, for the logs of what it started
BESIDE = max(1, min(4, (os.cpu_count() or 1) // 4))  # parts at one time


@dataclass
class Outcome:
    """The outcome of a part; `reason` if it did not pass."""

    name: str
    status: str
    reason: str
    seconds: float
    output: str


# ---- running a part ------------------------------------------------------------------------------


def run_part(name: str, command: Sequence[str], limit_s: float) -> Outcome:
    """Run a part's command to its end or the end of its time; nothing of it is left."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
            )
        except OSError as error:
            return Outcome(name, "failed", f"cannot be started: {error}", 0.0, "")
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        text = out.read()
    seconds = round(time.monotonic() - started, 1)
    lines = text.strip().splitlines() or ["it said nothing"]
    if status is None:
        return Outcome(name, "failed", f"not over after {limit_s:.0f} s", seconds, text[-TAIL:])
    if status in (0, SKIPPED):
        passed = status == 0
        return Outcome(
            name,
            "passed" if passed else "skipped",
            "" if passed else lines[-1],
            seconds,
            text[-TAIL:],
        )
    return Outcome(name, "failed", f"status {status}: {lines[-1]}", seconds, text[-TAIL:])


def write(report: dict[str, Any]) -> None:
    """All at once, so that a report is whole whenever this ends."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    fresh = REPORT.with_suffix(".new")
    fresh.write_text(json.dumps(report, indent=1) + "\n")
    fresh.rename(REPORT)


# ---- the machine ----------------------------------------------------------------------------


def command_line(*command: str) -> str:
    """The first line of what a command prints; empty if there is none."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.strip().splitlines() or [""])[0]


def about() -> dict[str, Any]:
    version = Path("/proc/driver/nvidia/version")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": command_line("git", "describe", "--always", "--dirty", "--abbrev=40"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "driver": version.read_text().splitlines()[0] if version.exists() else "",
        "nvidia_smi": command_line(
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total,compute_cap",
            "--format=csv,noheader",
        ),
    }


# ---- all of it --------------------------------------------------------------------------------


def use_wheels() -> None:
    """Libraries of NVIDIA's wheels next to this interpreter, where nothing else is named."""
    folders = nvidia_packages.library_folders(sys.path)
    for library in (found for folder in folders for found in folder.glob("libcublasLt.so.13")):
        os.environ.setdefault("RANKFOLD_CUBLASLT", str(library))
    if folders:
        os.environ.setdefault("RANKFOLD_LIBRARIES", ":".join(map(str, folders)))
    known = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    os.environ["LD_LIBRARY_PATH"] = ":".join([*known, *map(str, folders)])


def one_part(name: str, limit_s: float) -> int:
    """Ends by itself some seconds before `limit_s`, so that it can say what it waited for."""

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(f"not over after {limit_s - LAST_WORDS_S:.0f} s")

    sys.path[:0] = [str(ROOT)]
    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(limit_s - LAST_WORDS_S, 0.1))
    try:
        (parts.look if name == "gpu" else parts.PARTS[name][0])()
    except parts.Skip as reason:
        print(reason)
        return SKIPPED
    return 0


def command_of(name: str, limit_s: float) -> list[str]:
    python = str(parts.PYTHON) if parts.PYTHON.exists() else sys.executable
    return [python, "-m", "gpu.check", "--part", name, "--limit", str(limit_s)]


def check(only: str, patience: float = 1.0) -> int:
    """All parts whose names match, `patience` times their limits. The exit status: 0 if each
    passed, or said why it cannot."""
    use_wheels()
    parts.PYTHONS.unlink(missing_ok=True)
    report: dict[str, Any] = {**about(), "gpu": "", "figures": [], "parts": []}
    begun, lock = time.monotonic(), threading.Lock()

    def note(outcome: Outcome) -> None:
        with lock:
            if parts.FIGURES.exists():
                report["figures"] = json.loads(parts.FIGURES.read_text())
            report["parts"].append(asdict(outcome))
            write(report)
            print(
                f"{outcome.status:8}{outcome.name:28}{outcome.seconds:6.1f} s  {outcome.reason}",
                flush=True,
            )

    def run(name: str) -> None:
        left = TOTAL_S * patience - (time.monotonic() - begun)
        if left < 2 * LAST_WORDS_S:
            note(Outcome(name, "not run", "no time left", 0.0, ""))
            return
        limit = min(parts.PARTS[name][1] * patience, left)
        note(run_part(name, command_of(name, limit), limit))

    first = run_part("gpu", command_of("gpu", 60.0 * patience), 60.0 * patience)
    report["gpu"] = first.output.strip()
    if first.status != "passed":
        report["parts"] = [asdict(first)]
        write(report)
        words = report["gpu"].splitlines() or [first.reason]
        print(f"gpu-check: {words[-1]}", file=sys.stderr)
        return 1
    parts.FIGURES.unlink(missing_ok=True)
    wanted = [name for name in parts.PARTS if re.search(only, name)]
    for name in wanted:
        if name not in parts.SIDE_BY_SIDE:
            run(name)
    with ThreadPoolExecutor(BESIDE) as pool:
        list(pool.map(run, [name for name in wanted if name in parts.SIDE_BY_SIDE]))
    return verdict([part["status"] for part in report["parts"]])


def verdict(statuses: list[str]) -> int:
    """Prints how many parts had each status. A part that did not run is no success."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(Counter(statuses).items()))
    print(f"{REPORT}: {counts or 'no part has such a name'}")
    return int(not {"passed", "skipped"}.issuperset(statuses) or not statuses)


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--part", help="run one part, here")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that such a part has")
    parser.add_argument("--only", default="", help="a regular expression: only these parts")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="all limits are so many times longer, on a machine that is slow or busy",
    )
    options = parser.parse_args()
    return (
        one_part(options.part, options.limit)
        if options.part
        else check(options.only, options.patience)
    )


if __name__ == "__main__":
    sys.exit(main())

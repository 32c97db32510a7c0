"""Measures the cost of 1,000 jobs in 1,000 files for the reconciler.

Question. How long does it take until the first revision is accepted, and one edited file of it; for
how long is the loop blocked meanwhile; how much of a core does it use when nothing happens; how
long does `stop --cancel` take, and does any queued job start?

Method. A separate state directory, one soft device, and jobs that never end: one runs, all others
wait. A client sends `hello` to the reconciler's socket every few milliseconds: the longest wait is
the longest time for which the loop was blocked. Acceptance is read from the journal. CPU time is
the process's own, from /proc.

Noise. Other load increases every figure: the machine's load is recorded.

Estimate before measuring. Reading 1,000 small YAML files: 0.6 s; after an edit only one: 0.1 s
including the check of all. A thousand rows: 50 ms. A plan: 30 ms, once. `stop --cancel`: 1 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import report
from benchmarks.report import Figure
from rankfold import control
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.layout import Layout

PROBE_S, POLL_S, PATIENCE_S, EDITS = 0.003, 0.005, 300.0, 5


class Fleet:
    """A reconciler that follows a folder with `jobs` jobs, one in each file."""

    def __init__(self, folder: Path, jobs: int):
        self.specs, self.state, self.ran = folder / "specs", folder / "state", folder / "ran"
        for each in (self.specs, self.state, self.ran, folder / "run"):
            each.mkdir(mode=0o700)
        self.environment = {**os.environ, "RANKFOLD_STATE": str(self.state)}
        self.environment["RANKFOLD_RUNTIME"] = os.environ["RANKFOLD_RUNTIME"] = str(folder / "run")
        (self.specs / "pool.yaml").write_text(
            "apiVersion: rankfold/v1alpha1\nkind: Pool\nmetadata: {name: local}\n"
            "spec: {devices: [{type: soft, count: 1, memory: 64MiB}]}\n"
        )
        for number in range(jobs):
            self.write(number)

    def write(self, number: int, restarts: int = 3) -> None:
        (self.specs / f"job-{number}.yaml").write_text(
            f"apiVersion: rankfold/v1alpha1\nkind: Job\nmetadata: {{name: job-{number}}}\nspec:\n"
            f'  command: [sh, -c, "touch {self.ran}/{number}; exec sleep 100000"]\n'
            f"  worldSize: 1\n  gpus: 1\n  restart: {{maxRestarts: {restarts}}}\n"
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "rankfold", *arguments]

    def revision(self) -> str | None:
        if not database(self.state).exists():
            return None
        with Journal(self.state, readonly=True) as journal:
            found: str | None = journal.get("revision")
            return found

    def pid(self) -> int:
        with control.Client(Layout(self.state).socket, timeout=PATIENCE_S) as client:
            return int(client.request("hello")[0]["pid"])


def until(what: Callable[[], object]) -> float:
    """Wait until it is true; returns the seconds that it took."""
    begun = time.monotonic()
    while not what():
        if time.monotonic() - begun > PATIENCE_S:
            raise TimeoutError(f"never came true: {what}")
        time.sleep(POLL_S)
    return time.monotonic() - begun


@contextmanager
def probing(fleet: Fleet) -> Iterator[list[float]]:
    """Query the reconciler continuously; yields a list with the time of each reply."""
    took: list[float] = []
    over = threading.Event()

    def measure_replies() -> None:
        with control.Client(Layout(fleet.state).socket, timeout=PATIENCE_S) as client:
            while not over.wait(PROBE_S):
                begun = time.monotonic()
                client.request("hello")
                took.append(time.monotonic() - begun)

    thread = threading.Thread(target=measure_replies)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(jobs: int, rest_s: float) -> dict[str, Figure]:
    with tempfile.TemporaryDirectory(prefix="rankfold-bench-") as place:
        fleet = Fleet(Path(place), jobs)
        run = {"env": fleet.environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        log = (Path(place) / "watch").open("w")
        watch = subprocess.Popen(
            fleet.command("watch", str(fleet.specs)), env=fleet.environment, stdout=log, stderr=log
        )
        try:
            first = until(fleet.revision)
            until(lambda: any(fleet.ran.iterdir()))
            edits, blocked = edited(fleet, jobs)
            time.sleep(1.0)
            pid, begun = fleet.pid(), time.monotonic()
            before = cpu_s(pid)
            time.sleep(rest_s)
            rest = (cpu_s(pid) - before) / (time.monotonic() - begun)
        finally:
            watch.terminate()
            watch.wait()
            begun = time.monotonic()
            subprocess.run(fleet.command("stop", "--cancel"), check=True, **run)
            stopped = time.monotonic() - begun
        ran = len(list(fleet.ran.iterdir()))
    what = f"{jobs} jobs in {jobs} files"
    return {
        "files_first_s": Figure(first, "s", 3.0, "lower", f"{what}: from `watch` to acceptance"),
        "files_edit_s": Figure(
            max(edits),
            "s",
            0.5,
            "lower",
            f"{what}: from a save to acceptance, slowest of {EDITS} edits of one file",
        ),
        "files_blocked_s": Figure(
            blocked, "s", 0.1, "lower", f"{what}: longest wait for an answer during these edits"
        ),
        "files_rest_share": Figure(
            100 * rest, "%", 2.0, "lower", f"{what}: of a core, over {rest_s:.0f} s of rest"
        ),
        "files_cancel_s": Figure(stopped, "s", 10.0, "lower", f"{what}: `stop --cancel`"),
        "files_started": Figure(ran, "jobs", 1.0, "lower", "that ran at all, on one device"),
    }


def edited(fleet: Fleet, jobs: int) -> tuple[list[float], float]:
    """The seconds from each save to its acceptance, and the longest wait for a reply."""
    took = []
    with probing(fleet) as answers:
        for number in range(EDITS):
            before = fleet.revision()
            fleet.write(jobs // 2, restarts=4 + number)
            took.append(until(lambda before=before: fleet.revision() != before))
            time.sleep(0.5)
    return took, max(answers)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.files", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small fleet: only shows it works")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine = report.machine()
    found = measure(20, 1.0) if options.quick else measure(1000, 20.0)
    print(report.table(found), flush=True)
    print(report.write("files", machine, found, options.out))


if __name__ == "__main__":
    main()

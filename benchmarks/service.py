"""How soon does a service have a device of a training job, and how soon does training have it back?

Question. A service needs one replica more. How long does it take until a device of the training is
observed free, and until the replica is on a device? When the load has fallen, how long does it take
until the training is on all its devices again?

Method. A fleet on two software GPUs: examples/gpt with two ranks and `gpus: {min: 1, max: 2}`, and
a service with up to one replica, whose program does nothing. The load is written to its file; both
proxies are queried every few milliseconds for the job that they serve. Times begin when the file
is renamed into place.
  service_free_…     until one of the two devices does not serve the training any more
  service_replica_…  until the replica is on it
  service_return_…   from the fall of the load until the training runs on both devices; the fall
                     delay of 1 s is included, the growth delay is 0
Between two changes the training makes a few steps. At the end all its losses are compared with
those of an undisturbed run.

Noise. The training keeps both cores busy, and the reconciler, the proxies and this program share
them; other load on the machine adds to all times.

Estimate before measuring. The load is read every 0.1 s, and a turn of the reconciler begins every
0.1 s: 0.1 s on average. A barrier takes a step of the training at most, 0.1 s, and saving some
megabytes less than that: 0.3 s; 0.6 s at the 95th percentile. The replica is placed two turns
later.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cuda

from benchmarks import report
from benchmarks.inprocess import GPT, KERNEL_CACHE
from benchmarks.report import Figure
from rankfold import control
from rankfold.messages import ProxyStatus
from rankfold.paths import REPOSITORY
from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs, job_environment
from support.leaks import State, Watch

HOLDING = ("joining", "running", "stopping", "cut", "failed")
LOOK_S = 0.004
LONGEST_S = 120.0
LONGEST_STEP_S = 1.0
TRAINING, REPLICA = "gpt", "web-0"
STEPS_BETWEEN = 3
OBJECTS = """\
apiVersion: rankfold/v1alpha1
kind: Policy
metadata: {name: default}
spec: {growthDelay: 0s}
---
apiVersion: rankfold/v1alpha1
kind: Service
metadata: {name: web}
spec:
  command: [sh, -c, 'while :; do sleep 1; done']
  replicas: {min: 0, max: 1}
  load: {file: load, perReplica: 100, fallDelay: 1s}
"""


class Place:
    """The fleet, and what its devices serve."""

    def __init__(self, rankfold: Rankfold, specs: Specs):
        self.rankfold, self.specs = rankfold, specs
        self._layout = Layout(rankfold.state.path)
        self._doors = [self._layout.proxy_socket(f"local/soft-{at}") for at in (0, 1)]

    def states(self, job: str) -> list[str]:
        """The state of a job on each device; "" where it is not."""
        found = []
        for door in self._doors:
            status = control.expect(ProxyStatus, control.call(door, "status"))
            state = next((each.state for each in status.jobs if each.job == job), "")
            found.append(state if state in HOLDING else "")
        return found

    def steps(self) -> int:
        path = self._layout.logs(TRAINING) / "rank-0.out"
        return path.read_text().count("step ") if path.exists() else 0

    def load(self, value: int) -> float:
        """Set the load; returns when."""
        fresh = self.specs.folder / ".load.new"
        fresh.write_text(f"{value}\n")
        begun = time.monotonic()
        fresh.rename(self.specs.folder / "load")
        return begun

    def until(self, condition: Callable[[], bool]) -> float:
        """Wait; returns when the condition was seen."""
        deadline = time.monotonic() + LONGEST_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(self.rankfold("status") + self.rankfold("events"))
            time.sleep(LOOK_S)
        return time.monotonic()

    def train(self) -> None:
        """Wait until the training has made some steps."""
        before = self.steps()
        self.until(lambda: self.steps() >= before + STEPS_BETWEEN)


def percentile(values: Sequence[float], part: float) -> float:
    """The least value that so large a part of them does not exceed."""
    return sorted(values)[math.ceil(part * len(values)) - 1]


def changes(place: Place, rounds: int) -> dict[str, list[float]]:
    """Seconds of each change of the load."""
    found: dict[str, list[float]] = {"free": [], "replica": [], "return": []}
    for _ in range(rounds):
        begun = place.load(100)
        found["free"].append(place.until(lambda: "" in place.states(TRAINING)) - begun)
        found["replica"].append(place.until(lambda: any(place.states(REPLICA))) - begun)
        place.train()
        begun = place.load(0)
        returned = place.until(lambda: place.states(TRAINING) == ["running"] * 2)
        found["return"].append(returned - begun)
        place.train()
    return found


def losses(place: Place) -> list[str]:
    path = Layout(place.rankfold.state.path).logs(TRAINING) / "rank-0.out"
    return [line for line in path.read_text().splitlines() if line.startswith("step ")]


def measure(rounds: int) -> dict[str, Figure]:
    folder = Path(tempfile.mkdtemp(prefix="rankfold-bench-", dir="/tmp"))
    (folder / "state").mkdir()
    places = {
        "RANKFOLD_STATE": str(folder / "state"),
        "RANKFOLD_RUNTIME": str(folder / "run"),
        "RANKFOLD_CACHE": str(KERNEL_CACHE),
    }
    os.environ.update(places)
    state = State(folder, folder / "state", folder / "run", Watch(folder))
    rankfold = Rankfold(state, job_environment(**places))
    specs = Specs(folder / "specs")
    try:
        place = Place(rankfold, specs)
        found, seen = run(place, rounds)
        expected = undisturbed(place, len(seen))
    finally:
        rankfold.end()
        state.watch.settle()
        state.watch.clean()
        shutil.rmtree(folder, ignore_errors=True)
    different = sum(a != b for a, b in zip(seen, expected, strict=True))
    how = f"{rounds} rises of the load; median {{:.3g}} s, longest {{:.3g}} s"
    figures = {
        f"service_{name}_p95_s": Figure(
            percentile(values, 0.95),
            "s",
            1.0 if name == "free" else None,
            "lower",
            how.format(percentile(values, 0.5), max(values)),
        )
        for name, values in found.items()
    }
    figures["service_losses_that_differ"] = Figure(
        different, "", 0, "lower", f"of {len(seen)} steps, from an undisturbed run on two devices"
    )
    return figures


def command(steps: int) -> list[str]:
    data = REPOSITORY / "examples/gpt/text/genesis.txt"
    return [str(cuda.build(GPT)), "--steps", str(steps), "--data", str(data)]


def run(place: Place, rounds: int) -> tuple[dict[str, list[float]], list[str]]:
    """The times, and the losses of the training."""
    rankfold, specs = place.rankfold, place.specs
    specs.pool(2, memory="256MiB")
    specs.write("objects.yaml", OBJECTS)
    specs.program(command(1_000_000), TRAINING, "{min: 1, max: 2}", "", ranks=2)
    place.load(0)
    rankfold("apply", "-f", str(specs.folder))
    place.until(lambda: _started(place))
    place.train()
    found = changes(place, rounds)
    rankfold("cancel", TRAINING, "--override")
    rankfold.until(lambda: rankfold.job(TRAINING)["phase"] == "Failed")
    return found, losses(place)


def _started(place: Place) -> bool:
    try:
        return place.states(TRAINING) == ["running"] * 2
    except control.ControlError:
        return False  # the proxies start


def undisturbed(place: Place, steps: int) -> list[str]:
    """The losses of the same job, on two devices from its beginning to its end."""
    place.rankfold.deadline_s = LONGEST_S + steps * LONGEST_STEP_S
    place.rankfold(
        "run", "--world-size", "2", "--gpus", "2", "--name", "plain", "--", *command(steps)
    )
    path = Layout(place.rankfold.state.path).logs("plain") / "rank-0.out"
    return [line for line in path.read_text().splitlines() if line.startswith("step ")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.service", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine = report.machine()
    found = measure(options.rounds)
    print(report.table(found), flush=True)
    print(json.dumps({name: each.how for name, each in found.items()}, indent=2), flush=True)
    print(report.write("service", machine, found, options.out))


if __name__ == "__main__":
    main()

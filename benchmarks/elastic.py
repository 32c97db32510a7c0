"""How much more does a job cost in the elastic runtime than as stock processes?

Question. How much more CPU time does a step take when several ranks take turns in one process, and
when each has its own? How long does a change of the number of processes stop the training? What do
a checkpoint and the sum in gloo's order cost, and how much memory do eight ranks take?

Method. `elastic_job.py`, a script of DistributedDataParallel, with PyTorch's CPU build and one
thread per process. Compared are CPU times of whole processes for the same steps, after the first
three; both sides alternate, and the least of each counts. The pause of a requested change is the
time from the end of the last step before it to the begin of the next one.

Noise. CPU times vary by a few per cent with other load, which evicts caches. Pauses are measured by
the clock, so other load makes them longer.

Estimate before measuring. A switch takes 0.1 ms of CPU, two per step and rank; a step of these
models 5 to 20 ms. Saved state of 83 MB is written in 0.05 s and mapped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks import report
from benchmarks.report import Figure
from rankfold.elastic import requests
from rankfold.elastic.determinism import CODE_PATH
from rankfold.paths import REPOSITORY

HERE = Path(__file__).parent
TORCH = REPOSITORY / "build/torch-cpu"
SETTLED_S = 0.5  # between two changes
STOCK = REPOSITORY / "tests/elastic/stock.py"
# Two functions timed on their own: the sum, and saving what a resize saves.
SUM = """
import time, torch
from rankfold.elastic.order import ring_sum
torch.set_num_threads(1)
parts = {r: torch.randn(6_250_000) for r in range(8)}
def plain():
    total = parts[0] + parts[1]
    for r in range(2, 8):
        total += parts[r]
    return total
def cpu(function):
    begin = time.process_time(); function(); return time.process_time() - begin
pairs = [(cpu(lambda: ring_sum(parts, [list(range(8))])), cpu(plain)) for _ in range(ROUNDS)]
print(min(a for a, _ in pairs) / min(b for _, b in pairs))
"""
# Ranks take turns, but a switch saves and restores the process group only.
UNSWITCHED = """
import sys
from rankfold.elastic import __main__, private
from rankfold.elastic.host import Host
def wait(host, rank, subject):
    world = private.world()
    host.stage.cut.waits(rank, True)
    host.turns.wait(rank, subject)
    host.stage.cut.waits(rank, False)
    private.set_world(world)
Host._wait = wait
sys.exit(__main__.main(sys.argv[1:]))
"""
# Each call that writes or commits a checkpoint notes its CPU seconds.
CHECKPOINTS = """
import sys, time
from rankfold.elastic import __main__, run, worker
path = sys.argv.pop(1)
def timed(owner, name):
    function = getattr(owner, name)
    def call(*arguments):
        begin = time.thread_time()
        try:
            return function(*arguments)
        finally:
            with open(path, "a") as file:
                print(time.thread_time() - begin, file=file)
    setattr(owner, name, call)
timed(worker.Worker, "_save")
timed(run.Parent, "_commit")
sys.exit(__main__.main(sys.argv[1:]))
"""
# A process with eight stock loaders, each with data workers of its own.
UNSHARED = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
)
opt = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(64, 768), torch.randint(10, (64,)))
loaders = [DataLoader(data, batch_size=8, num_workers=4) for _ in range(8)]
begun = time.time()
for each in [iter(loader) for loader in loaders]:
    x, y = next(each)
    nn.functional.cross_entropy(model(x), y).backward()
opt.step()
print(time.time() - begun, flush=True)
"""


def environment(**variables: str) -> dict[str, str]:
    usual = {"PYTHONPATH": f"{TORCH}:{REPOSITORY}", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **usual, **variables}


def run(arguments: Sequence[object], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(**variables),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        errors = "".join(each.read_text() for each in folder.rglob("rank-*.err"))
        sys.exit(f"benchmarks.elastic: {arguments}: {done.returncode}\n{errors}")
    return done.stdout


def job(
    model: str, steps: int, world: int, *options: str, stock: bool = False, **variables: str
) -> list[Any]:
    """The results of all ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = [HERE / "elastic_job.py", folder, model, steps]
        if stock:
            run([STOCK, world, folder, *script], folder, **variables)
        else:
            command = ["-m", "rankfold.elastic", "run", "--world", world, *options]
            run([*command, "--state", folder / "state", *script], folder, **variables)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def cpu(ranks: list[Any]) -> float:
    """CPU seconds per step of all processes."""
    by_process = {each["pid"]: each["cpu"] / each["steps"] for each in ranks}
    return sum(by_process.values())


def least(rounds: int, *sides: Any) -> list[float]:
    """The least value of each side; they alternate."""
    found = [[side() for side in sides] for _ in range(rounds)]
    return [min(each) for each in zip(*found, strict=True)]


def folded(model: str, steps: int, rounds: int) -> dict[str, Figure]:
    """2, 4 and 8 ranks in one process, against one rank."""
    counts = (1, 2, 4, 8)
    one, *several = least(
        rounds,
        *(lambda n=n: cpu(job(model, steps, n)) for n in counts),  # type: ignore[misc]
    )
    found = {}
    for count, value in zip(counts[1:], several, strict=True):
        how = (
            f"{count} ranks in a process {1e3 * value:.1f} ms of CPU per step, one {1e3 * one:.1f}"
        )
        figure = Figure(value / (count * one), "x", 1.02, "lower", f"{how}; least of {rounds}")
        found[f"fold_{model}_{count}"] = figure
    return found


def alone(steps: int, rounds: int) -> Figure:
    """One rank per process, against stock processes."""
    stock, mine = least(
        rounds,
        lambda: cpu(job("mlp", steps, 2, stock=True)),
        lambda: cpu(job("mlp", steps, 2, "--processes=2")),
    )
    how = f"{1e3 * mine:.1f} ms of CPU per step in two processes, stock {1e3 * stock:.1f}"
    return Figure(mine / stock, "x", 1.02, "lower", f"{how}; least of {rounds}")


def switching(steps: int, rounds: int) -> dict[str, Figure]:
    """EasyScale's figure 11: ranks in turns, with and without what a switch saves and restores,
    and over one rank that makes the passes of all four."""
    found = {}

    def unswitched(model: str) -> float:
        with tempfile.TemporaryDirectory() as name:
            command = ["-c", UNSWITCHED, "run", "--world", 4, "--state", Path(name) / "state"]
            run([*command, HERE / "elastic_job.py", name, model, steps], Path(name))
            return cpu([json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(4)])

    for model in ("mlp", "conv"):
        without, passes, mine = least(
            rounds,
            lambda m=model: unswitched(m),  # type: ignore[misc]
            lambda m=model: cpu(job(m, steps, 1, PASSES="4")),  # type: ignore[misc]
            lambda m=model: cpu(job(m, steps, 4)),  # type: ignore[misc]
        )
        how = f"4 ranks {1e3 * mine:.1f} ms of CPU per step"
        usual = f"{how}, without saving and restoring {1e3 * without:.1f}; least of {rounds}"
        found[f"figure_11_{model}"] = Figure(mine / without, "x", 1.02, "lower", usual)
        single = f"{how}, 4 passes of one rank {1e3 * passes:.1f}; least of {rounds}"
        found[f"over_passes_{model}"] = Figure(mine / passes, "x", None, "lower", single)
    return found


def local_steps(steps: int, rounds: int) -> dict[str, Figure]:
    """EasyScale's figure 13: CPU time of the threads of the first three ranks, and of the last,
    over those of stock processes. The threads in which gloo adds are not counted."""
    count = 4
    stock: list[float] = []
    mine: list[list[float]] = []
    for _ in range(rounds):
        stock.append(sum(each["own"] for each in job("mlp", steps, count, stock=True)) / count)
        mine.append([each["own"] for each in job("mlp", steps, count)])
    first = min(sum(each[:-1]) / (count - 1) for each in mine) / min(stock)
    last = min(each[-1] for each in mine) / min(stock)
    how = f"CPU time of a rank's thread, 4 ranks in a process over stock; least of {rounds}"
    return {
        "figure_13_first": Figure(first, "x", None, "lower", how),
        "figure_13_last": Figure(last, "x", None, "lower", how),
    }


def checkpoints(rounds: int) -> dict[str, Figure]:
    """CPU time of all threads that save a checkpoint, and of torch.save of parameters and the
    optimizer's state in stock processes. The first script has no gradients after a step, as the
    file of torch.save has none; the second has."""
    count = 16

    def checkpoint(**variables: str) -> float:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = ["-c", CHECKPOINTS, folder / "cpu", "run", "--world", 2]
            command += ["--checkpoint-every", 1, "--state", folder / "state"]
            run([*command, HERE / "elastic_job.py", folder, "state", count], folder, **variables)
            times = [float(line) for line in (folder / "cpu").read_text().splitlines()]
            return sum(times) / (count - 1)

    save, *found = least(
        rounds,
        lambda: job("state", count, 2, stock=True, SAVE="1")[0]["save"] / count,
        lambda: checkpoint(DROPS="1"),
        checkpoint,
    )
    how = "{:.1f} ms of CPU for {} MB, torch.save {:.1f} for 50; least of {}"
    texts = [
        how.format(1e3 * each, size, 1e3 * save, rounds)
        for each, size in zip(found, (50, 66), strict=True)
    ]
    return {
        "checkpoint_over_save": Figure(found[0] / save, "x", 1.02, "lower", texts[0]),
        "checkpoint_with_gradients": Figure(found[1] / save, "x", None, "lower", texts[1]),
    }


def first_step(rounds: int) -> Figure:
    """Eight ranks in a process share four data workers, and a process with four for each of them:
    from the loops' begin to the end of the first step."""

    def shared() -> float:
        ranks = job("small", 1, 8, WORKERS="4")
        return max(each["times"][0][1] for each in ranks) - min(each["begun"] for each in ranks)

    def own() -> float:
        with tempfile.TemporaryDirectory() as name:
            return float(run(["-c", UNSHARED], Path(name)))

    own_s, shared_s = least(rounds, own, shared)
    how = f"first step {shared_s:.2f} s, with 32 data workers {own_s:.2f} s; least of {rounds}"
    return Figure(100 * (shared_s / own_s - 1), "%", -60, "lower", how)


def packing(steps: int) -> dict[str, Figure]:
    """EasyScale's figure 10: stock processes on one core, and as many ranks in a process there."""
    found = {}
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        for count in (1, 2, 4, 8, 16):
            stock = job("mlp", steps, count, stock=True)
            mine = job("mlp", steps, count)
            sizes = [
                (ranks[0]["pss"][1] + sum({each["pid"]: each["pss"][0] for each in ranks}.values()))
                / 1e6
                for ranks in (mine, stock)
            ]
            how = f"{count} ranks {sizes[0]:.0f} MB, as many stock processes {sizes[1]:.0f} MB"
            found[f"figure_10_memory_{count}"] = Figure(
                sizes[0] / sizes[1], "x", None, "lower", how
            )
            how = f"steps per CPU second of {count} ranks over that of stock processes"
            found[f"figure_10_speed_{count}"] = Figure(
                cpu(stock) / cpu(mine), "x", None, "higher", how
            )
    finally:
        os.sched_setaffinity(0, cores)
    return found


def memory(steps: int) -> dict[str, Figure]:
    """With the heap as it is, and where each large tensor has pages of its own."""
    found = {}
    pages = {"MALLOC_MMAP_THRESHOLD_": "4194304", "THP_MEM_ALLOC_ENABLE": "1"}
    for name, variables in (("memory_8_over_1", {}), ("memory_8_over_1_pages", pages)):
        (one,) = job("large", steps, 1, **variables)
        eight = job("large", steps, 8, **variables)[0]
        gradients = 7 * one["parameters"]
        value = (eight["peak"] - gradients) / one["peak"]
        how = (
            f"peak of 8 ranks in a process {eight['peak'] / 1e6:.0f} MB, less 7 copies of "
            f"{one['parameters'] / 1e6:.0f} MB of gradients, over {one['peak'] / 1e6:.0f} MB of one"
        )
        found[name] = Figure(value, "x", 1.05, "lower", how)
    return found


def resizes(changes: int) -> Figure:
    """Saved state of 83 MB: 17 MB of parameters with Adam's two averages, and each rank's
    gradients. The run is asked for each
    change, as soon as the one before is done."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            "-m",
            "rankfold.elastic",
            "run",
            "--world",
            "2",
            "--state",
            str(folder / "state"),
        ]
        script = [str(HERE / "elastic_job.py"), name, "state", "100000"]
        with subprocess.Popen(
            [sys.executable, *command, *script], env=environment(), cwd=folder, stderr=-3
        ) as run:
            steps = []
            for each in range(changes):
                steps.append(ask(folder / "state", "scale", processes=2 - each % 2)["step"])
                time.sleep(SETTLED_S)
            ask(folder / "state", "cancel")
            run.wait()
        logs = [(folder / f"state/rank-{rank}.out").read_text() for rank in range(2)]
    ranks = [[tuple(map(float, line.split())) for line in log.splitlines()] for log in logs]
    steps = [step for step in steps[1:] if all(step < len(times) for times in ranks)]
    pauses = sorted(
        min(times[step][0] for times in ranks) - max(times[step - 1][1] for times in ranks)
        for step in steps
    )
    value = pauses[min(len(pauses) - 1, int(0.95 * len(pauses)))]
    median = pauses[len(pauses) // 2]
    how = f"{len(pauses)} changes, 1 and 2 processes, 83 MB of state: median {median:.2f} s"
    return Figure(value, "s", 0.5, "lower", how)


def losses(command: Sequence[object], folder: Path, **variables: str) -> list[str]:
    """The losses of all ranks, one text per step."""
    run(command, folder, **variables)
    (logs,) = {each.parent for each in folder.rglob("rank-0.out")}
    ranks = [(logs / f"rank-{rank}.out").read_text().split() for rank in range(4)]
    return [" ".join(each) for each in zip(*ranks, strict=True)]


def _differences(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The largest difference of each step. A pair: the losses of all ranks in both runs."""
    return [
        max(
            abs(float.fromhex(a) - float.fromhex(b))
            for a, b in zip(*(text.split() for text in pair), strict=True)
        )
        for pair in pairs
    ]


def plot(path: Path, differences: dict[str, list[float]], stage: int) -> None:
    """EasyScale's figure 9: by how much losses differ from those of stock processes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    chart, axes = pyplot.subplots(len(differences), 1, figsize=(7, 5), sharex=True, sharey=True)
    for axis, (level, values) in zip(axes, differences.items(), strict=True):
        axis.plot(values, ".-", markersize=3, linewidth=0.8)
        axis.set(title=level, ylabel="difference")
        axis.set_yscale("symlog", linthresh=1e-9)
        axis.set_yticks([0, 1e-9, 1e-6, 1e-3])
        for at in (stage, 2 * stage):
            axis.axvline(at, linestyle=":", color="grey")
    axes[-1].set(xlabel="step: 4 processes, then 2, then 3 on two types of CPU")
    chart.tight_layout()
    chart.savefig(path, metadata={"Date": None})


def levels(stage: int, out: Path) -> dict[str, Figure]:
    """EasyScale's figure 9: four ranks in 4 processes, in 2, and in 1 + 1 + 2 on two types of CPU,
    for `stage` steps each. The first step, from 0, at which a loss differs from that of stock
    processes on one type; the number of steps if none does. A loss is computed before the sum of
    its step, so another order of the sum shows one step later."""
    steps = 3 * stage
    mixed = "avx2,avx2,default"
    found, differences = {}, {}
    for level, expected in (("D0", stage + 1), ("D1", 2 * stage), ("D2", steps)):
        both = []
        for mine in (False, True):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                script = [HERE / "elastic_job.py", folder, "losses", steps]
                command = [STOCK, 4, folder, *script]
                kind = {"ATEN_CPU_CAPABILITY": "avx2"}
                if level == "D2":
                    kind = CODE_PATH
                if mine:
                    command = [HERE / "elastic_types.py", mixed, "run", "--world", 4]
                    command += ["--determinism", level, "--schedule"]
                    command += [f"0:4,{stage}:2,{2 * stage}:3", "--state", folder / "state"]
                    command += script
                both.append(losses(command, folder, **({} if mine else kind)))
        assert len(both[0]) == len(both[1]) == steps
        differences[level] = _differences(list(zip(*both, strict=True)))
        first = next(
            (n for n, pair in enumerate(zip(*both, strict=True)) if len({*pair}) > 1), steps
        )
        how = (
            f"first of {steps} steps whose losses differ from stock processes'; expected {expected}"
        )
        better: Literal["lower", "higher"] = "higher" if level == "D2" else "lower"
        found[f"figure_9_{level}"] = Figure(first, "step", expected, better, how)
    out.mkdir(parents=True, exist_ok=True)
    plot(out / "elastic.svg", differences, stage)
    return found


def ask(folder: Path, request: str, **fields: int) -> Any:
    """Sends a request to a run, once it listens."""
    while not requests.runs(folder):
        time.sleep(0.05)
    return requests.ask(folder, request=request, **fields)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.elastic", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps: only shows it works")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine = report.machine()
    steps, rounds, changes = (8, 1, 2) if options.quick else (40, options.rounds, 12)
    found: dict[str, Figure] = {}

    def note(**figures: Figure) -> None:
        print(report.table(figures), flush=True)
        found.update(figures)

    with tempfile.TemporaryDirectory() as name:
        value = float(run(["-c", SUM.replace("ROUNDS", str(4 * rounds))], Path(name)))
    how = f"8 tensors of 25 MB in a process, CPU time, least of {4 * rounds}"
    note(local_sum_over_plain=Figure(value, "x", 1.3, "lower", how))
    note(resize_p95_s=resizes(changes))
    note(**levels(8 if options.quick else 48, options.out))
    note(one_over_ddp=alone(steps, rounds))
    note(**folded("mlp", steps, rounds))
    note(**memory(8))
    note(**switching(steps, rounds))
    note(**local_steps(steps, rounds))
    note(**checkpoints(rounds))
    note(first_step_shared=first_step(rounds))
    note(**packing(steps))
    note(**folded("conv", steps, rounds))
    print()
    print(report.table(found), flush=True)
    print(report.write("elastic", machine, found, options.out))


if __name__ == "__main__":
    main()

"""A generated model has the bits of stock DistributedDataParallel, and each worker its samples in
the same order, whatever happens to its run: changes of the number of processes, suspensions,
checkpoints, kills, and at D2 other types of CPU."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from elastic.conftest import FOLDER, LIMIT_S, Python
from elastic.test_determinism import TYPES
from elastic.test_features import HERE, output
from rankfold.elastic import determinism, requests
from rankfold.paths import REPOSITORY
from support.patience import scaled

pytestmark = pytest.mark.torch
SCRIPT = HERE / "generated.py"
EPOCHS, MOST = 2, 8  # as in the script; ranks
Layers = list[list[Any]]
Runs = Callable[..., subprocess.CompletedProcess[str]]


@st.composite
def layers(draw: st.DrawFn, depth: int = 0) -> Layers:
    """Layers as the script makes them."""
    simple = [
        st.tuples(st.just("linear"), st.integers(1, 24)),
        st.tuples(st.sampled_from(["ReLU", "Tanh", "GELU", "Softplus"])),
        st.tuples(st.just("dropout"), st.sampled_from([0.1, 0.5])),
        st.tuples(st.just("norm"), st.sampled_from(["BatchNorm1d", "LayerNorm"])),
        st.tuples(st.just("branches"), st.integers(2, 3)),
    ]
    if depth == 0:
        simple.append(st.tuples(st.just("residual"), layers(depth=1)))
        simple.append(st.tuples(st.just("recurrent"), st.integers(1, 8)))
        simple.append(st.tuples(st.just("convolved"), st.integers(1, 4)))
    return [list(each) for each in draw(st.lists(st.one_of(simple), max_size=5))]


def has_branches(these: Layers) -> bool:
    return any(
        each[0] == "branches" or (each[0] == "residual" and has_branches(each[1])) for each in these
    )


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A world and a description for the script."""
    world = draw(st.integers(1, MOST))
    batch = draw(st.integers(2, 4))  # BatchNorm1d needs two samples
    each_rank = batch * draw(st.integers(1, 4))
    each_rank += draw(st.sampled_from([0, *range(2, batch)]))
    short = draw(st.integers(0, world - 1))  # the sampler repeats so many
    branches = has_branches(found := draw(layers()))
    accumulate = draw(st.sampled_from([1, 1, 2]))
    ddp = {"gradient_as_bucket_view": draw(st.booleans())}
    if branches:
        ddp["find_unused_parameters"] = True
    elif accumulate == 1:
        ddp["static_graph"] = draw(st.booleans())
    workers = draw(st.sampled_from([0, 0, 1, 2]))
    loading = {"num_workers": workers, "persistent_workers": bool(workers and draw(st.booleans()))}
    return {
        "world": world,
        "layers": found,
        "samples": world * each_rank - short,
        "batch": batch,
        "ddp": ddp,
        "loading": loading,
        "accumulate": accumulate,
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 9)),
        "dtype": draw(st.sampled_from(["float32", "float64"])),
        "bucket_mb": draw(st.sampled_from([0.0001, 0.0005, 25])),
        "optimizer": draw(st.sampled_from(["SGD", "AdamW", "RMSprop"])),
        "clip": draw(st.sampled_from([0, 0.5])),
        "collective": draw(st.booleans()),
    }


def steps_of(job: dict[str, Any]) -> int:
    each_rank = -(-job["samples"] // job["world"])
    steps: int = EPOCHS * -(-each_rank // job["batch"])
    return steps


@st.composite
def runs(
    draw: st.DrawFn, known: st.SearchStrategy[dict[str, Any]], *others: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A job, and what happens to its run. Changes are planned, or requested while it runs. `others`
    are requests in addition to the usual ones."""
    job = draw(known)
    world, steps = job["world"], steps_of(job)
    count = st.integers(1, world)
    at = st.integers(1, steps)
    kill = st.tuples(at, st.integers(0, world - 1), st.sampled_from(["process", "parent"]))
    planned = draw(st.booleans())
    request = st.sampled_from(["scale", "checkpoint", "suspend", *others])
    return job, {
        "processes": draw(count),
        "every": draw(st.sampled_from([None, 1, 2, 3])),
        "kills": draw(st.lists(kill, max_size=2, unique_by=lambda each: each[0])),
        "schedule": draw(st.dictionaries(at, count, max_size=4)) if planned else {},
        "requests": [] if planned else draw(st.lists(st.tuples(request, count), max_size=4)),
    }


def request_all(folder: Path, wanted: list[tuple[str, int]], ended: threading.Event) -> None:
    """Sends one request after the other. A run may refuse one: it has ended, or was killed."""
    for name, count in wanted:
        while not requests.runs(folder) and not ended.is_set():
            time.sleep(0.005)
        try:
            word = "suspend" if name == "move" else name
            requests.ask(folder, request=word, **({"processes": count} if name == "scale" else {}))
            if name == "suspend":
                requests.ask(folder, request="resume", processes=count)
            if name == "move":  # to the next type of CPU, in another run
                requests.ask(folder, request="cancel")
                while requests.runs(folder):
                    time.sleep(0.005)
        except requests.Refused as refused:
            print(f"{name}: {refused}")


def run(python: Runs, folder: Path, job: dict[str, Any], events: dict[str, Any]) -> None:
    """Runs the job until it succeeds: a run whose parent was killed is resumed, or begun again."""
    state = folder / "state"
    counts = {0: events["processes"], **events["schedule"]}
    schedule = ",".join(f"{step}:{counts[step]}" for step in sorted(counts))
    kills = (
        [f"{step}:{rank}:{who}:{folder}/killed-{step}" for step, rank, who in events["kills"]]
        if events["every"]
        else []
    )
    options: list[object] = ["--world", job["world"], "--schedule", schedule, "--state", state]
    options += ["--checkpoint-every", events["every"]] if events["every"] else []
    options += ["--determinism", events.get("level", "D1")]
    resume: list[object] = []
    moves = [name for name, _ in events["requests"] if name == "move"]
    ended = threading.Event()
    asking = threading.Thread(target=request_all, args=(state, events["requests"], ended))
    asking.start()

    def start(resume: list[object]) -> subprocess.CompletedProcess[str]:
        command = ("-m", "rankfold.elastic", "run", *options, *resume, SCRIPT, json.dumps(job))
        done = python(*command, KILLS=",".join(kills))
        print(done.returncode, done.stderr)
        return done

    try:
        for _ in range(1 + len(kills) + len(moves)):
            done = start(resume)
            if not resume and "pass --resume, or remove it" in done.stderr:
                done = start(["--resume"])  # state was whole after its parent was killed
            if done.returncode == 0:
                return
            assert done.returncode in (-9, 128 + 9, *(128 + 15 for _ in moves)), output(state)
            saved = any((state / "states").glob("step-*"))
            resume = ["--resume"] if saved else []
        raise AssertionError(f"killed more often than {kills}")
    finally:
        ended.set()
        asking.join(scaled(60))


def samples(logs: dict[str, str]) -> list[Counter[int]]:
    """How often each sample was used, in each epoch."""
    found = [Counter[int]() for _ in range(EPOCHS)]
    for text in logs.values():
        for line in text.splitlines():
            if not line.startswith("all"):
                epoch, _, rest = line.split(" ", 2)
                found[int(epoch)].update(ast.literal_eval(rest[: rest.index("]") + 1]))
    return found


USUAL = {
    "world": 5,
    "layers": [
        ["linear", 12],
        ["norm", "BatchNorm1d"],
        ["residual", [["branches", 2], ["dropout", 0.5]]],
        ["recurrent", 4],
    ],
    "samples": 58,
    "batch": 3,
    "ddp": {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    "loading": {"num_workers": 1, "persistent_workers": True},
    "accumulate": 2,
    "shuffle": True,
    "seed": 3,
    "dtype": "float32",
    "bucket_mb": 0.0001,
    "optimizer": "AdamW",
    "clip": 0.5,
    "collective": True,
}
EVENTS = {
    "processes": 2,
    "every": 2,
    "kills": [(3, 4, "process"), (7, 0, "parent")],
    "schedule": {2: 5, 5: 1, 6: 3},
    "requests": [],
}


def compare(
    python: Runs,
    folder: Path,
    job: dict[str, Any],
    events: dict[str, Any],
    of_stock: Runs | None = None,
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "stock").mkdir(parents=True)
    stock = of_stock or python
    done = stock(HERE / "stock.py", job["world"], folder / "stock", SCRIPT, json.dumps(job))
    expected = output(folder / "stock")
    assert (done.returncode, done.stderr) == (0, ""), expected
    run(python, folder, job, events)
    found = output(folder / "state")
    assert found.keys() == expected.keys()
    for name, text in expected.items():
        assert found[name].splitlines() == text.splitlines(), name
    for used in samples({name: text for name, text in found.items() if name.endswith(".out")}):
        assert set(used) == set(range(job["samples"]))
        assert sum(used.values()) == -(-job["samples"] // job["world"]) * job["world"]


def test_a_generated_model_has_the_bits_of_stock_processes(python: Python, tmp_path: Path) -> None:
    compare(python, tmp_path / "run", USUAL, EVENTS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example((USUAL, {**EVENTS, "schedule": {}, "requests": [("suspend", 1), ("scale", 4)]}))
@given(runs(jobs()))
def test_generated_models_have_the_bits_of_stock_processes(
    python: Python, tmp_path: Path, generated: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    compare(python, tmp_path / "run", *generated)


class Interpreters:
    """Runs Python on one type of CPU after the other, each time in a new process: PyTorch looks for
    limits when it is imported."""

    def __init__(self, *limits: dict[str, str]) -> None:
        self._limits = cycle(limits)
        self.used = 0

    def __call__(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        self.used += 1
        own = {"PYTHONPATH": f"{FOLDER}:{REPOSITORY}", "OMP_NUM_THREADS": "1", **next(self._limits)}
        return subprocess.run(
            [sys.executable, *map(str, words)],
            env={**os.environ, **own, **variables},
            timeout=scaled(LIMIT_S),
            capture_output=True,
            text=True,
            check=False,
        )


@st.composite
def moved(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """A job that runs on several types at D2, what happens to it, and the types."""
    job, events = draw(runs(jobs(), "move", "move"))
    return job, {**events, "level": "D2"}, draw(st.permutations([*TYPES]))


MOVED = {**EVENTS, "level": "D2", "schedule": {}, "requests": [("scale", 4), ("move", 1)]}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(
    max_examples=12,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example((USUAL, MOVED, ["avx512", "default", "avx2"]))
@given(moved())
def test_generated_models_have_equal_bits_on_several_types_of_cpu(
    python: Python, tmp_path: Path, generated: tuple[dict[str, Any], dict[str, Any], list[str]]
) -> None:
    """`python` only shows that PyTorch is there."""
    job, events, types = generated
    on_types = Interpreters(*(TYPES[each] for each in types))
    compare(on_types, tmp_path / "run", job, events, Interpreters(determinism.CODE_PATH))
    if generated == (USUAL, MOVED, types):
        assert on_types.used > 1, "it ran on one type"

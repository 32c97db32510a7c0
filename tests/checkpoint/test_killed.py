"""An uploader that is killed with -9 at any moment, next to a collection: what it said is saved is
there, what is there is whole, and the next one continues."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checkpoint.uploader import content
from rankfold.checkpoint import store as stores
from rankfold.checkpoint.store import Id, Missing
from support.checkpoints import restored
from support.leaks import State


def upload(folder: Path, seed: int, moment: float) -> list[Id]:
    """Runs an uploader and kills it so many seconds after it has begun; gives what it saved, as far
    as it said so."""
    process = subprocess.Popen(
        [sys.executable, "-m", "checkpoint.uploader", str(folder), str(seed)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    timer = threading.Timer(moment, process.kill)  # the moment is what the test is about
    timer.start()
    said = process.stdout.read().split("\n")
    timer.join()
    process.wait()
    process.stdout.close()
    return [each for each in map(Id.parse, said[:-1]) if each]


def check(folder: Path, said: list[Id]) -> None:
    store = stores.open(str(folder), "fleet")
    listed = store.checkpoints("gpt")
    # A save killed between its manifest and its report leaves a checkpoint that it did not report.
    for each in said[-2:]:
        assert each in listed or sum(other > each for other in listed) >= 2, "the last 2 are kept"
    for each in listed:
        try:
            checkpoint = store.checkpoint("gpt", each)
            assert checkpoint.verify() == [] or each not in store.checkpoints("gpt")
            assert restored(checkpoint) == content(checkpoint.manifest.about["seed"])
        except Missing:
            assert each not in store.checkpoints("gpt"), "it was collected meanwhile"


def killed(folder: Path, draw: random.Random, times: int) -> None:
    said: list[Id] = []
    over = threading.Event()

    def collect() -> None:
        store = stores.open(str(folder), "fleet")
        while not over.is_set():
            store.collect("gpt", 2)

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        for n in range(times):
            said += upload(folder, n * 1000, draw.uniform(0, 0.6))
            check(folder, said)
    finally:
        over.set()
        collector.join()
    assert not list(folder.rglob("*.part")), "a file has its name when it is whole"


def test_an_uploader_is_killed(state: State) -> None:
    killed(state.folder / "store", random.Random(1), 2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(5))
def test_an_uploader_is_killed_often(state: State, seed: int) -> None:
    killed(state.folder / "store", random.Random(seed), 40)

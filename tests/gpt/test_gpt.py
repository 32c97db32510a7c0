"""examples/gpt on the software GPU computes what its NumPy twin computes."""

from __future__ import annotations

from pathlib import Path

import cuda
import numpy as np
import pytest

from rankfold.paths import REPOSITORY
from support.fleet import Fleet
from support.leaks import State

from . import reference
from .reference import Config

GPT = REPOSITORY / "examples/gpt"
TEXT = GPT / "text/genesis.txt"

# Sizes that fill no tile, warp or block; more positions, head channels and symbols than a warp.
CONFIGS = [
    Config(batch=2, seq=32, layers=2, channels=64, heads=4, vocab=70),
    Config(batch=3, seq=19, layers=1, channels=24, heads=3, vocab=37),
    Config(batch=1, seq=45, layers=3, channels=80, heads=2, vocab=9),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"B{c.batch}T{c.seq}C{c.channels}")
def test_loss_and_every_gradient(config: Config, state: State, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    params = rng.normal(0.0, 0.2, reference.parameter_count(config)).astype(np.float32)
    batch = rng.integers(0, config.vocab, (2, config.rows)).astype(np.int32)
    (tmp_path / "in").write_bytes(params.tobytes() + batch.tobytes())
    sizes = [config.batch, config.seq, config.layers, config.channels, config.heads, config.vocab]
    program = cuda.build(REPOSITORY / "tests/gpt/gradient.cu")
    command = [str(program), *map(str, sizes), str(tmp_path / "in"), str(tmp_path / "out")]
    with Fleet(state, 1) as fleet:
        job = fleet.start("gradient", command, [0])
        assert job.wait() == [0], job.errors(0)
    out = np.frombuffer((tmp_path / "out").read_bytes(), np.float32).astype(np.float64)

    tokens, targets = batch
    loss, gradient = reference.loss_and_gradient(params.astype(np.float64), tokens, targets, config)
    assert out[0] == pytest.approx(loss, rel=1e-5)
    expected, found = (reference.unpack(each, config) for each in (gradient, out[1:]))
    for name, values in expected.items():
        error = np.abs(found[name] - values).max()
        assert error <= 2e-5 * np.abs(values).max() + 1e-7, f"{name} is off by {error:g}"


def test_training_follows_the_twin(state: State, tmp_path: Path) -> None:
    """Two ranks: broadcast, batches, bucketed all-reduce and AdamW, step by step."""
    steps, world = 12, 2
    program = cuda.build(GPT / "train_gpt.cu")
    command = [str(program), "--steps", str(steps), "--data", str(TEXT), "--out", "params"]
    with Fleet(state, world) as fleet:
        job = fleet.start("gpt", command, list(range(world)), workdir=tmp_path)
        assert job.wait() == [0] * world, job.errors(0)
        printed = [job.output(rank).splitlines() for rank in range(world)]

    symbols, config = reference.text_and_config(TEXT)
    twin = reference.Trainer(symbols, config, world)
    for step in range(steps):
        for rank, loss in enumerate(twin.step()):
            words = printed[rank][step].split()
            assert words[:3] == ["step", str(step), "loss"]
            assert float(words[3]) == pytest.approx(loss, abs=2e-4)
            assert np.float32(words[3]).view(np.uint32) == int(words[4], 16)
    final = [np.fromfile(tmp_path / f"params-rank{rank}.bin", np.float32) for rank in range(world)]
    assert final[0].tobytes() == final[1].tobytes()
    assert np.abs(final[0] - twin.params).max() < 2e-3


def test_a_run_that_loads_a_checkpoint_continues_bit_for_bit(state: State, tmp_path: Path) -> None:
    program = cuda.build(GPT / "train_gpt.cu")
    whole = [str(program), "--steps", "7", "--data", str(TEXT), "--save", "own"]
    with Fleet(state, 1) as fleet:
        job = fleet.start("whole", [*whole, "--save-every", "4"], [0, 0], workdir=tmp_path)
        assert job.wait() == [0, 0], job.errors(0)
        job.detach(discard=True)
        again = fleet.start("again", [*whole, "--load", "own"], [0, 0], workdir=tmp_path)
        assert again.wait() == [0, 0], again.errors(0)
        for rank in range(2):
            assert again.output(rank).splitlines() == job.output(rank).splitlines()[4:]

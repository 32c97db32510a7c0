"""The NumPy twin is right by itself: its gradient is that of its loss, and its loss falls."""

from __future__ import annotations

import numpy as np
import pytest

from rankfold.paths import REPOSITORY

from . import reference

pytestmark = pytest.mark.unit

TEXT = REPOSITORY / "examples/gpt/text/genesis.txt"
SMALL = reference.Config(batch=2, seq=5, layers=2, channels=8, heads=2, vocab=7)


def test_gradient_against_finite_differences() -> None:
    rng = np.random.default_rng(1)
    flat = rng.normal(0.0, 0.3, reference.parameter_count(SMALL))
    tokens, targets = rng.integers(0, SMALL.vocab, (2, SMALL.rows)).astype(np.int32)
    _, gradient = reference.loss_and_gradient(flat, tokens, targets, SMALL)
    for _ in range(40):
        direction = rng.normal(size=flat.size)
        direction /= np.linalg.norm(direction)
        ahead, _ = reference.loss_and_gradient(flat + 1e-5 * direction, tokens, targets, SMALL)
        behind, _ = reference.loss_and_gradient(flat - 1e-5 * direction, tokens, targets, SMALL)
        assert gradient @ direction == pytest.approx((ahead - behind) / 2e-5, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", reference.layout(SMALL))
def test_each_parameter_has_its_gradient(name: str) -> None:
    """A direction within one parameter only, so that no small gradient hides in the sum."""
    rng = np.random.default_rng(2)
    flat = rng.normal(0.0, 0.5, reference.parameter_count(SMALL))
    direction = np.zeros_like(flat)
    view = reference.unpack(direction, SMALL)[name]
    view[...] = rng.normal(size=view.shape)
    tokens, targets = rng.integers(0, SMALL.vocab, (2, SMALL.rows)).astype(np.int32)
    _, gradient = reference.loss_and_gradient(flat, tokens, targets, SMALL)
    ahead, _ = reference.loss_and_gradient(flat + 1e-6 * direction, tokens, targets, SMALL)
    behind, _ = reference.loss_and_gradient(flat - 1e-6 * direction, tokens, targets, SMALL)
    assert gradient @ direction == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-8)


def test_loss_falls_on_the_text() -> None:
    small = reference.Config(batch=2, seq=32)
    symbols, config = reference.text_and_config(TEXT, small)
    assert config.vocab == 70
    trainer = reference.Trainer(symbols, config, world=2)
    losses = [np.mean(trainer.step()) for _ in range(40)]
    assert losses[0] == pytest.approx(np.log(config.vocab), abs=0.1)
    assert np.mean(losses[-5:]) < losses[0] - 0.9


def test_ranks_draw_different_batches() -> None:
    symbols, config = reference.text_and_config(TEXT)
    drawn = {
        reference.batch_of(symbols, config, step, rank, world=4)[0].tobytes()
        for step in range(8)
        for rank in range(4)
    }
    assert len(drawn) == 32

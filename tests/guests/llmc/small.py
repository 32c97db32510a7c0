"""Writes what llm.c's trainer reads, a small model and text; numbers its gradient as our twin does.

Parameters are stored tensor by tensor, those of all layers together, weights as (out, in). The
vocabulary is padded: rows without a symbol must be 0. llm.c's classifier never ends, on any device,
if there are fewer symbols than its 1024 threads read at once (4096; 8192 in bf16).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gpt import reference
from gpt.reference import Array, Config
from numpy.typing import NDArray

VOCAB, PADDED = 8200, 8320
CONFIG = Config(batch=2, seq=64, layers=2, channels=256, heads=4, vocab=VOCAB)
HEADER = 256  # numbers of 4 bytes before everything
MODEL, TEXT = 20240326, 20240520
FP32, BF16 = 3, 5
LENGTH = 20_000  # symbols

C, LAYERS = CONFIG.channels, CONFIG.layers
SHAPES = {
    "wte": (PADDED, C),
    "wpe": (CONFIG.seq, C),
    "ln1_gamma": (LAYERS, C),
    "ln1_beta": (LAYERS, C),
    "qkv_weight": (LAYERS, 3 * C, C),
    "qkv_bias": (LAYERS, 3 * C),
    "proj_weight": (LAYERS, C, C),
    "proj_bias": (LAYERS, C),
    "ln2_gamma": (LAYERS, C),
    "ln2_beta": (LAYERS, C),
    "up_weight": (LAYERS, 4 * C, C),
    "up_bias": (LAYERS, 4 * C),
    "down_weight": (LAYERS, C, 4 * C),
    "down_bias": (LAYERS, C),
    "final_gamma": (C,),
    "final_beta": (C,),
}
SIZES = [int(np.prod(shape)) for shape in SHAPES.values()]


def header(*numbers: int) -> bytes:
    return np.array([*numbers, *[0] * (HEADER - len(numbers))], np.int32).tobytes()


def parameters() -> NDArray[np.float32]:
    rng = np.random.default_rng(7)
    parts = []
    for name, shape in SHAPES.items():
        gamma = name.endswith("gamma")
        weight = name in ("wte", "wpe") or name.endswith("weight")
        parts.append(rng.normal(float(gamma), 0.02 * weight, shape).astype(np.float32))
    parts[0][VOCAB:] = 0.0
    return np.concatenate([part.ravel() for part in parts])


def symbols() -> NDArray[np.uint16]:
    """A walk: it can be learned."""
    steps = np.random.default_rng(8).integers(0, 3, LENGTH)
    return (np.cumsum(steps) % 64).astype(np.uint16)


def write(folder: Path) -> None:
    """fp32.bin, bf16.bin, text.bin."""
    values = parameters()
    sizes = (CONFIG.seq, VOCAB, LAYERS, CONFIG.heads, C, PADDED)
    rounded = ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    (folder / "fp32.bin").write_bytes(header(MODEL, FP32, *sizes) + values.tobytes())
    (folder / "bf16.bin").write_bytes(header(MODEL, BF16, *sizes) + rounded.tobytes())
    (folder / "text.bin").write_bytes(header(TEXT, 1, LENGTH) + symbols().tobytes())


def to_twin(flat: Array) -> dict[str, Array]:
    """Its parameters, or their gradient, by the twin's names and shapes."""
    found = {}
    parts = np.split(flat, np.cumsum(SIZES)[:-1])
    for (name, shape), part in zip(SHAPES.items(), parts, strict=True):
        values = part.reshape(shape)
        if name == "wte":
            found[name] = values[:VOCAB]
        elif shape[0] != LAYERS or name.startswith("final"):
            found[name] = values
        else:
            found |= {f"{layer}.{name}": values[layer].T for layer in range(LAYERS)}
    return found


def twin_gradient(world: int) -> tuple[float, dict[str, Array]]:
    """Mean loss and gradient of the first batch of each rank."""
    flat = np.zeros(reference.parameter_count(CONFIG))
    views = reference.unpack(flat, CONFIG)
    for name, values in to_twin(parameters().astype(np.float64)).items():
        views[name][:] = values
    text, rows = symbols().astype(np.int32), CONFIG.rows
    loss, gradient = 0.0, np.zeros_like(flat)
    for at in range(0, world * rows, rows):
        batch = text[at : at + rows], text[at + 1 : at + rows + 1]
        its_loss, its_gradient = reference.loss_and_gradient(flat, *batch, CONFIG)
        loss += its_loss / world
        gradient += its_gradient / world
    return loss, reference.unpack(gradient, CONFIG)

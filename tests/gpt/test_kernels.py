"""Every kernel of examples/gpt on the software GPU, against the NumPy twin.

Sizes fill no tile, warp or block, so that the edges count; inputs are the same on every run.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest
from numpy.typing import NDArray
from softgpu.harness import Device, Space, loader

from rankfold.paths import REPOSITORY

from . import reference
from .reference import Config

F32 = np.float32
Floats = NDArray[np.float64]
ROW = (32, 4)  # block of the one-warp-per-row kernels
CONFIG = Config(batch=2, seq=37, channels=80, heads=2, vocab=45)
M, C = CONFIG.rows, CONFIG.channels
KERNELS = f'#include "{REPOSITORY / "examples/gpt/kernels.cuh"}"\n'


class Gpu:
    """Runs a kernel of the GPT on arrays."""

    def __init__(self, space: Space, load: Any):
        self.space, self.load = space, load
        self.module = load.module(cuda.ptx(KERNELS).encode(), 1)

    def run(self, name: str, grid: Any, block: Any, *arguments: Any) -> None:
        self.space.launch(self.load.function(self.module, name), grid, block, *arguments)
        self.space.check()

    def put(self, values: Any) -> int:
        values = np.asarray(values)
        return self.space.put(values if values.dtype == np.int32 else values.astype(F32))

    def empty(self, count: int) -> int:
        """Filled with what no kernel may leave there."""
        return self.put(np.full(count, np.nan))

    def get(self, address: int, *shape: int) -> Floats:
        count = int(np.prod(shape))
        return self.space.read(address, count, F32).reshape(shape).astype(np.float64)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with tempfile.TemporaryDirectory(prefix="rankfold-gpt-") as folder, Device() as device:
        cache = REPOSITORY / "build/tests/kernels"
        with loader(cache, Path(folder) / "c.sock") as load:
            yield Gpu(device.space(), load)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    """Numbers that float32 holds exactly."""
    return rng.normal(size=shape).astype(F32).astype(np.float64)


def close(found: Floats, expected: Floats, tolerance: float = 3e-6) -> None:
    """Within `tolerance` of the largest number, everywhere."""
    assert found.shape == expected.shape
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() <= tolerance * scale + 1e-12


def rows_grid(rows: int) -> int:
    return (rows + ROW[1] - 1) // ROW[1]


def blocks(count: int) -> int:
    return (count + 127) // 128


@pytest.mark.parametrize("kind", ["nn", "nt", "tn"])
@pytest.mark.parametrize(("m", "n", "k"), [(33, 70, 20), (64, 32, 16), (5, 3, 1), (74, 45, 80)])
@pytest.mark.parametrize("extras", ["", "bias", "add", "bias+add"])
def test_gemm(
    gpu: Gpu, rng: np.random.Generator, kind: str, m: int, n: int, k: int, extras: str
) -> None:
    a, b, bias, add = normal(rng, m, k), normal(rng, k, n), normal(rng, n), normal(rng, m, n)
    pointers = [gpu.put(a.T if kind[0] == "t" else a), gpu.put(b.T if kind[1] == "t" else b)]
    pointers.append(gpu.put(bias) if "bias" in extras else 0)
    pointers.append(gpu.put(add) if "add" in extras else 0)
    out = pointers[3] or gpu.empty(m * n)
    argument = struct.pack("<5Q3i4x", *pointers, out, m, n, k)
    gpu.run(f"gemm_{kind}", ((n + 31) // 32, (m + 31) // 32), (8, 8), argument)
    close(gpu.get(out, m, n), a @ b + bias * ("bias" in extras) + add * ("add" in extras))


def test_column_sum(gpu: Gpu, rng: np.random.Generator) -> None:
    x, out = normal(rng, M, 3 * C), gpu.empty(3 * C)
    gpu.run("column_sum", blocks(3 * C), 128, gpu.put(x), out, M, 3 * C)
    close(gpu.get(out, 3 * C), x.sum(axis=0))


def test_embedding(gpu: Gpu, rng: np.random.Generator) -> None:
    v, b, t = CONFIG.vocab, CONFIG.batch, CONFIG.seq
    tokens = rng.integers(0, v, M).astype(np.int32)
    wte, wpe, out = normal(rng, v, C), normal(rng, t, C), gpu.empty(M * C)
    arguments = [gpu.put(tokens), gpu.put(wte), gpu.put(wpe), out, M, t, C]
    gpu.run("embedding_forward", blocks(M * C), 128, *arguments)
    close(gpu.get(out, M, C), wte[tokens] + np.tile(wpe, (b, 1)))

    dout, dwte = normal(rng, M, C), normal(rng, v, C)
    found, dwpe = gpu.put(dwte), gpu.empty(t * C)
    arguments = [gpu.put(tokens), gpu.put(dout), found, M, v, C]
    gpu.run("token_embedding_backward", blocks(v * C), 128, *arguments)
    np.add.at(dwte, tokens, dout)
    close(gpu.get(found, v, C), dwte)
    arguments = [gpu.put(dout), dwpe, b, t, C]
    gpu.run("position_embedding_backward", blocks(t * C), 128, *arguments)
    close(gpu.get(dwpe, t, C), dout.reshape(b, t, C).sum(axis=0))


def test_layernorm(gpu: Gpu, rng: np.random.Generator) -> None:
    x, gamma, beta, dy = normal(rng, M, C), normal(rng, C), normal(rng, C), normal(rng, M, C)
    out, mean, rstd = gpu.empty(M * C), gpu.empty(M), gpu.empty(M)
    inputs = [gpu.put(x), gpu.put(gamma), gpu.put(beta)]
    gpu.run("layernorm_forward", rows_grid(M), ROW, *inputs, out, mean, rstd, M, C)
    expected = reference.layernorm_forward(x, gamma, beta)
    close(gpu.get(out, M, C), expected[0])
    close(gpu.get(mean, M), expected[1])
    close(gpu.get(rstd, M), expected[2])

    stream, dgamma, dbeta = normal(rng, M, C), gpu.empty(C), gpu.empty(C)
    din = gpu.put(stream)
    arguments = [gpu.put(dy), inputs[0], inputs[1], mean, rstd, din, M, C]
    gpu.run("layernorm_backward_input", rows_grid(M), ROW, *arguments)
    arguments = [gpu.put(dy), inputs[0], mean, rstd, dgamma, dbeta, M, C]
    gpu.run("layernorm_backward_params", blocks(C), 128, *arguments)
    dx, expected_gamma, expected_beta = reference.layernorm_backward(dy, x, gamma, *expected[1:])
    close(gpu.get(din, M, C), stream + dx)
    close(gpu.get(dgamma, C), expected_gamma)
    close(gpu.get(dbeta, C), expected_beta)


def test_attention(gpu: Gpu, rng: np.random.Generator) -> None:
    b, t, heads = CONFIG.batch, CONFIG.seq, CONFIG.heads
    qkv, dout, square = normal(rng, M, 3 * C), normal(rng, M, C), b * heads * t * t
    inputs, dy = gpu.put(qkv), gpu.put(dout)
    weights, out, dscores = gpu.empty(square), gpu.empty(M * C), gpu.empty(square)
    dqkv, shape = gpu.empty(M * 3 * C), struct.pack("<4i", b, t, C, heads)
    grid = rows_grid(b * heads * t)
    gpu.run("attention_forward", grid, ROW, inputs, weights, out, shape)
    expected, expected_out = reference.attention_forward(qkv, CONFIG)
    close(gpu.get(weights, b, heads, t, t), expected)
    close(gpu.get(out, M, C), expected_out)
    gpu.run("attention_backward_query", grid, ROW, inputs, weights, dy, dscores, dqkv, shape)
    gpu.run("attention_backward_key_value", grid, ROW, inputs, weights, dy, dscores, dqkv, shape)
    close(gpu.get(dqkv, M, 3 * C), reference.attention_backward(qkv, expected, dout, CONFIG))


def test_gelu(gpu: Gpu, rng: np.random.Generator) -> None:
    x, dy = np.concatenate([np.linspace(-12, 12, 501), normal(rng, 500)]), normal(rng, 1001)
    x = x.astype(F32).astype(np.float64)
    inputs, out, dx = gpu.put(x), gpu.empty(x.size), gpu.put(dy)
    gpu.run("gelu_forward", blocks(x.size), 128, inputs, out, x.size)
    gpu.run("gelu_backward", blocks(x.size), 128, inputs, dx, x.size)
    close(gpu.get(out, x.size), reference.gelu_forward(x))
    close(gpu.get(dx, x.size), reference.gelu_backward(x, dy))


def test_cross_entropy(gpu: Gpu, rng: np.random.Generator) -> None:
    v, logits = CONFIG.vocab, 5.0 * normal(rng, M, CONFIG.vocab)
    targets = rng.integers(0, v, M).astype(np.int32)
    found, losses, total = gpu.put(logits), gpu.empty(M), gpu.empty(1)
    gpu.run("cross_entropy", rows_grid(M), ROW, found, gpu.put(targets), losses, M, v)
    gpu.run("mean", 1, 32, losses, total, M)
    logits = logits.astype(F32).astype(np.float64)
    expected, gradient = reference.cross_entropy(logits, targets)
    close(gpu.get(losses, M), expected)
    close(gpu.get(found, M, v), gradient)
    close(gpu.get(total, 1), expected.mean(keepdims=True))


def test_adamw(gpu: Gpu, rng: np.random.Generator) -> None:
    count, lr, beta1, beta2, epsilon, decay, t = 1000, 0.01, 0.9, 0.95, 1e-8, 0.1, 7
    p, g, m, v = (normal(rng, count) for _ in range(4))
    v = v**2
    rule = [lr, beta1, beta2, epsilon, decay, 1 - beta1**t, 1 - beta2**t]
    buffers = [gpu.put(each) for each in (p, g, m, v)]
    gpu.run("adamw", blocks(count), 128, *buffers, count, struct.pack("<7f", *rule))
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    step = (m / rule[5]) / (np.sqrt(v / rule[6]) + epsilon)
    close(gpu.get(buffers[0], count), p - lr * (step + decay * p))
    close(gpu.get(buffers[2], count), m)
    close(gpu.get(buffers[3], count), v)


def test_same_bits_every_time(gpu: Gpu, rng: np.random.Generator) -> None:
    """Two launches on the same inputs, compared bit for bit."""
    a, b = gpu.put(normal(rng, 70, 90)), gpu.put(normal(rng, 90, 50))
    bits = []
    for _ in range(2):
        out = gpu.empty(70 * 50)
        argument = struct.pack("<5Q3i4x", a, b, 0, 0, out, 70, 50, 90)
        gpu.run("gemm_nn", (2, 3), (8, 8), argument)
        bits.append(gpu.space.read(out, 70 * 50, F32).tobytes())
    assert bits[0] == bits[1]

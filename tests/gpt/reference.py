"""A NumPy twin of ``examples/gpt``: the same batches, initial values, model and optimizer.

Used to check the CUDA kernels one by one and the whole training run. It computes in float64
by default, and is itself checked against finite differences. Names follow the CUDA
source. Shapes: B sequences of T tokens give M = B * T rows; C channels, V symbols.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tokens = NDArray[np.int32]
MASK = (1 << 64) - 1
GELU_SCALE = 0.7978845608
GELU_CUBE = 0.044715


@dataclass(frozen=True)
class Config:
    """The sizes of a model; defaults as in train_gpt.cu."""

    batch: int = 4
    seq: int = 48
    layers: int = 2
    channels: int = 64
    heads: int = 4
    vocab: int = 70

    @property
    def rows(self) -> int:
        return self.batch * self.seq


# ---- batches and initial values --------------------------------------------------------------


def mix(x: int) -> int:
    """One output of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def read_text(path: Path) -> tuple[Tokens, int]:
    """The text as symbols and the size of the vocabulary."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    values, symbols = np.unique(data, return_inverse=True)
    return symbols.astype(np.int32), len(values)


def batch_of(
    symbols: Tokens, config: Config, step: int, rank: int, world: int, seed: int = 1
) -> tuple[Tokens, Tokens]:
    """(tokens, targets), each of M symbols."""
    starts = [
        mix((seed << 40) ^ ((step * world + rank) * config.batch + b)) % (len(symbols) - config.seq)
        for b in range(config.batch)
    ]
    tokens = np.concatenate([symbols[s : s + config.seq] for s in starts])
    targets = np.concatenate([symbols[s + 1 : s + 1 + config.seq] for s in starts])
    return tokens, targets


def layout(config: Config) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters, in the order in which they are in memory."""
    c = config.channels
    shapes: dict[str, tuple[int, ...]] = {"final_gamma": (c,), "final_beta": (c,)}
    for layer in reversed(range(config.layers)):
        shapes |= {
            f"{layer}.down_weight": (4 * c, c),
            f"{layer}.down_bias": (c,),
            f"{layer}.up_weight": (c, 4 * c),
            f"{layer}.up_bias": (4 * c,),
            f"{layer}.ln2_gamma": (c,),
            f"{layer}.ln2_beta": (c,),
            f"{layer}.proj_weight": (c, c),
            f"{layer}.proj_bias": (c,),
            f"{layer}.qkv_weight": (c, 3 * c),
            f"{layer}.qkv_bias": (3 * c,),
            f"{layer}.ln1_gamma": (c,),
            f"{layer}.ln1_beta": (c,),
        }
    return shapes | {"wte": (config.vocab, c), "wpe": (config.seq, c)}


def unpack(flat: Array, config: Config) -> dict[str, Array]:
    """Named views into a flat array of parameters."""
    views, at = {}, 0
    for name, shape in layout(config).items():
        size = int(np.prod(shape))
        views[name] = flat[at : at + size].reshape(shape)
        at += size
    assert at == flat.size, "not the parameters of this configuration"
    return views


def parameter_count(config: Config) -> int:
    return sum(int(np.prod(shape)) for shape in layout(config).values())


def _normal(shape: tuple[int, ...], deviation: float, state: list[int]) -> Array:
    values = np.empty(int(np.prod(shape)))
    for i in range(values.size):
        u = ((mix(state[0]) >> 11) + 0.5) * 2.0**-53
        angle = (mix(state[0] + 1) >> 11) * 2.0**-53 * 6.283185307179586
        values[i] = deviation * np.sqrt(-2.0 * np.log(u)) * np.cos(angle)
        state[0] += 2
    return values.reshape(shape)


def initial_parameters(config: Config, seed: int = 1) -> Array:
    """The parameters that rank 0 broadcasts: GPT-2's initialisation."""
    flat = np.zeros(parameter_count(config))
    p, state = unpack(flat, config), [mix(seed)]
    deviation = float(np.float32(0.02))
    residual = float(np.float32(0.02) / np.sqrt(np.float32(2.0 * config.layers)))
    p["wte"][:] = _normal(p["wte"].shape, deviation, state)
    p["wpe"][:] = _normal(p["wpe"].shape, deviation, state)
    for name in p:
        if name.endswith("gamma"):
            p[name][:] = 1.0
    for layer in range(config.layers):
        for name, spread in [
            ("qkv", deviation),
            ("proj", residual),
            ("up", deviation),
            ("down", residual),
        ]:
            weight = p[f"{layer}.{name}_weight"]
            weight[:] = _normal(weight.shape, spread, state)
    return flat.astype(np.float32).astype(np.float64)


# ---- single operations, named as the kernels -------------------------------------------------


def layernorm_forward(x: Array, gamma: Array, beta: Array) -> tuple[Array, Array, Array]:
    """(output, mean, reciprocal deviation), rows of x."""
    mean = x.mean(axis=1)
    rstd = 1.0 / np.sqrt(((x - mean[:, None]) ** 2).mean(axis=1) + 1e-5)
    return (x - mean[:, None]) * rstd[:, None] * gamma + beta, mean, rstd


def layernorm_backward(
    dy: Array, x: Array, gamma: Array, mean: Array, rstd: Array
) -> tuple[Array, Array, Array]:
    """(dx, dgamma, dbeta)."""
    normal = (x - mean[:, None]) * rstd[:, None]
    d = dy * gamma
    spread = d - d.mean(axis=1, keepdims=True)
    spread -= normal * (d * normal).mean(axis=1, keepdims=True)
    return spread * rstd[:, None], (dy * normal).sum(axis=0), dy.sum(axis=0)


def _heads(x: Array, config: Config, which: int) -> Array:
    """(B, heads, T, head size) of q, k or v (0, 1, 2) in rows of 3 C numbers."""
    shape = (config.batch, config.seq, x.shape[1] // config.channels, config.heads, -1)
    return x.reshape(shape)[:, :, which].transpose(0, 2, 1, 3)


def attention_forward(qkv: Array, config: Config) -> tuple[Array, Array]:
    """(weights (B, heads, T, T), output (M, C))."""
    q, k, v = (_heads(qkv, config, i) for i in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones((config.seq, config.seq), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = (weights @ v).transpose(0, 2, 1, 3).reshape(config.rows, config.channels)
    return weights, out


def attention_backward(qkv: Array, weights: Array, dout: Array, config: Config) -> Array:
    """The gradient of qkv."""
    q, k, v = (_heads(qkv, config, i) for i in range(3))
    dy = _heads(dout, config, 0)
    dweights = dy @ v.transpose(0, 1, 3, 2)
    dscores = weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))
    dscores /= np.sqrt(q.shape[-1])
    parts = [dscores @ k, dscores.transpose(0, 1, 3, 2) @ q, weights.transpose(0, 1, 3, 2) @ dy]
    rows = [part.transpose(0, 2, 1, 3).reshape(config.rows, config.channels) for part in parts]
    return np.concatenate(rows, axis=1)


def gelu_forward(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(GELU_SCALE * (x + GELU_CUBE * x**3)))


def gelu_backward(x: Array, dy: Array) -> Array:
    t = np.tanh(GELU_SCALE * (x + GELU_CUBE * x**3))
    slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * x**2)
    return dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)


def cross_entropy(logits: Array, targets: Tokens) -> tuple[Array, Array]:
    """(loss of each row, gradient of their mean)."""
    rows = np.arange(len(targets))
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1)
    gradient = np.exp(shifted) / total[:, None]
    gradient[rows, targets] -= 1.0
    return np.log(total) - shifted[rows, targets], gradient / len(targets)


# ---- the model -------------------------------------------------------------------------------


def _layer_forward(p: dict[str, Array], x: Array, config: Config) -> tuple[Array, dict[str, Array]]:
    a: dict[str, Array] = {"input": x}
    a["ln1"], a["mean1"], a["rstd1"] = layernorm_forward(x, p["ln1_gamma"], p["ln1_beta"])
    a["qkv"] = a["ln1"] @ p["qkv_weight"] + p["qkv_bias"]
    a["weights"], a["attention"] = attention_forward(a["qkv"], config)
    a["middle"] = x + a["attention"] @ p["proj_weight"] + p["proj_bias"]
    norm = layernorm_forward(a["middle"], p["ln2_gamma"], p["ln2_beta"])
    a["ln2"], a["mean2"], a["rstd2"] = norm
    a["up"] = a["ln2"] @ p["up_weight"] + p["up_bias"]
    a["gelu"] = gelu_forward(a["up"])
    return a["middle"] + a["gelu"] @ p["down_weight"] + p["down_bias"], a


def _layer_backward(
    p: dict[str, Array], g: dict[str, Array], a: dict[str, Array], dy: Array, config: Config
) -> Array:
    def linear(name: str, x: Array, dout: Array) -> Array:
        g[f"{name}_weight"][:], g[f"{name}_bias"][:] = x.T @ dout, dout.sum(axis=0)
        return dout @ p[f"{name}_weight"].T

    dup = gelu_backward(a["up"], linear("down", a["gelu"], dy))
    dx, g["ln2_gamma"][:], g["ln2_beta"][:] = layernorm_backward(
        linear("up", a["ln2"], dup), a["middle"], p["ln2_gamma"], a["mean2"], a["rstd2"]
    )
    dy = dy + dx
    dqkv = attention_backward(a["qkv"], a["weights"], linear("proj", a["attention"], dy), config)
    dx, g["ln1_gamma"][:], g["ln1_beta"][:] = layernorm_backward(
        linear("qkv", a["ln1"], dqkv), a["input"], p["ln1_gamma"], a["mean1"], a["rstd1"]
    )
    return dy + dx


def loss_and_gradient(
    flat: Array, tokens: Tokens, targets: Tokens, config: Config
) -> tuple[float, Array]:
    """The mean loss of a batch and its gradient, in the parameters' layout."""
    gradient = np.zeros_like(flat)
    p, g = unpack(flat, config), unpack(gradient, config)
    layers = [
        {k[2:]: v for k, v in p.items() if k.startswith(f"{i}.")} for i in range(config.layers)
    ]
    layer_grads = [
        {k[2:]: v for k, v in g.items() if k.startswith(f"{i}.")} for i in range(config.layers)
    ]
    x = p["wte"][tokens] + np.tile(p["wpe"], (config.batch, 1))
    acts = []
    for layer in layers:
        x, a = _layer_forward(layer, x, config)
        acts.append(a)
    final, mean, rstd = layernorm_forward(x, p["final_gamma"], p["final_beta"])
    losses, dlogits = cross_entropy(final @ p["wte"].T, targets)
    dx, g["final_gamma"][:], g["final_beta"][:] = layernorm_backward(
        dlogits @ p["wte"], x, p["final_gamma"], mean, rstd
    )
    for i in reversed(range(config.layers)):
        dx = _layer_backward(layers[i], layer_grads[i], acts[i], dx, config)
    g["wte"][:] = dlogits.T @ final
    np.add.at(g["wte"], tokens, dx)
    g["wpe"][:] = dx.reshape(config.batch, config.seq, -1).sum(axis=0)
    return float(losses.mean()), gradient


# ---- training --------------------------------------------------------------------------------


@dataclass
class Trainer:
    """All ranks of a run at once: they share the parameters, each has its own batches."""

    symbols: Tokens
    config: Config
    world: int
    lr: float = 3e-3
    seed: int = 1
    steps_done: int = 0
    params: Array = field(init=False)
    first: Array = field(init=False)
    second: Array = field(init=False)

    def __post_init__(self) -> None:
        self.params = initial_parameters(self.config, self.seed)
        self.first, self.second = np.zeros_like(self.params), np.zeros_like(self.params)

    def step(self) -> list[float]:
        """One step; the loss of each rank."""
        losses, gradients = [], []
        for rank in range(self.world):
            tokens, targets = batch_of(
                self.symbols, self.config, self.steps_done, rank, self.world, self.seed
            )
            loss, gradient = loss_and_gradient(self.params, tokens, targets, self.config)
            losses.append(loss)
            gradients.append(gradient)
        self.steps_done += 1
        self._adamw(np.mean(gradients, axis=0), self.steps_done)
        return losses

    def _adamw(self, g: Array, t: int) -> None:
        self.first = 0.9 * self.first + 0.1 * g
        self.second = 0.95 * self.second + 0.05 * g * g
        step = (self.first / (1 - 0.9**t)) / (np.sqrt(self.second / (1 - 0.95**t)) + 1e-8)
        self.params = self.params - self.lr * (step + 0.01 * self.params)


def text_and_config(path: Path, config: Config | None = None) -> tuple[Tokens, Config]:
    """The text's symbols, and `config` with their vocabulary."""
    symbols, vocab = read_text(path)
    return symbols, replace(config or Config(), vocab=vocab)

"""A few training steps of a framework as the machine has it: `frameworks.py NAME`.

Each line is a loss and its bits. Nothing here knows of rankfold: the same program runs on plain
CUDA. PyTorch trains an MLP, a ResNet-18 and a GPT-2-small with dropout and AMP, by deterministic
settings.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STEPS = 5


def line(name: str, step: int, loss: float) -> None:
    print(f"{name} step {step} loss {loss:.8f} {struct.pack('>f', loss).hex()}", flush=True)


# ---- PyTorch ----


def resnet18(nn: Any) -> Any:
    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int):
            super().__init__()
            self.a = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.b = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(3))
            self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.plain = stride == 1 and inside == outside

        def forward(self, x: Any) -> Any:
            y = self.norms[1](self.b(self.norms[0](self.a(x)).relu()))
            return (y + (x if self.plain else self.norms[2](self.short(x)))).relu()

    widths = (64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [
        Block(before, width, 2 if width > before else 1)
        for before, width in zip((64, *widths), widths, strict=False)
    ]
    first = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return nn.Sequential(*first, nn.MaxPool2d(3, 2, 1), *blocks, *last)


def gpt2(nn: Any) -> Any:
    """124 million parameters."""
    layer = nn.TransformerEncoderLayer(
        768, 12, 3072, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
            self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.head = nn.Linear(768, 50257, bias=False)

        def forward(self, words: Any, places: Any, mask: Any) -> Any:
            x = self.words(words) + self.places(places)
            return self.head(self.layers(x, mask=mask, is_causal=True))

    return Model()


@dataclass(frozen=True)
class Training:
    """A model with its input, and what it is to answer. `amp`: in 16 bits where that is usual."""

    name: str
    model: Any
    inputs: tuple[Any, ...]
    target: Any
    amp: bool = False

    def loss(self, run: Any) -> Any:
        """`run`: the model, or what computes it."""
        import torch

        with torch.autocast("cuda", torch.bfloat16, enabled=self.amp):
            out = run(*self.inputs)
        return torch.nn.functional.cross_entropy(out.flatten(0, -2).float(), self.target.flatten())


NAMES = "mlp,resnet18,gpt2"


def trainings(scale: float = 1, only: str = NAMES) -> Iterator[Training]:
    """Each is made when it is requested. `scale`: so many times the usual batch."""
    import torch
    from torch import nn

    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    random = torch.Generator().manual_seed(1)

    def numbers(count: int, *shape: int) -> Any:
        return torch.randn(int(count * scale), *shape, generator=random).cuda()

    def classes(most: int, count: int, *shape: int) -> Any:
        return torch.randint(most, (int(count * scale), *shape), generator=random).cuda()

    def mlp() -> Training:
        model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
        return Training("mlp", model.cuda(), (numbers(128, 784),), classes(10, 128))

    def resnet() -> Training:
        images = numbers(16, 3, 64, 64)
        return Training("resnet18", resnet18(nn).cuda(), (images,), classes(10, 16))

    def gpt() -> Training:
        length = 128
        mask = torch.full((length, length), float("-inf")).triu(1).cuda()
        words = (classes(50257, 4, length), torch.arange(length).cuda(), mask)
        return Training("gpt2", gpt2(nn).cuda(), words, classes(50257, 4, length), amp=True)

    torch.manual_seed(0)
    for name, made in zip(NAMES.split(","), (mlp, resnet, gpt), strict=True):
        if name in only.split(","):
            yield made()


def train_torch(compiled: bool) -> None:
    import torch

    for each in trainings():
        torch.manual_seed(2)
        optimizer = torch.optim.AdamW(each.model.parameters(), lr=1e-3)
        run = torch.compile(each.model) if compiled else each.model
        for step in range(STEPS):
            loss = each.loss(run)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            line(each.name, step, loss.item())


# ---- CuPy, JAX ----


def compute_cupy() -> None:
    import cupy

    x = cupy.asarray([[((i * 7 + j * 3) % 11) / 11 for j in range(64)] for i in range(64)], "f4")
    scaled = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x + 1", "scaled")
    for step in range(STEPS):
        x = scaled(x @ x.T) / 64
        x = x / cupy.abs(x).max()
        line("cupy", step, float(x.sum()))
    spectrum = cupy.fft.fft(x[0])
    line("cupy fft", 0, float(cupy.abs(spectrum).max()))
    line("cupy solve", 0, float(cupy.linalg.solve(x @ x.T + cupy.eye(64, dtype="f4"), x)[0].sum()))


def train_jax() -> None:
    import jax
    import jax.numpy as jnp

    assert jax.devices()[0].platform == "gpu", f"JAX computes on {jax.devices()[0].platform}"
    key = jax.random.PRNGKey(0)
    x, y = jax.random.normal(key, (256, 64)), jnp.zeros((256, 10))
    params = {"w": jax.random.normal(key, (64, 10)), "b": jnp.zeros(10)}

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((jax.nn.relu(x @ params["w"]) + params["b"] - y) ** 2).mean()

    @jax.jit
    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda a, b: a - 0.1 * b, params, grads), value

    for number in range(STEPS):
        params, value = step(params, x, y)
        line("jax", number, float(value))


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    {
        "torch": lambda: train_torch(compiled=False),
        "compiled": lambda: train_torch(compiled=True),
        "cupy": compute_cupy,
        "jax": train_jax,
    }[sys.argv[1]]()

"""A rank that compares convolutions and batch normalisation, and their gradients, with the CPU's.

Uses torch's defaults. Each case prints one line; a difference beyond torch's own tolerances ends
the run.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
# (size of x, channels of y, kernel, further arguments)
CONVOLUTIONS: list[tuple[tuple[int, ...], int, int | tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9, 8), 4, 3, {}),
    ((3, 4, 7, 7), 6, 1, {}),
    ((2, 4, 8, 8), 6, 1, {"stride": 2}),
    ((2, 4, 7, 6), 1, 3, {"padding": 1}),
    ((2, 4, 11, 9), 6, 3, {"stride": 2, "padding": 1}),
    ((2, 4, 11, 9), 6, (3, 2), {"stride": (1, 3), "padding": (2, 1), "dilation": (2, 1)}),
    ((2, 6, 8, 8), 9, 3, {"groups": 3, "padding": 1}),
    ((2, 6, 8, 8), 6, 3, {"groups": 6, "padding": 1}),
    ((1, 5, 4, 4), 3, 4, {}),
    ((2, 3, 6, 6), 4, 2, {"padding": "same"}),
    ((2, 3, 13), 4, 3, {"padding": 1, "stride": 2}),
    ((2, 4, 12), 4, 5, {"dilation": 2, "groups": 2}),
    ((2, 2, 5, 6, 4), 4, 3, {"padding": 1}),
    ((1, 4, 5, 6, 4), 4, 2, {"stride": 2, "groups": 2}),
]
TRANSPOSED: list[tuple[tuple[int, ...], int, int, dict[str, Any]]] = [
    ((2, 3, 5, 4), 4, 3, {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 4, 6), 4, 2, {"groups": 2}),
    ((2, 1, 5, 4), 3, 3, {}),
]
# torch sends those of fewer than three dimensions, and of bfloat16, to its own kernels
NORMS = [(3, 4, 7), (2, 3, 6, 5), (1, 2, 40, 30), (2, 3, 3, 4, 2)]


def parts(
    module: nn.Module, x: torch.Tensor, slope: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """The result and, with the result's gradient, those of x and the parameters."""
    x = x.detach().requires_grad_()
    y = module(x)
    if slope is None:
        return (y,)
    return y, *torch.autograd.grad(y, [x, *module.parameters()], slope)


def compare(name: str, module: nn.Module, x: torch.Tensor, backward: bool = True) -> None:
    """On the device against the CPU, which computes in double."""
    kind = x.dtype
    exact = copy.deepcopy(module).double()
    y = exact(x.double())
    slope = torch.randn(y.shape, dtype=torch.float64).to(kind) if backward else None
    expected = parts(exact, x.double(), None if slope is None else slope.double())
    got = parts(copy.deepcopy(module).cuda(), x.cuda(), None if slope is None else slope.cuda())
    print(name, flush=True)
    for mine, right in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), right.to(mine.dtype))


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x
    if x.dim() in LAYOUTS:
        yield x.contiguous(memory_format=LAYOUTS[x.dim()])


def convolutions() -> None:
    kinds = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
    for kind, (size, out, kernel, more) in itertools.product(TYPES, CONVOLUTIONS):
        for x in layouts(torch.randn(size).to(kind)):
            module = kinds[len(size)](size[1], out, kernel, bias=kind == torch.float32, **more)
            layout = "NCHW" if x.is_contiguous() else "NHWC"
            compare(f"{kind} {size} {out} {kernel} {more} {layout}", module.to(kind), x)
    for size, out, kernel, more in TRANSPOSED:
        transposed = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d}[len(size)]
        compare(f"transposed {size}", transposed(size[1], out, kernel, **more), torch.randn(size))


def normalisations() -> None:
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    for size in NORMS:
        for kind, x in itertools.product(TYPES[:3], layouts(torch.randn(size) * 3 + 2)):
            module = kinds[len(size)](size[1])
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module = module.double() if kind == torch.float64 else module
            compare(f"norm {kind} {size} {x.stride()}", module, x.to(kind))
            compare(f"norm {kind} {size} {x.stride()} inference", module.eval(), x.to(kind), False)


def main() -> None:
    torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    convolutions()
    normalisations()
    print("all compared")


if __name__ == "__main__":
    main()

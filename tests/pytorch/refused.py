"""Calls PyTorch's functions that need libraries which rankfold does not serve: an ordinary program.

It prints the end of each exception, and compares the result of the CPU instead."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.testing import assert_close

device = torch.device("cuda")
square, numbers = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.arange(1, 5)


def sparse(x: Tensor) -> Tensor:
    return torch.sparse.mm(x.to_sparse_csr(), x)


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "fft": (torch.fft.fft, square),
    "rfft": (torch.fft.rfft, square),
    "cholesky": (torch.linalg.cholesky, square),
    "inv": (torch.linalg.inv, square),
    "eigvalsh": (torch.linalg.eigvalsh, square),
    "sparse": (sparse, square),
    "gcd": (lambda x: torch.gcd(x, x + 2), numbers),
}

for name, (call, x) in CALLS.items():
    try:
        call(x.to(device))
    except RuntimeError as error:
        print(name, "raised", str(error).strip().splitlines()[-1], flush=True)
    else:
        print(name, "raised nothing")
    assert_close(call(x.to(device).cpu()).to(device).cpu(), call(x))
assert (square.to(device) + 1).cpu().equal(square + 1)
print("the device works")

"""Ranks with faults and bad device code, which handle PyTorch's exceptions.

Usage: faults.py LIBRARY MACHINE_CODE: kernels.cu, with PTX and without. By rank: a failed
assertion, an illegal address, a recursion without end, and what does no lasting harm. Each prints
the errors.
"""

from __future__ import annotations

import ctypes
import os
import sys

import torch
from torch import Tensor, nn

DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
PTX = ".version {}\n.target sm_75\n.address_size 64\n.visible .entry odd() {{ {} ret; }}"
library, machine_code = sys.argv[1:]


def stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def lasting(fault: str) -> None:
    """Every later call fails in the same way, and the process can free its tensors and end."""
    x = torch.ones(10, device=DEVICE)
    try:
        if fault == "assertion":
            x[torch.tensor([3, 20], device=DEVICE)]
        elif fault == "address":
            ctypes.CDLL(library).launch_write(ctypes.c_void_p(0x700000000000), stream())
        else:
            ctypes.CDLL(library).launch_recursion(address(x), stream())
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    try:
        print((x + 1).tolist())
    except RuntimeError as error:
        print("still:", str(error).splitlines()[0])


def launch(text: str) -> int:
    """Loads a module as Triton does, and launches its kernel. Returns the first error."""
    driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    return (
        driver.cuModuleLoadData(ctypes.byref(module), text.encode())
        or driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"odd")
        or driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream(), None, None)
    )


def bad_code() -> None:
    x = torch.ones(1000, device=DEVICE)
    print("with PTX:", ctypes.CDLL(library).launch_double(address(x), 1000, stream()))
    print("machine code:", ctypes.CDLL(machine_code).launch_double(address(x), 1000, stream()))
    print("newer PTX:", launch(PTX.format("99.9", "")))
    print("an instruction of newer PTX:", launch(PTX.format("99.9", ".reg .b32 r; frob.b32 r, 1;")))
    print("an instruction of no GPU here:", launch(PTX.format("9.0", "brkpt;")))
    print("cut off:", launch(PTX.format("9.0", "")[:-1]))
    torch.cuda.synchronize()
    print("the sum is", x.sum().item())


def trained(disturbed: bool) -> tuple[Tensor, int]:
    """The parameters after some steps, and how often memory was exhausted."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    failures = 0
    for step in range(6):
        kept = []
        try:
            while disturbed and step % 2:  # a batch that is too large
                kept.append(torch.ones(64 << 20, dtype=torch.uint8, device=DEVICE))
        except torch.OutOfMemoryError:
            failures += 1
        del kept
        optimizer.zero_grad()
        model(torch.ones(8, 64, device=DEVICE)).sum().backward()
        optimizer.step()
    return model.weight.detach(), failures


def passing() -> None:
    bad_code()
    (disturbed, failures), (plain, none) = trained(True), trained(False)
    print("out of memory:", failures, none)
    print("trained on:", torch.equal(disturbed, plain))


def main() -> None:
    torch.cuda.set_device(DEVICE)
    rank = int(os.environ["RANK"])
    if rank == 3:
        passing()
    else:
        lasting(["assertion", "address", "recursion"][rank])


if __name__ == "__main__":
    main()

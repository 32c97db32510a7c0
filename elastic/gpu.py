"""The GPU of a process, if the run has any: the process sees one, as `cuda:0`.

Collectives get copies of its tensors in host memory, as gloo makes them itself, so that sums have
gloo's bits. CUDA starts in the process, not in the one that it is forked from.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .errors import NotSupported

VISIBLE = "CUDA_VISIBLE_DEVICES"
# By default, the types of GPU that `python -m rankfold.elastic compare` has covered.
COVERED = Path("~/.cache/rankfold/elastic-gpus.json")


class Gpu(NamedTuple):
    """One for a process: as CUDA_VISIBLE_DEVICES names it, and how many bytes of it the process may
    take; 0: all."""

    name: str
    memory: int = 0


def see(gpu: Gpu | None) -> None:
    """CUDA shows the calling process this GPU alone when it starts; None: none."""
    os.environ[VISIBLE] = gpu.name if gpu else ""


def start(gpu: Gpu) -> None:
    """Starts CUDA. Its operators have the same bits in each run from here on. Raises NotSupported
    if this PyTorch does not see the GPU."""
    if not torch.cuda.is_available():
        raise NotSupported(f"GPU {gpu.name}: PyTorch {torch.__version__} does not see it")
    torch.cuda.init()
    if gpu.memory:
        _, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(min(1.0, gpu.memory / total))
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def started() -> bool:
    """Whether CUDA has started in this process. False in a fork of such a process."""
    return bool(torch.cuda.is_initialized())


def synchronize() -> None:
    """Waits for the work of all workers of the process."""
    if started():
        torch.cuda.synchronize()


# ---- types of GPU ----


def kind() -> str:
    """The type of the GPU, and the versions on which bits depend: as a text that begins with GPU.
    Empty if the process has none."""
    if not started():
        return ""
    found = torch.cuda.get_device_properties(0)
    return (
        f"GPU {found.name} {found.major}.{found.minor} with {found.multi_processor_count} "
        f"multiprocessors, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}"
    )


def covered(file: Path) -> list[str]:
    """The types of GPU in a file that `compare` has written."""
    try:
        kinds: list[str] = json.loads(file.expanduser().read_text())
    except (OSError, ValueError):
        return []
    return kinds


def check_covered(file: Path) -> None:
    """Raises NotSupported unless a comparison covers the GPU of this process."""
    if (mine := kind()) not in covered(file):
        raise NotSupported(
            f"{mine}: no comparison with stock PyTorch covers it. Run "
            "`python -m rankfold.elastic compare` once, on this machine with this Python"
        )


# ---- state of the process that belongs to one worker at a time ----


def generators() -> tuple[torch.Generator, ...]:
    """CUDA's default generator of random numbers, where there is a GPU."""
    found: tuple[torch.Generator, ...] = torch.cuda.default_generators[:1] if started() else ()
    return found


def generator_states() -> tuple[torch.Tensor, ...]:
    """The seed of each, and how many numbers it has given. They are in host memory, and to get them
    waits for no kernel."""
    return tuple(each.get_state() for each in generators())


def set_generator_states(states: tuple[torch.Tensor, ...]) -> None:
    for each, state in zip(generators(), states, strict=False):  # none where CUDA has not started
        each.set_state(state)


def seed_generators() -> None:
    """As in a new process of PyTorch's: any seed, until the script sets one."""
    for each in generators():
        each.seed()


def defaults() -> dict[str, Any]:
    """PyTorch's settings for CUDA that decide bits in all threads of a process."""
    if not started():
        return {}
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return {
        "torch.backends.cudnn": (cudnn.enabled, cudnn.deterministic, cudnn.fp32_precision),
        "torch.backends.cuda.matmul": (
            matmul.fp32_precision,
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
        ),
    }


def check_deterministic() -> None:
    """Raises NotSupported if the script has allowed operators whose bits vary from run to run."""
    if not started():
        return
    if not torch.are_deterministic_algorithms_enabled():
        raise NotSupported("torch.use_deterministic_algorithms(False): bits would vary on GPUs")
    if torch.backends.cudnn.benchmark:
        raise NotSupported("torch.backends.cudnn.benchmark: times would decide bits")


# ---- tensors ----


def holds(tensor: torch.Tensor) -> bool:
    """Whether the tensor is in a GPU's memory."""
    return bool(tensor.device.type == "cuda")


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it is in host memory, else a copy there. Waits for it."""
    if not holds(tensor):
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=started())
    return copy.copy_(tensor.detach())


def back(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`value`, which is in host memory, where the tensor `like` is. Any stream may use it."""
    if not holds(like):
        return value
    found = value.to(like.device)
    if started():
        torch.cuda.current_stream().synchronize()
    return found


def future() -> torch.futures.Future[Any]:
    """One for tensors of this process. It may be set and waited for on different streams."""
    devices = [torch.device("cuda", 0)] if started() else None
    return torch.futures.Future(devices=devices)

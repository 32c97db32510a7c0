"""State of the process that belongs to one logical worker at a time: generators of random numbers,
the default process group, the rank in the environment, the script's module, the current folder,
PyTorch's default dtype, sys.stdout and sys.stderr, and descriptors 1 and 2, to which libraries and
programs that the script starts write."""

from __future__ import annotations

import os
import random
import sys
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import torch

from . import gpu, private
from .generators import Numpy

VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK")


class Generators(NamedTuple):
    """States of the generators that every process has, and of CUDA's where there is a GPU."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    cuda: tuple[torch.Tensor, ...] = ()


class Context(NamedTuple):
    python: Any
    numpy: Numpy
    torch: torch.Tensor
    world: Any
    variables: tuple[str | None, ...]
    main: ModuleType
    output: tuple[int, int] | None
    streams: tuple[Any, Any]
    folder: str | None
    dtype: torch.dtype
    cuda: tuple[torch.Tensor, ...]


_output: tuple[int, int] | None = None  # descriptors of the files to which 1 and 2 refer


def write_to(output: tuple[int, int] | None) -> None:
    """From now on descriptors 1 and 2 refer to these files. None: they stay."""
    global _output
    if output is None or output == _output:
        return
    for descriptor, file in enumerate(output, 1):
        os.dup2(file, descriptor)
    _output = output


def save_generators() -> Generators:
    return Generators(
        random.getstate(), numpy.random.get_state(), torch.get_rng_state(), gpu.generator_states()
    )


def load_generators(generators: Generators) -> None:
    random.setstate(generators.python)
    numpy.random.set_state(generators.numpy)
    torch.set_rng_state(generators.torch)
    gpu.set_generator_states(generators.cuda)


def use_threads(count: int) -> None:
    """PyTorch's operators use `count` threads in the calling one from now on: their number decides
    bits. PyTorch would take the number that another worker has set last."""
    if torch.get_num_threads() != count:  # even to set the same number changes what MKL does
        torch.set_num_threads(count)


def defaults() -> dict[str, Any]:
    """PyTorch's settings that decide bits in all threads of a process: no worker has its own."""
    return {
        "torch.use_deterministic_algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        # Where a script has used newer settings, get_float32_matmul_precision raises an error.
        "torch.set_float32_matmul_precision": torch.backends.mkldnn.matmul.fp32_precision,
        "torch.backends.mkldnn": torch.backends.mkldnn.enabled,
    } | gpu.defaults()


def _folder() -> str | None:
    """The current one; None: it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def save() -> Context:
    return Context(
        random.getstate(),
        Numpy(),
        torch.get_rng_state(),
        private.world(),
        tuple(os.environ.get(name) for name in VARIABLES),
        sys.modules["__main__"],
        _output,
        (sys.stdout, sys.stderr),
        _folder(),
        torch.get_default_dtype(),
        gpu.generator_states(),
    )


def load(context: Context) -> None:
    random.setstate(context.python)
    context.numpy.restore()
    torch.set_rng_state(context.torch)
    gpu.set_generator_states(context.cuda)
    private.set_world(context.world)
    for name, value in zip(VARIABLES, context.variables, strict=True):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.modules["__main__"] = context.main
    write_to(context.output)
    sys.stdout, sys.stderr = context.streams
    torch.set_default_dtype(context.dtype)
    if context.folder is not None and context.folder != _folder():
        os.chdir(context.folder)

"""EasyScale's runtime: the logical workers of a PyTorch job take turns in one process per device.

A script of DistributedDataParallel calls `wrap`, `local`, `epochs` and `steps`. They have an effect
only in a logical worker of `python -m rankfold.elastic run`; under torchrun, and under plain
`python`, they return what they are given. This package imports no other of rankfold's, and PyTorch
only where logical workers run.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

from . import current

__all__ = ["epochs", "local", "steps", "wrap"]
Loader = TypeVar("Loader", bound=Iterable[Any])


def wrap(model: Any, optimizer: Any, scheduler: Any = None) -> tuple[Any, Any, Any]:
    """The same model (a DistributedDataParallel), optimizer and scheduler. From here on, the
    logical workers of a process have one copy of the parameters, and one optimizer steps.

    Raises NotSupported, with the reason, for what the runtime cannot run."""
    worker = current.worker()
    if worker is not None:
        worker.wrap(model, optimizer)
    return model, optimizer, scheduler


def local(**variables: Any) -> SimpleNamespace:
    """An object with these variables. Each logical worker has its own."""
    return SimpleNamespace(**variables)


def epochs(count: int) -> range:
    """The numbers of the epochs, from 0."""
    return range(count)


def steps(loader: Loader) -> Loader:
    """The batches of this logical worker's loader."""
    return loader

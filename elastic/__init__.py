"""EasyScale's runtime: the logical workers of a PyTorch job take turns in one process per device.

A script of DistributedDataParallel calls `wrap`, `local`, `epochs` and `steps`. They have an effect
only in a logical worker of `python -m rankfold.elastic run`; under torchrun, and under plain
`python`, they return what they are given. This package imports no other of rankfold's, and PyTorch
only where logical workers run.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from . import current

if TYPE_CHECKING:
    from .eligibility import Eligibility

__all__ = ["eligible", "epochs", "local", "steps", "wrap"]
Loader = TypeVar("Loader", bound=Iterable[Any])


def wrap(model: Any, optimizer: Any, scheduler: Any = None) -> tuple[Any, Any, Any]:
    """The same model (a DistributedDataParallel), optimizer and scheduler. From here on, the
    logical workers of a process have one copy of the parameters, and one optimizer steps.

    Raises NotSupported, with the reason, for what the runtime cannot run."""
    worker = current.worker()
    if worker is not None:
        worker.wrap(model, optimizer, scheduler)
    return model, optimizer, scheduler


def local(**variables: Any) -> SimpleNamespace:
    """An object with these variables. Each logical worker has its own, and they stay when the
    number of processes changes. A value with `state_dict` and `load_state_dict` (a GradScaler, for
    example), or `get_state` and `set_state` (a torch.Generator), stays the same object."""
    kept = SimpleNamespace(**variables)
    worker = current.worker()
    if worker is not None:
        worker.local(kept)
    return kept


def epochs(count: int) -> Iterable[int]:
    """The numbers of the epochs, from 0; in a script that continues, from the one in which it
    was."""
    worker = current.worker()
    return range(count) if worker is None else worker.progress.epochs(count)


def steps(loader: Loader) -> Loader:
    """The batches of this logical worker's loader; in a script that continues, the rest of them.
    Between two batches the number of processes may change."""
    worker = current.worker()
    return loader if worker is None else worker.steps(loader)  # type: ignore[return-value]


def eligible(model: Any, *inputs: Any, at_most: float = 1.25, **named: Any) -> Eligibility:
    """Whether a job with this model may use several types of CPU, which needs determinism D2.

    Runs one forward and backward pass of a copy of the model with these inputs, and measures each
    of its operators with and without D2 in processes of their own, which takes seconds. The result
    has `mixes`; the operators that D2 slows down, and by how much; and the reasons if the job
    should keep to one type: an operator whose code path D2 does not limit, or a step that takes
    more than `at_most` times as long. Print it to see all.

    Raises NotSupported for a device or a CPU of a type that no comparison covers."""
    from .eligibility import examine

    return examine(model, inputs, named, at_most)

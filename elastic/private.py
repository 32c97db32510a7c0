"""All names of PyTorch's without documented interface, and the versions that were tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

TESTED = ("2.13",)  # major and minor version


class UntestedVersion(Exception):
    """The installed PyTorch is none of those that the runtime was tested with."""


def check_version(version: str) -> None:
    if ".".join(version.split(".")[:2]) not in TESTED:
        raise UntestedVersion(
            f"PyTorch {version} is not supported: the elastic runtime was tested with "
            f"{' and '.join(TESTED)} only"
        )


def own_world() -> Any:
    """State of torch.distributed for one logical worker, without a default process group."""
    return c10d._World()


def world() -> Any:
    return c10d._world


def set_world(each: Any) -> None:
    """`dist.get_rank()` and its like refer to this state from now on."""
    c10d._world = each


def set_default(group: Any, name: str) -> None:
    """Makes `group` the default process group, as `init_process_group("gloo")` would."""
    state = c10d._world
    state.default_pg = group
    state.pg_map[group] = ("gloo", None)
    state.pg_names[group] = name
    state.pg_group_ranks[group] = {rank: rank for rank in range(group.size())}
    state.pg_backend_config[group] = "cpu:gloo"


def unset_default() -> None:
    state = c10d._world
    group, state.default_pg = state.default_pg, None
    for each in (state.pg_map, state.pg_names, state.pg_group_ranks, state.pg_backend_config):
        each.pop(group, None)


def replace(name: str, function: Callable[..., Any]) -> None:
    """Replaces a function of torch.distributed, also where PyTorch itself finds it."""
    setattr(dist, name, function)
    setattr(c10d, name, function)


def finished(future: torch.futures.Future[Any]) -> Any:
    """The Work that ends with a future."""
    return torch._C._distributed_c10d._create_work_from_future(future)


def at_end_of_backward(function: Callable[[], None]) -> bool:
    """Calls `function` when the gradients of the backward pass that this thread runs are complete,
    before DistributedDataParallel waits for its all-reduces. False if no backward pass runs."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(function)
    except RuntimeError:
        return False
    return True


def scheduled(step: Any) -> bool:
    """Whether a learning-rate scheduler counts the calls of an optimizer's `step`."""
    return hasattr(step, "_wrapped_by_lr_sched")


def mark_scheduled(step: Any) -> None:
    """A scheduler takes the function `step` for the one that it wrapped itself."""
    step._wrapped_by_lr_sched = True


def mark_stepped(optimizer: Any) -> None:
    """A scheduler does not warn that this optimizer has made no step."""
    optimizer._opt_called = True

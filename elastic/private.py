"""All names of PyTorch's without documented interface, and the versions that were tested."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch._utils import ExceptionWrapper as ExceptionWrapper
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils.data import dataloader
from torch.utils.data._utils import pin_memory
from torch.utils.data._utils import worker as data_worker

TESTED = ("2.13",)  # major and minor version
MODULE = frozenset(vars(torch.nn.Module()))  # attributes that are PyTorch's own, not the script's


class UntestedVersion(Exception):
    """The installed PyTorch is none of those that the runtime was tested with."""


def check_version(version: str) -> None:
    if ".".join(version.split(".")[:2]) not in TESTED:
        raise UntestedVersion(
            f"PyTorch {version} is not supported: the elastic runtime was tested with "
            f"{' and '.join(TESTED)} only"
        )


def import_all() -> None:
    """Imports what PyTorch otherwise imports when a script makes its first optimizer, which takes
    more than a second. It starts no threads."""
    torch.optim.SGD([torch.zeros(1)], 0.1)


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


def is_compiled(model: Any) -> bool:
    """Whether torch.compile has been applied to a part of the model."""
    return any(
        each._compiled_call_impl is not None or hasattr(each, "_orig_mod")
        for each in model.modules()
    )


def refuse_graphs(refuses: Callable[[str], None]) -> None:
    """Calls `refuses` with the name of what a script uses, when it calls a function that it has
    compiled, compiles a module, or begins a CUDA graph. Where `refuses` returns, these work."""
    stock = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        if options.get("disable"):
            return stock(model, **options)
        if model is None:
            return lambda model: compile(model, **options)
        if isinstance(model, torch.nn.Module):
            refuses("torch.compile")
            return stock(model, **options)
        compiled = stock(model, **options)

        @functools.wraps(model)
        def call(*arguments: Any, **named: Any) -> Any:
            refuses("torch.compile")
            return compiled(*arguments, **named)

        return call

    torch.compile = compile
    for kind in (torch.cuda.CUDAGraph, torch.accelerator.Graph):

        def new(cls: Any, *arguments: Any, stock: Any = kind.__new__, **named: Any) -> Any:
            refuses("CUDA graphs")
            return stock(cls) if stock is object.__new__ else stock(cls, *arguments, **named)

        kind.__new__ = new


def joins(model: Any) -> bool:
    """Whether the model is in the context of its `join`."""
    enabled: bool = model._join_config.enable
    return enabled


def has_hooks(model: Any) -> bool:
    """Whether a script has registered a communication hook."""
    return bool(model._comm_hooks)


def before_forward(function: Callable[[Any], None]) -> None:
    """Calls `function` with each DistributedDataParallel before its forward pass."""
    stock = DistributedDataParallel._pre_forward

    def pre_forward(model: Any, *inputs: Any, **named: Any) -> Any:
        function(model)
        return stock(model, *inputs, **named)

    DistributedDataParallel._pre_forward = pre_forward


def reduce_with(model: Any, group: Any) -> None:
    """The reducer calls this process group from now on, the model itself that which it had."""
    model.reducer._update_process_group(group)


def arrange_buckets(model: Any) -> bool:
    """Once, after its first backward pass, the reducer arranges buckets in the order in which
    gradients became ready; returns whether it has. Rank 0 broadcasts them as two int32 tensors: the
    indices of the parameters with the number of buckets, and the number of parameters of each."""
    if model.reducer._rebuild_buckets():
        model._has_rebuilt_buckets = True
        return True
    return False


def use_buckets(model: Any, buckets: list[list[int]]) -> None:
    """A new reducer has these buckets, given as indices of parameters, in the order in which they
    are reduced. `dist.Reducer` calls no process group meanwhile."""
    parameters, sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    stock = dist._compute_bucket_assignment_by_size

    def recorded(_: Any, limits: list[int], *others: Any) -> tuple[list[list[int]], list[int]]:
        return list(reversed(buckets)), [limits[-1]] * len(buckets)

    dist._compute_bucket_assignment_by_size = recorded
    try:
        model._ddp_init_helper(parameters, sparse, names, model.static_graph)
    finally:
        dist._compute_bucket_assignment_by_size = stock
    if model.static_graph:
        model.reducer._set_static_graph()
        model.logger._set_static_graph()


def allow_data_workers() -> None:
    """A DataLoader with more data workers than this process has cores does not warn."""
    dataloader.DataLoader.check_worker_number_rationality = lambda _: None


def loader_iterator(loader: Any) -> Any:
    """The part that all iterators of a DataLoader have. It draws the data workers' seed."""
    return dataloader._BaseDataLoaderIter(loader)


def restart(iterator: Any, loader: Any) -> None:
    iterator._reset(loader)


def indices(iterator: Any) -> Iterator[Any]:
    """The sampler's values for one batch after another."""
    indices: Iterator[Any] = iterator._sampler_iter
    return indices


def seed(iterator: Any) -> int:
    base_seed: int = iterator._base_seed
    return base_seed


def set_seed(iterator: Any, seed: int) -> None:
    iterator._base_seed = seed


def fetcher(iterator: Any) -> Any:
    """Its `fetch` makes a batch from indices."""
    return dataloader._DatasetKind.create_fetcher(
        iterator._dataset_kind,
        iterator._dataset,
        iterator._auto_collation,
        iterator._collate_fn,
        iterator._drop_last,
    )


def pinned(iterator: Any, data: Any) -> Any:
    """The batch, in pinned memory if the loader has that and the machine an accelerator."""
    if iterator._pin_memory:
        return pin_memory.pin_memory(data, iterator._pin_memory_device)
    return data


def start_data_worker(iterator: Any, number: int) -> Any:
    """Sets seeds as DataLoader does in data worker `number`. Returns what get_worker_info gives."""
    base = iterator._base_seed
    random.seed(base + number)
    torch.manual_seed(base + number)
    numpy.random.seed(data_worker._generate_state(base, number))
    info = data_worker.WorkerInfo(
        id=number, num_workers=iterator._num_workers, seed=base + number, dataset=iterator._dataset
    )
    set_data_worker(info)
    return info


def set_data_worker(info: Any) -> None:
    data_worker._worker_info = info

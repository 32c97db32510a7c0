"""One logical worker: what its script's calls of the runtime do."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from . import private
from .errors import NotSupported
from .group import Group
from .host import Host


def _shared(models: dict[int, Any]) -> None:
    """The parameters of all models are those of the first one, which are equal."""
    first, *others = [models[rank] for rank in sorted(models)]
    for other in others:
        pairs = zip(other.parameters(), first.parameters(), strict=True)
        for mine, its in pairs:
            if not torch.equal(mine, its):
                raise NotSupported("parameters that differ between ranks when they are wrapped")
            mine.data = its.data


def _settings(optimizer: Any) -> list[dict[str, Any]]:
    groups = optimizer.param_groups
    return [{k: v for k, v in each.items() if k != "params"} for each in groups]


def _stepped(optimizers: dict[int, tuple[Any, Callable[[], Any]]]) -> Any:
    """The first optimizer makes the step of all; they have its state afterwards."""
    ranks = sorted(optimizers)
    first, step = optimizers[ranks[0]]
    others = [optimizers[rank][0] for rank in ranks[1:]]
    for rank, other in zip(ranks[1:], others, strict=True):
        if _settings(other) != _settings(first):
            raise NotSupported(
                f"rank {rank} and rank {ranks[0]} have different settings in their optimizers"
            )
    result = step()
    for other in others:
        for mine, its in zip(other.param_groups, first.param_groups, strict=True):
            for parameter, owner in zip(mine["params"], its["params"], strict=True):
                if owner in first.state:
                    other.state[parameter] = first.state[owner]
    return result


class Worker:
    def __init__(self, host: Host, rank: int) -> None:
        self.host = host
        self.rank = rank
        self.group: Group | None = None
        self._wrapped = 0

    def bring(
        self, key: tuple[Any, ...], value: Any, act: Callable[[dict[int, Any]], Any]
    ) -> Callable[[], Any]:
        return self.host.meetings.bring(self.rank, key, value, act)

    def wrap(self, model: Any, optimizer: Any) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise NotSupported(
                f"a model of type {type(model).__name__}: wrap a DistributedDataParallel"
            )
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise NotSupported(f"an optimizer of type {type(optimizer).__name__}")
        self._wrapped += 1
        self.bring(("wrap", self._wrapped), model, _shared)()
        if model.static_graph and self.group is not None:
            self.group.waits_in_backward = True
        self._step_once(optimizer, self._wrapped)

    def _step_once(self, optimizer: Any, number: int) -> None:
        """`optimizer.step` waits for the workers of the process, and one of them makes the step."""
        own_step = optimizer.step
        scheduled = private.scheduled(own_step)
        calls = 0

        def step(this: Any, closure: Any = None) -> Any:
            nonlocal calls
            if closure is not None:
                raise NotSupported("an optimizer that calls a closure (LBFGS, for example)")
            calls += 1
            key = (f"the step of optimizer {number}, call", calls)
            result = self.bring(key, (this, own_step), _stepped)()
            if self.group is not None:
                self.group.waits_in_backward = False
            private.mark_stepped(this)
            return result

        if scheduled:
            private.mark_scheduled(step)
        optimizer.step = MethodType(step, optimizer)

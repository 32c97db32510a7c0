"""The operators that a step of a model calls, each with its arguments."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from . import context, private


class Call(NamedTuple):
    """`name`: as below torch.ops, such as aten.mm.default."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Format(str):
    """A torch.memory_format, such as torch.preserve_format."""


class Recorded(NamedTuple):
    """Calls of one operator with arguments of the same sizes: the first one, how many there were,
    and the names of the modules that made them."""

    call: Call
    calls: int
    modules: tuple[str, ...]


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def copied(value: Any) -> Any:
    """The same with copies of all tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, torch.memory_format):
        return Format(str(value))  # PyTorch's own cannot be pickled
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    return type(value)(map(copied, value)) if isinstance(value, (list, tuple)) else value


def _key(value: Any) -> str:
    """Equal for arguments that differ in the content of tensors only."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.stride()} {value.dtype}"
    if isinstance(value, dict):
        return str({name: _key(each) for name, each in value.items()})
    return str([_key(each) for each in value]) if isinstance(value, (list, tuple)) else repr(value)


class _Recorder(private.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[tuple[str, str], Call] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.modules: dict[tuple[str, str], set[str]] = {}
        self.inside: list[str] = []  # modules whose forward pass runs

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        name = str(operator)
        if operator.is_view or "empty" in name:  # these compute nothing
            return operator(*arguments, **options)
        key = name, _key([arguments, options])
        if key not in self.calls:
            self.calls[key] = Call(name, copied(tuple(arguments)), copied(options))
        self.counts[key] += 1
        self.modules.setdefault(key, set()).update(self.inside[-1:])
        return operator(*arguments, **options)

    def follow(self, model: torch.nn.Module) -> None:
        for name, module in model.named_modules():
            kind = f"{name} ({type(module).__name__})" if name else type(module).__name__
            module.register_forward_pre_hook(lambda *_, kind=kind: self.inside.append(kind))
            module.register_forward_hook(lambda *_: self.inside.pop() and None, always_call=True)


def recorded(
    model: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> list[Recorded]:
    """The operators of one forward pass of a copy of the model, and of the backward pass of the sum
    of what it returns. The model and the generators of random numbers stay as they are."""
    if isinstance(model, DistributedDataParallel):
        model = model.module
    model = copy.deepcopy(model)
    recorder = _Recorder()
    recorder.follow(model)
    generators = context.save_generators()
    try:
        with recorder:
            results = tensors_of(model(*inputs, **named))
            sums = [each.sum() for each in results if each.requires_grad]
            if sums:
                sum(sums[1:], sums[0]).backward()
    finally:
        context.load_generators(generators)
    return [
        Recorded(call, recorder.counts[key], tuple(sorted(recorder.modules[key])))
        for key, call in recorder.calls.items()
    ]


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Those of a model's result, which may be an object with attributes."""
    found = list(tensors(result))
    return found or list(tensors(vars(result) if hasattr(result, "__dict__") else {}))

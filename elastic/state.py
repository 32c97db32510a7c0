"""Saved state, with which a run continues in other processes: files of a folder.

`shared.pt` has parameters and optimizers' state, which all logical workers have in common.
`rank-<r>.pt` has what is a logical worker's own, except its gradients, which are in
`gradients-<r>.pt`: workers of a process with equal ones, as after a step of
DistributedDataParallel, have them in the file of one of them. Without gradients there is none.
`threads` has the number of threads with which operators begin. The format is PyTorch's, with
pickles of the script's variables, and an end: see `sealing`.
"""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import context, determinism, gpu, private, sealing
from .errors import NotSupported
from .sealing import Damaged

if TYPE_CHECKING:
    from .worker import Worker, Wrapped

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(each) for pair in value.items() for each in pair)
    return isinstance(value, PLAIN) or type(value) is torch.Tensor


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Numbers, texts and tensors that a module of the script keeps, and whether it trains."""
    attributes = {
        name: value
        for name, value in vars(module).items()
        if (name == "training" or name not in private.MODULE) and _is_plain(value)
    }
    return copy.deepcopy(
        {
            name: value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in attributes.items()
        }
    )


def _stateful(value: Any) -> tuple[str, str] | None:
    """The methods with which a value gives and takes its state, if it has any."""
    for names in (("state_dict", "load_state_dict"), ("get_state", "set_state")):
        if all(callable(getattr(value, name, None)) for name in names):
            return names
    return None


def _variable(name: str, value: Any) -> Any:
    methods = _stateful(value)
    saved = getattr(value, methods[0])() if methods else value
    try:
        pickle.dumps(saved)
    except Exception as error:  # whatever the script's classes raise
        raise NotSupported(
            f"elastic.local: {name} of type {type(value).__name__} cannot be saved: {error}"
        ) from error
    return saved


def _same_bits(mine: torch.Tensor | None, its: torch.Tensor | None) -> bool:
    if mine is None or its is None:
        return mine is its
    if (mine.dtype, mine.shape, mine.stride()) != (its.dtype, its.shape, its.stride()):
        return False
    if not mine.dtype.is_floating_point:
        return False
    integer = INTEGERS[mine.element_size()]  # -0.0 is equal to 0.0, NaN not to itself
    return bool(torch.equal(mine.detach().view(integer), its.detach().view(integer)))


def _save_gradients(worker: Worker, folder: Path) -> int | None:
    """Returns the rank whose file has the worker's gradients; None: it has none.

    The workers of a process that have saved wait for the others, so their gradients stay."""
    mine = [[each.grad for each in wrapped.parameters()] for wrapped in worker.wrapped]
    flat = [each for gradients in mine for each in gradients]
    if all(each is None for each in flat):
        return None
    saved = worker.host.saved_gradients
    for rank, its in saved.items():
        if len(its) == len(flat) and all(map(_same_bits, flat, its)):
            return rank
    _write(mine, folder / sealing.gradients(worker.rank))
    if not saved:  # one copy to compare with: a second one would be read for nothing, mostly
        saved[worker.rank] = flat
    return worker.rank


def _own(wrapped: Wrapped) -> dict[str, Any]:
    scheduler = wrapped.scheduler
    return {
        "buffers": {name: each.detach() for name, each in wrapped.module.named_buffers()},
        "attributes": {name: _attributes(each) for name, each in wrapped.module.named_modules()},
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "scheduler_type": type(scheduler).__name__,
        # False after a pass in no_sync: the next one then takes no buffers from rank 0.
        "takes_buffers": wrapped.model.require_forward_param_sync,
    }


@cache
def _code_path() -> str:
    path = determinism.code_path(torch.backends.cpu.get_cpu_capability())
    return f"{gpu.kind()}; {path}" if gpu.kind() else path


def _check_code_path(saved: str, keeps_bits: bool) -> None:
    here = _code_path()
    on_gpu = here.startswith("GPU ")
    if saved.startswith("GPU ") != on_gpu:
        raise NotSupported(f"state saved on {saved} does not continue on {here}")
    if keeps_bits and saved != here:
        raise NotSupported(
            f"state saved on another type of {'GPU' if on_gpu else 'CPU'} ({saved}) than this one "
            f"({here}): bits would differ. --determinism D0 continues with other bits; several "
            "types of CPU need --determinism D2 from the beginning"
        )


def save_own(worker: Worker, folder: Path, log_bytes: list[int], reader: Any) -> None:
    state = {
        "code_path": _code_path(),
        "threads": torch.get_num_threads(),
        "generators": tuple(context.save_generators()),
        "progress": worker.progress.place(),
        "reader": tuple(reader),
        "log_bytes": log_bytes,
        "wrapped": [_own(each) for each in worker.wrapped],
        "gradients": _save_gradients(worker, folder),
        "locals": [
            {name: _variable(name, value) for name, value in vars(each).items()}
            for each in worker.locals
        ],
    }
    _write(state, folder / sealing.own(worker.rank))


def save_shared(worker: Worker, folder: Path) -> None:
    models = []
    for wrapped in worker.wrapped:
        optimizer = wrapped.optimizer
        places = {p: n for n, p in enumerate(wrapped.optimized())}
        models.append(
            {
                "parameters": {n: p.detach() for n, p in wrapped.module.named_parameters()},
                "optimizer": {places[p]: state for p, state in optimizer.state.items() if state},
                "optimizer_type": type(optimizer).__name__,
                "settings": wrapped.settings(),
                "buckets": wrapped.buckets if worker.host.stage.keeps_bits else None,
            }
        )
    _write(models, folder / sealing.SHARED)
    with sealing.written(folder / sealing.THREADS) as file:
        file.write(str(worker.host.stage.threads).encode())


def _write(state: Any, path: Path) -> None:
    """Raises OSError, also where PyTorch raises an error of its own in its place. PyTorch makes no
    checksums of its own, which nothing verifies."""
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        with sealing.written(path) as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    finally:
        torch.serialization.set_crc32_options(checksums)


def _file(path: Path) -> Any:
    """The content of a file. Tensors are mapped: a page is read, or copied, when it is used."""
    try:
        return torch.load(path, weights_only=False, mmap=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        if "on a CUDA device" in str(error):
            raise NotSupported("state saved on a GPU does not continue without one") from None
        raise Damaged(f"{path} is missing or damaged: {error}") from error


def _same_names(what: str, saved: dict[str, Any], mine: dict[str, Any]) -> None:
    if saved.keys() != mine.keys():
        names = ", ".join(sorted(saved.keys() ^ mine.keys()))
        raise NotSupported(f"the saved state is of another model: its {what} differ: {names}")
    for name, value in saved.items():
        if value.shape != mine[name].shape or value.dtype != mine[name].dtype:
            raise NotSupported(
                f"the saved state is of another model: {name} has {tuple(value.shape)} of "
                f"{value.dtype} there, {tuple(mine[name].shape)} of {mine[name].dtype} here"
            )


def _same_type(what: str, saved: dict[str, Any], mine: Any) -> None:
    its, here = saved.get(f"{what}_type"), type(mine).__name__
    if its not in (None, here):
        raise NotSupported(
            f"the saved state is of another script: its {what} is {its} there, {here} here"
        )


def _load_shared(saved: dict[str, Any], all_wrapped: list[Wrapped]) -> None:
    """Into the first logical worker of a process. The others have the same tensors."""
    first = all_wrapped[0]
    parameters = dict(first.module.named_parameters())
    _same_names("parameters", saved["parameters"], parameters)
    with torch.no_grad():
        for name, value in saved["parameters"].items():
            parameters[name].copy_(value)
    for wrapped in all_wrapped:
        _same_type("optimizer", saved, wrapped.optimizer)
        its, here = len(saved["settings"]), len(wrapped.settings())
        if its != here:
            raise NotSupported(
                "the saved state is of another script: its optimizer has "
                f"{its} groups of parameters there, {here} here"
            )
        wrapped.load_optimizer(saved["optimizer"], saved["settings"])
        wrapped.use_buckets(saved["buckets"])


def load_shared(workers: dict[int, Worker], folder: Path) -> None:
    """Called once per process, when all its logical workers wait. Models that the script has not
    made yet are left out."""
    wrapped = [workers[rank].wrapped for rank in sorted(workers)]
    for saved, *each in zip(_file(folder / sealing.SHARED), *wrapped, strict=False):
        _load_shared(saved, each)


def _load_module(module: torch.nn.Module, saved: dict[str, Any]) -> None:
    buffers = dict(module.named_buffers())
    _same_names("buffers", saved["buffers"], buffers)
    with torch.no_grad():
        for name, value in saved["buffers"].items():
            buffers[name].copy_(value)
    for name, each in module.named_modules():
        vars(each).update(saved["attributes"].get(name, {}))


def _load_gradients(worker: Worker, folder: Path, rank: int | None) -> None:
    if rank is None:
        for wrapped in worker.wrapped:
            wrapped.module.zero_grad()
        return
    saved = _file(folder / sealing.gradients(rank))
    for wrapped, gradients in zip(worker.wrapped, saved, strict=False):
        for parameter, gradient in zip(wrapped.parameters(), gradients, strict=True):
            parameter.grad = gradient


def load_own(worker: Worker, folder: Path) -> dict[str, Any]:
    """Everything of the logical worker, as far as its script has made it, except its generators,
    which the caller sets last. Returns what was saved."""
    state: dict[str, Any] = _file(folder / sealing.own(worker.rank))
    _check_code_path(state["code_path"], worker.host.stage.keeps_bits)
    context.use_threads(state["threads"])
    _load_gradients(worker, folder, state["gradients"])
    for wrapped, saved in zip(worker.wrapped, state["wrapped"], strict=False):
        _load_module(wrapped.module, saved)
        wrapped.model.require_forward_param_sync = saved["takes_buffers"]
        _same_type("scheduler", saved, wrapped.scheduler)
        if wrapped.scheduler is not None:
            wrapped.scheduler.load_state_dict(saved["scheduler"])
    for each, saved in zip(worker.locals, state["locals"], strict=False):
        for name, value in saved.items():
            methods = _stateful(getattr(each, name, None))
            if methods:
                getattr(getattr(each, name), methods[1])(value)
            else:
                setattr(each, name, value)
    return state


def check_calls(worker: Worker, saved: dict[str, Any]) -> None:
    """Raises NotSupported if the script has not called `wrap` and `local` as often as before."""
    for name, mine, its in (
        ("wrap", worker.wrapped, saved["wrapped"]),
        ("local", worker.locals, saved["locals"]),
    ):
        if len(mine) != len(its):
            raise NotSupported(
                f"the saved state is of another script: it called elastic.{name} {len(its)} "
                f"times, this one {len(mine)} times"
            )

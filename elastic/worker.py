"""One logical worker: what its script's calls of the runtime do."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch.distributed.algorithms.join import Joinable
from torch.nn.parallel import DistributedDataParallel

from . import context, gpu, private, state
from .buckets import Buckets
from .cut import NEVER
from .data import Reader, Saved
from .errors import NotSupported
from .group import Group
from .host import Host
from .progress import Progress, Steps
from .stage import LEAD
from .turns import Brought


def _shared(models: dict[int, Any]) -> None:
    """The parameters of all models are those of the first one, which are equal."""
    first, *others = [models[rank] for rank in sorted(models)]
    for other in others:
        pairs = zip(other.parameters(), first.parameters(), strict=True)
        for mine, its in pairs:
            if not torch.equal(mine, its):
                raise NotSupported("parameters that differ between ranks when they are wrapped")
            mine.data = its.data


class Wrapped:
    """A model with its optimizer and scheduler, as the script passed them to `elastic.wrap`."""

    def __init__(
        self, worker: Worker, number: int, model: Any, optimizer: Any, scheduler: Any
    ) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise NotSupported(
                f"a model of type {type(model).__name__}: wrap a DistributedDataParallel"
            )
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise NotSupported(f"an optimizer of type {type(optimizer).__name__}")
        if isinstance(optimizer, Joinable):
            raise NotSupported(f"{type(optimizer).__name__}: ranks have different states")
        if model.mixed_precision is not None:
            raise NotSupported("mixed_precision of DistributedDataParallel: use torch.autocast")
        if any(getattr(each, "sparse", False) for each in model.modules()):
            raise NotSupported("sparse gradients (nn.Embedding with sparse=True, for example)")
        if private.is_compiled(model):
            raise NotSupported("torch.compile")
        self.model = model
        self.module = model.module
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.buckets: list[list[int]] | None = None  # as recorded or loaded
        self._tensors = self.parameters()
        self.shared_at: list[int] = []  # where the parameters of all workers of the process are
        self._passes = 0
        served = [each.group for each in worker.wrapped if each.model is model]
        self.group: Buckets = served[0] if served else Buckets(worker, model, f" of model {number}")

    def before_forward(self) -> None:
        self._passes += torch.is_grad_enabled()
        arranged = self.arrange()
        if torch.is_grad_enabled():
            self.group.before_forward(arranged)

    @property
    def settled(self) -> bool:
        """Whether state that is saved now has the buckets. With static_graph the order of gradients
        is recorded in the second pass only, and a new reducer would take its first for that."""
        return not self.model.static_graph or self._passes != 1

    def before_saving(self) -> None:
        if self.arrange():
            self.group.before_forward(arranged=True)

    def arrange(self) -> bool:
        """Does what DistributedDataParallel does before a forward pass, and records the buckets.
        Returns whether they are new."""
        if private.has_hooks(self.model):
            raise NotSupported("communication hooks of DistributedDataParallel (PowerSGD)")
        if private.joins(self.model):
            raise NotSupported("Join (uneven inputs)")
        if not torch.is_grad_enabled():
            return False
        with self.group.recording(self.buckets) as arranged:
            are_new = private.arrange_buckets(self.model)
        self.buckets = arranged.buckets
        return are_new

    def use_buckets(self, buckets: list[list[int]] | None) -> None:
        if buckets is not None and self.buckets is None:
            self.buckets = buckets
            private.use_buckets(self.model, buckets)
            self.group.serve(self.model)

    def places(self) -> list[int]:
        """The addresses of the parameters."""
        return [each.data_ptr() for each in self._tensors]

    def parameters(self) -> list[Any]:
        return list(self.module.parameters())

    def optimized(self) -> list[Any]:
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    def settings(self) -> list[dict[str, Any]]:
        groups = self.optimizer.param_groups
        return [{k: v for k, v in each.items() if k != "params"} for each in groups]

    def load_optimizer(self, saved: dict[int, Any], settings: list[dict[str, Any]]) -> None:
        parameters = self.optimized()
        self.optimizer.state.clear()
        for place, values in saved.items():
            self.optimizer.state[parameters[place]] = values
        for group, values in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(copy.deepcopy(values))


def _stepped(optimizers: dict[int, tuple[Wrapped, Callable[[], Any]]]) -> Any:
    """The first optimizer makes the step of all; they have its state afterwards."""
    ranks = sorted(optimizers)
    first, step = optimizers[ranks[0]]
    others = [optimizers[rank][0] for rank in ranks[1:]]
    for rank in ranks:
        if optimizers[rank][0].places() != first.shared_at:
            raise NotSupported(f"rank {rank} has set p.data of a parameter since elastic.wrap")
    for rank, other in zip(ranks[1:], others, strict=True):
        if other.settings() != first.settings():
            raise NotSupported(
                f"rank {rank} and rank {ranks[0]} have different settings in their optimizers"
            )
    for wrapped, _ in optimizers.values():
        wrapped.group.stepped()
    waits = first.group.restore()
    result = step()
    if waits:
        first.group.park()
    if first.places() != first.shared_at:
        raise NotSupported(f"{type(first.optimizer).__name__}, which sets p.data of parameters")
    for other in others:
        for mine, its in zip(other.optimized(), first.optimized(), strict=True):
            if its in first.optimizer.state:
                other.optimizer.state[mine] = first.optimizer.state[its]
    return result


class Worker:
    def __init__(self, host: Host, rank: int, log: list[Path], heard: Callable[[], None]) -> None:
        """`heard` is called when output is no longer dropped."""
        self.host = host
        self.rank = rank
        self.group: Group | None = None
        self.wrapped: list[Wrapped] = []
        self.locals: list[SimpleNamespace] = []
        self.progress = Progress(self)
        # Output of a script that continues is dropped until it has got to where it was.
        self.quiet = host.stage.continues
        self._log = log
        self._heard = heard
        self._since = 0  # the step at which it began or continued
        self._saved = 0  # the step at which it saved its state last
        self._persistent: dict[int, Reader] = {}
        self._calls: Counter[str] = Counter()

    def bring(
        self,
        key: tuple[Any, ...],
        value: Any,
        act: Callable[[dict[int, Any]], Any],
        source: int | None = None,
    ) -> Brought:
        self.host.check_process()
        return self.host.meetings.bring(self.rank, key, value, act, source)

    def bring_next(
        self, subject: str, value: Any, act: Callable[[dict[int, Any]], Any]
    ) -> Callable[[], Any]:
        """Meets the others with a subject, which each counts."""
        self._calls[subject] += 1
        return self.bring((subject, self._calls[subject]), value, act)

    def wrap(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        if any(each.optimizer is optimizer for each in self.wrapped):
            raise NotSupported("a second elastic.wrap of one optimizer: wrap each once")
        number = len(self.wrapped) + 1
        self.wrapped.append(Wrapped(self, number, model, optimizer, scheduler))
        if self.group is not None:
            self.group.forget()
        self.bring_next("wrap", model, _shared)()
        self.wrapped[-1].shared_at = self.wrapped[-1].places()
        self._step_once(self.wrapped[-1], number)

    def before_forward(self, model: Any) -> None:
        for each in self.wrapped:
            if each.model is model:
                each.before_forward()

    def local(self, variables: SimpleNamespace) -> None:
        self.locals.append(variables)

    def steps(self, loader: Any) -> Steps:
        return Steps(self.progress, loader)

    def _step_once(self, wrapped: Wrapped, number: int) -> None:
        """`optimizer.step` waits for the workers of the process, and one of them makes the step."""
        own_step = wrapped.optimizer.step
        scheduled = private.scheduled(own_step)

        def step(this: Any, closure: Any = None) -> Any:
            if closure is not None:
                raise NotSupported("an optimizer that calls a closure (LBFGS, for example)")
            subject = f"the step of optimizer {number}, call"
            result = self.bring_next(subject, (wrapped, own_step), _stepped)()
            private.mark_stepped(this)
            return result

        if scheduled:
            private.mark_scheduled(step)
        wrapped.optimizer.step = MethodType(step, wrapped.optimizer)

    @property
    def continues(self) -> bool:
        """Whether the script has not got yet to where its state was saved."""
        return self.quiet

    def load(self) -> dict[str, Any]:
        """Sets the script's state as far as the script has made its objects. The first call waits
        for the state. Returns what was saved of this worker."""
        self.bring_next("saved state", self, self._load_shared)()
        return state.load_own(self, self.host.saved())

    def _load_shared(self, workers: dict[int, Worker]) -> None:
        state.load_shared(workers, self.host.saved())

    def continued(self, loader: Any) -> Reader:
        """The rest of the pass in which state was saved."""
        saved = self.load()
        state.check_calls(self, saved)
        self._since = self.progress.steps_made
        for log, length in zip(self._log, saved["log_bytes"], strict=True):
            with log.open("rb+") as file:
                file.truncate(length)
        reader = self.reader(loader, Saved(*saved["reader"]))
        context.load_generators(context.Generators(*saved["generators"]))
        self.quiet = False
        self._heard()
        return reader

    def reader(self, loader: Any, saved: Saved | None = None) -> Reader:
        if not (loader.num_workers and loader.persistent_workers):
            return Reader(self, loader, saved)
        kept = self._persistent.get(id(loader))
        if kept is not None:
            kept.restart()
            return kept
        return self._persistent.setdefault(id(loader), Reader(self, loader, saved))

    def end(self, reader: Reader) -> None:
        if reader not in self._persistent.values():
            reader.close()

    def between_steps(self, reader: Reader) -> None:
        """Called before each batch."""
        self.host.check_process()
        self.host.check_defaults()
        stage, step = self.host.stage, self.progress.steps_made
        marks = stage.cut.begin(step)
        if step == self._since:
            return
        if self.rank == 0 and stage.end is not None and step == stage.end - LEAD:
            stage.send("prepare")
        if not stage.saves(step, marks, self._saved):
            return
        if not all(each.settled for each in self.wrapped):
            return
        self._saved = step
        for each in self.wrapped:
            each.before_saving()

        def saved(failures: dict[int, str]) -> None:
            self.host.all_have_saved()
            stage.send_saved(step, "".join(failures.values()))
            if NEVER != marks.end <= step and not stage.stays(self.host.index):
                self.host.exit()

        failure = self._save(stage.unfinished(step), reader)
        self.bring_next("all have saved their state", failure, saved)()

    def _save(self, folder: Path, reader: Reader) -> str:
        """Writes its state. Returns why it cannot be written, because the disk is full, for
        example; empty: it has been."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            gpu.synchronize()
            state.save_own(self, folder, self._written(), reader.saved())
            if self.rank == 0:
                state.save_shared(self, folder)
        except OSError as error:
            return f"{error}\n"
        return ""

    def _written(self) -> list[int]:
        """The lengths of its logs."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):  # the script has closed it
                stream.flush()
        return [log.stat().st_size for log in self._log]

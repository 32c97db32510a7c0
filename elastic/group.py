"""The process group of one logical worker, which DistributedDataParallel and scripts call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from . import gpu, private
from .errors import NotSupported

if TYPE_CHECKING:
    from .host import Host
    from .turns import Brought
    from .worker import Worker

Tensors = list[torch.Tensor]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)


def _combined(host: Host, mine: dict[int, torch.Tensor], operation: Any) -> torch.Tensor:
    """The result of `operation` on the flat tensors of all ranks, given those of this process."""
    if operation == dist.ReduceOp.SUM:
        return host.added(mine)
    if operation == dist.ReduceOp.MAX:
        return torch.stack(host.gathered(mine)).amax(0)
    if operation == dist.ReduceOp.MIN:
        return torch.stack(host.gathered(mine)).amin(0)
    name = getattr(operation, "op", operation)
    raise NotSupported(f"all-reduce with {name}: the elastic runtime has SUM, MIN and MAX")


class Value(NamedTuple):
    """A worker's tensor in an all-reduce. `host` is the same one, or its copy in host memory."""

    tensor: torch.Tensor
    host: torch.Tensor


class Arranged:
    """The buckets that rank 0 broadcasts. If they are known, the broadcast gives those."""

    def __init__(self, known: list[list[int]] | None) -> None:
        self._known = known
        self.buckets = known
        self._indices: list[int] | None = None

    def broadcast(self, tensor: torch.Tensor) -> bool:
        """True if it has filled the tensor."""
        if self._known is None:
            return False
        indices = [index for bucket in self._known for index in bucket] + [len(self._known)]
        sizes = [len(bucket) for bucket in self._known]
        tensor.copy_(torch.tensor(sizes if self._indices else indices, dtype=tensor.dtype))
        self._indices = indices
        return True

    def record(self, tensor: torch.Tensor) -> None:
        """Called after each of the two broadcasts. See private.arrange_buckets."""
        if self._indices is None:
            self._indices = tensor.tolist()
            return
        ends = list(accumulate(tensor.tolist()))
        self.buckets = [
            self._indices[start:end] for start, end in zip([0, *ends], ends, strict=False)
        ]


class Group(dist.ProcessGroup):
    """Rank r of W. In a backward pass an all-reduce returns at once, as gloo's does; others run
    when the pass has all its gradients. Any other collective waits for the other workers."""

    def __init__(self, worker: Worker, subject: str = "") -> None:
        """`subject`: part of the names of its calls, where a worker has several groups."""
        super().__init__(worker.rank, worker.host.world)
        self._worker = worker
        self._subject = subject
        self._calls = 0
        self._pending: list[tuple[Brought, torch.futures.Future[Any], Tensors]] = []
        self._works: list[Any] = []  # C++ keeps no reference to what Python returns
        # With static_graph the first pass reduces after its gradients are complete.
        self.waits_in_backward = False
        self._arranged: Arranged | None = None

    @contextmanager
    def recording(self, known: list[list[int]] | None) -> Iterator[Arranged]:
        """Broadcasts meanwhile are those of buckets."""
        self._arranged = Arranged(known)
        try:
            yield self._arranged
        finally:
            self._arranged = None

    def getBackendName(self) -> str:
        return "elastic"  # for "gloo", DistributedDataParallel's logger asks for gloo's C++ object

    def size(self) -> int:
        return self._worker.host.world

    def rank(self) -> int:
        return self._worker.rank

    def shutdown(self) -> None:
        pass

    def forget(self) -> None:
        """The script has no use for what earlier calls have returned: DistributedDataParallel's
        constructor broadcasts copies of all parameters."""
        if not self._pending:
            self._works = []

    def _finished(self, result: Any) -> Any:
        future = gpu.future()
        future.set_result(result)
        work = private.finished(future)
        self.forget()
        self._works.append(work)
        return work

    def _bring(
        self,
        name: str,
        value: Any,
        act: Callable[[dict[int, Any]], Any],
        source: int | None = None,
    ) -> Brought:
        self._calls += 1
        self._worker.host.stage.cut.called(self._worker.rank)
        return self._worker.bring((name + self._subject, self._calls), value, act, source)

    def _refuse(self, tensors: Tensors) -> None:
        self._worker.host.check_process()
        for tensor in tensors:
            if tensor.layout != torch.strided:
                raise NotSupported("sparse tensors (nn.Embedding with sparse=True, for example)")
            if tensor.device.type != "cpu" and not (gpu.holds(tensor) and gpu.started()):
                raise NotSupported(
                    f"tensors on {tensor.device}: no comparison with stock PyTorch covers them"
                )

    def allreduce(self, tensors: Tensors, options: Any = None) -> Any:
        self._refuse(tensors)
        operation = dist.ReduceOp.SUM if options is None else options.reduceOp
        host = self._worker.host
        if host.alone:
            assert host.gloo is not None
            host.stage.cut.called(self._worker.rank)
            return host.gloo.allreduce(tensors, options or dist.AllreduceOptions())

        def act(values: dict[int, Value]) -> torch.Tensor | None:
            mine = {rank: _flat(value.host) for rank, value in values.items()}
            result = gpu.back(_combined(host, mine, operation), tensors[0])
            return self._reduced([value.tensor for value in values.values()], result)

        take = self._bring("all-reduce", Value(tensors[0], self._parked(tensors[0])), act)
        # The script's own calls wait; DistributedDataParallel's are asynchronous.
        asynchronous = options is None or options.asyncOp
        waits = not asynchronous or self.waits_in_backward
        if waits or not (self._pending or private.at_end_of_backward(self._drain)):
            return self._finished(self._taken(tensors, take()))
        future = gpu.future()
        self._pending.append((take, future, tensors))
        work = private.finished(future)
        self._works.append(work)
        return work

    def _parked(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or its copy in host memory, as the worker has it while it waits for a sum."""
        return gpu.on_host(tensor)

    def _reduced(self, tensors: Tensors, result: torch.Tensor) -> torch.Tensor | None:
        """The tensors of the workers of this process have the result afterwards."""
        for tensor in tensors:
            tensor.detach().copy_(result.view(tensor.shape))
        return None

    def _taken(self, tensors: Tensors, result: torch.Tensor | None) -> Tensors:
        """The value of a Work, given what `_reduced` has returned."""
        return tensors

    def _drain(self) -> None:
        """The others run until every bucket of this pass is added."""
        for take, future, tensors in self._pending:
            future.set_result(self._taken(tensors, take()))
        self._pending, self._works = [], []

    def allreduce_coalesced(self, tensors: Tensors, options: Any = None) -> Any:
        for tensor in tensors:
            self.allreduce([tensor], options)
        return self._finished(tensors)

    def broadcast(self, tensors: Tensors, options: Any) -> Any:
        self._refuse(tensors)
        if self._arranged is not None and self._arranged.broadcast(tensors[0]):
            return self._finished(tensors)
        root = options.rootRank
        host = self._worker.host

        def act(values: dict[int, torch.Tensor]) -> torch.Tensor:
            like = next(iter(values.values()))
            return host.broadcast(values.get(root), like, root)

        # In one process nothing else is needed, and rank `root` does not wait, as with gloo.
        source = root if host.gloo is None else None
        mine = self._worker.rank == root
        value = gpu.on_host(tensors[0]) if mine else torch.empty_like(tensors[0], device="cpu")
        sent = self._bring("broadcast", value, act, source)()
        if not mine:
            tensors[0].detach().copy_(sent.view(tensors[0].shape))
        if self._arranged is not None:
            self._arranged.record(tensors[0])
        return self._finished(tensors)

    def _gathered(self, tensor: torch.Tensor) -> Tensors:
        """The flat tensors of all ranks."""
        self._refuse([tensor])
        host = self._worker.host

        def act(values: dict[int, torch.Tensor]) -> Tensors:
            # Copies, because a worker may change its tensor before another has read it.
            return host.gathered({rank: _flat(value).clone() for rank, value in values.items()})

        gathered: Tensors = self._bring("all-gather", gpu.on_host(tensor), act)()
        return gathered

    def allgather(self, outputs: list[Tensors], inputs: Tensors, options: Any = None) -> Any:
        for output, value in zip(outputs[0], self._gathered(inputs[0]), strict=True):
            output.detach().copy_(value.view(output.shape))
        return self._finished(outputs)

    def _allgather_base(
        self, output: torch.Tensor, value: torch.Tensor, options: Any = None
    ) -> Any:
        output.detach().copy_(torch.cat(self._gathered(value)).view(output.shape))
        return self._finished([output])

    all_gather_single = _allgather_base  # the name that dist.all_gather_into_tensor calls

    def barrier(self, opts: Any = None) -> Any:
        self._gathered(torch.zeros(1, dtype=torch.uint8))
        return self._finished([])


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> None:
        raise NotSupported(f"the collective {name.strip('_')}: see docs/elastic.md for others")

    return refuse


for each in (
    *("reduce", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base", "alltoall"),
    *("alltoall_base", "send", "recv", "recv_anysource", "all_to_all_single"),
    *("reduce_scatter_single", "allgather_coalesced", "all_gather_single_coalesced"),
    "reduce_scatter_single_coalesced",
):
    setattr(Group, each, _refused(each))

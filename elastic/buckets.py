"""The process group of one model's reducer, which keeps no copy of gradients that has no use.

DistributedDataParallel has gradients twice: as the parameters' own, and in buckets, which it fills
from these, has summed, and copies back. It reads the gradients only before the sum, and the buckets
only until they are copied back. So a worker that waits for the sum keeps its buckets alone. All
workers of the process then copy one sum, and buckets have memory again from the next forward pass
on. Memory is taken from storages, so each tensor stays the same object.

On a GPU a worker that waits has no gradients there: buckets, and then gradients, are in host
memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import gpu, private
from .group import Group, Tensors

if TYPE_CHECKING:
    from .worker import Worker

SMALL = 1 << 16  # bytes: up to here memory stays, because the calls would cost more


class Emptied:
    """Storages whose content is not needed now."""

    def __init__(self) -> None:
        self._sizes: list[tuple[torch.UntypedStorage, int]] = []

    @staticmethod
    def takes(tensor: torch.Tensor) -> bool:
        """A storage that others know by address, as NumPy's arrays do, stays, and so does one that
        has more than the tensor."""
        storage = tensor.untyped_storage()
        size = tensor.numel() * tensor.element_size()
        return bool(SMALL < size == storage.nbytes() and storage.resizable())

    def add(self, tensor: torch.Tensor) -> None:
        """Its content is lost, unless its storage stays."""
        if self.takes(tensor):
            storage = tensor.untyped_storage()
            self._sizes.append((storage, storage.nbytes()))
            storage.resize_(0)

    def restore(self) -> None:
        """They have memory again, with any content."""
        for storage, size in self._sizes:
            storage.resize_(size)
        self.forget()

    def forget(self) -> None:
        self._sizes = []


class Parked:
    """Tensors of a GPU whose content is in host memory for a while."""

    def __init__(self) -> None:
        self._emptied = Emptied()
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, tensor: torch.Tensor) -> None:
        if gpu.holds(tensor) and Emptied.takes(tensor):
            self._copies.append((tensor, gpu.on_host(tensor)))
            self._emptied.add(tensor)

    def restore(self) -> bool:
        """They have their content again. Returns whether there are any."""
        self._emptied.restore()
        for tensor, copy in self._copies:
            tensor.detach().copy_(copy)
        copies, self._copies = self._copies, []
        return bool(copies)


class Buckets(Group):
    def __init__(self, worker: Worker, model: Any, subject: str) -> None:
        super().__init__(worker, subject)
        # Each parameter is then in a bucket that is copied back.
        self._drops = not (model.find_unused_parameters or model.static_graph)
        self._shares = not model.gradient_as_bucket_view
        self._parameters = list(model.module.parameters())
        self._emptied = Emptied()
        self._sums: Tensors = []
        self._gradients = Parked()
        self.waits_in_backward = model.static_graph
        worker.host.parks[worker.rank].append(self)
        self.serve(model)

    def serve(self, model: Any) -> None:
        """Called for each reducer that the model gets."""
        private.reduce_with(model, self)
        self._emptied.forget()

    def before_forward(self, arranged: bool) -> None:
        """`arranged`: the reducer has new buckets."""
        if arranged:
            self._emptied.forget()
        self._emptied.restore()

    def stepped(self) -> None:
        """All workers of the process have copied the sums."""
        self.waits_in_backward = False
        emptied = Emptied()
        for each in self._sums:
            emptied.add(each)
        self._sums = []

    def park(self) -> None:
        if not self._parameters or not gpu.holds(self._parameters[0]):
            return
        for each in self._parameters:
            if each.grad is not None:
                self._gradients.add(each.grad)

    def restore(self) -> bool:
        return self._gradients.restore()

    def _parked(self, tensor: torch.Tensor) -> torch.Tensor:
        host = super()._parked(tensor)
        if host is not tensor and self._shared(tensor):
            self._emptied.add(tensor)
        return host

    def _shared(self, tensor: torch.Tensor) -> bool:
        """Whether it is a bucket, not the numbers of parameters that were used."""
        return self._shares and tensor.is_floating_point()

    def _reduced(self, tensors: Tensors, result: torch.Tensor) -> torch.Tensor | None:
        if not self._shared(result):
            return super()._reduced(tensors, result)
        return result

    def _taken(self, tensors: Tensors, result: torch.Tensor | None) -> Tensors:
        if result is None:
            return tensors
        self._emptied.add(tensors[0])
        self._sums.append(result)
        return [result]

    def _drain(self) -> None:
        self._sums = []
        gradients = Emptied()
        if self._drops and self._shares and self._pending[-1][0].waits:
            for each in self._parameters:
                if each.grad is not None:
                    gradients.add(each.grad)
        try:
            super()._drain()
        finally:
            gradients.restore()

"""How far a worker's script is, and where it continues in another process.

A script that continues runs again from its beginning, with its output dropped, up to the loop in
which its state was saved. Loops before that have no steps then. State is loaded when the loop of
epochs begins, and again at the first step, since the script may change some between.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import data
from .errors import NotSupported

if TYPE_CHECKING:
    from .worker import Worker


class Place(NamedTuple):
    """The call of `epochs`, the epoch, the call of `steps` in that epoch. They are ordered."""

    phase: int
    epoch: int
    loop: int


class Progress:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._here = Place(-1, 0, -1)
        self._target: Place | None = None  # where the script continues
        self.steps_made = 0  # batches that the script has got in all

    def place(self) -> tuple[Place, int]:
        return self._here, self.steps_made

    def _begin(self) -> None:
        """Called at each loop: loads state if the script continues."""
        if self._worker.continues:
            place, self.steps_made = self._worker.load()["progress"]
            self._target = Place(*place)

    def epochs(self, count: int) -> Iterator[int]:
        self._begin()
        phase, first = self._here.phase + 1, 0
        self._here = Place(phase, 0, -1)
        if self._target is not None and phase < self._target.phase:
            return
        if self._target is not None and phase == self._target.phase:
            first = self._target.epoch
        for epoch in range(first, count):
            self._here = Place(phase, epoch, -1)
            yield epoch

    def batches(self, steps: Steps) -> Iterator[Any]:
        data.check(steps.loader)
        self._begin()
        here = self._here = self._here._replace(loop=self._here.loop + 1)
        if self._target is None or not self._worker.continues:
            reader = self._worker.reader(steps.loader)
        elif here < self._target:
            return
        elif here == self._target:
            reader = self._worker.continued(steps.loader)
        else:
            raise NotSupported(f"the script went past {self._target}, where its state was saved")
        steps.first = reader.position
        try:
            while reader.has_next():
                self._worker.between_steps(reader)
                batch = reader.next()
                self.steps_made += 1
                yield batch
        finally:
            self._worker.end(reader)


class Steps:
    """The batches of a loader. `enumerate` counts from the batch at which the loop continues."""

    def __init__(self, progress: Progress, loader: Any) -> None:
        self._progress = progress
        self.loader = loader
        self.first = 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._progress.batches(self)

    def state_dict(self) -> NoReturn:
        self._refuse("state_dict")

    def load_state_dict(self, state: Any) -> NoReturn:
        self._refuse("load_state_dict")

    def _refuse(self, name: str) -> NoReturn:
        """Several workers' positions would have to be loaded at the same time, in the middle of
        what the run itself restores."""
        raise NotSupported(f"{name} of elastic.steps: saved state has the position already")


class Enumerate(builtins.enumerate):  # type: ignore[type-arg]
    """Instead of `enumerate`: the script's numbers of steps stay, also after a resize."""

    def __new__(cls, iterable: Any, start: int = 0) -> Any:
        if not isinstance(iterable, Steps):
            return builtins_enumerate(iterable, start)
        return _numbered(iterable, start)


builtins_enumerate = builtins.enumerate


def _numbered(steps: Steps, start: int) -> Iterator[tuple[int, Any]]:
    for number, batch in builtins_enumerate(steps):
        yield start + steps.first + number, batch

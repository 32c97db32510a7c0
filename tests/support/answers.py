"""Answers to the questions of the proxy's core, for tests that drive it without its Python half."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rankfold.proxy.native import EVENT_FUNCTION, EVENT_MODULE, Event, Native
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo


class Kernels(Protocol):
    """Knows modules and their kernels: a Loader, or who says something else of them."""

    def module(self, image: bytes, kind: int, /) -> ModuleInfo: ...
    def function(self, module: ModuleInfo, name: str, /) -> FunctionInfo: ...


def answer(
    native: Native,
    kernels: Kernels,
    known: dict[str, ModuleInfo],
    events: list[Event] | None = None,
) -> bool:
    """All that has been asked so far; False: nothing has happened."""
    event = None
    for event in native.events():
        try:
            if event.kind == EVENT_MODULE:
                info = known.get(event.text) or kernels.module(event.data, event.image_kind)
                known[info.hash] = info
                native.module_ready(event.token, 0, info)
            elif event.kind == EVENT_FUNCTION:
                function = kernels.function(known[event.text], event.name)
                native.function_ready(event.token, 0, function)
            elif events is not None:
                events.append(event)
        except ModuleError as error:
            refuse = native.module_ready if event.kind == EVENT_MODULE else native.function_ready
            refuse(event.token, error.code)
    return event is not None


@contextmanager
def answering(
    native: Native,
    kernels: Kernels,
    modules: dict[str, ModuleInfo] | None = None,
    events: list[Event] | None = None,
) -> Iterator[None]:
    """Answer the loop's questions as the proxy's Python half does, in a thread.

    `modules` are those that are known by their hash: shared by the devices of a hand-over.
    `told`: what is no question goes there.
    """
    stop = threading.Event()
    known = {} if modules is None else modules

    def run() -> None:
        while not stop.is_set():
            select.select([native.event_fd], [], [], 0.01)
            answer(native, kernels, known, events)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

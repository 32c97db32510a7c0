"""Loads the modules and kernels that ranks request, in threads of their own.

The C half sends an event for each one and continues; a thread of the pool reads or compiles it
(`modules`) and hands it to the C half with an error of the CUDA driver API, 0 if there is none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rankfold.log import area
from rankfold.proxy.modules import ModuleStore
from rankfold.proxy.native import EVENT_FUNCTION, EVENT_MODULE, Event, Native
from rankfold.proxy.ptx.errors import UNKNOWN

log = area(__file__)

LOADS = max(2, os.cpu_count() or 1)  # modules and kernels loaded at once, as many as compiled


class LoadThreads:
    """Loads from `modules` for the ranks of one device. `pool` loads; one more thread stores the
    images of loaded modules, so that no program waits for the disk."""

    def __init__(self, native: Native, modules: ModuleStore):
        self.native, self.modules = native, modules
        self.pool = ThreadPoolExecutor(LOADS, thread_name_prefix="modules")
        self.storing = ThreadPoolExecutor(1, thread_name_prefix="images")

    def load(self, event: Event, cc: tuple[int, int]) -> None:
        """Begin to load the module or kernel that an event requests, for the compute capability
        `cc`."""
        load = self._load_module if event.kind == EVENT_MODULE else self._load_function
        self.pool.submit(self._reporting, load, event, cc)

    def store_images(self) -> None:
        """Begin to store the images that could not be stored before."""
        self.pool.submit(self.modules.images.store)

    def close(self) -> None:
        """Wait for what is being loaded and stored; what has not begun is dropped."""
        self.pool.shutdown(cancel_futures=True)
        self.storing.shutdown(cancel_futures=True)

    def _reporting(
        self, load: Callable[[Event, tuple[int, int]], None], event: Event, cc: tuple[int, int]
    ) -> None:
        try:
            load(event, cc)
        except Exception as error:  # report a defect of ours to the program as an error
            log.exception("loading for job %d rank %d", event.job, event.rank)
            subject = f"kernel {event.name}" if event.kind == EVENT_FUNCTION else "a module"
            why = f"{subject}: {error!r}, which is a defect of rankfold"
            if event.kind == EVENT_MODULE:
                self.native.module_ready(event.token, UNKNOWN, why=why)
            else:
                self.native.function_ready(event.token, UNKNOWN, why=why)

    def _load_module(self, event: Event, cc: tuple[int, int]) -> None:
        info, error, why = self.modules.module(
            event.data, event.image_kind, event.text, cc, event.job
        )
        self.native.module_ready(event.token, error, info, why)
        if info and event.data:
            self.storing.submit(self.modules.images.store_taken, info.hash, event.image_kind)

    def _load_function(self, event: Event, cc: tuple[int, int]) -> None:
        info, error, why = self.modules.function(event.text, event.name, cc)
        self.native.function_ready(event.token, error, info, why)

"""The proxy's core over a device that is Python's (device.py), in one thread: a turn of its loop, a
step of the device and time that passes are the test's to say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cffi
from memory.device import Broken

from rankfold import paths
from rankfold.proxy import native as product
from rankfold.proxy.native import EVENT_ALARM, EVENT_LOST, Event, Native, NativeError
from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo, function_info, module_info
from rankfold.proxy.ptx.sets import Sets, sets_of
from support import native
from support.answers import answer
from support.computing import NAMES, Computing, source
from support.ring_client import CHUNK

from .device import TurnedDevice

Library = tuple[cffi.FFI, Any]
JOB = 1
BEGINNING_NS = 1_000_000_000_000
SECOND_NS = 1_000_000_000
WRAPPED = ("clock_gettime", "getrandom", "in_loop", "mailbox_start", "mailbox_stop")
TURNS = """
    extern uint64_t turns_now_ns, turns_chance;
    void turns_device(const struct hal *);
    uint32_t turns_turn(struct proxy *);
    void turns_sleep(struct proxy *);
    uint64_t turns_deadline_ns(struct proxy *);
    const char *turns_invalid(struct proxy *);
    uint64_t turns_opened_early(struct proxy *);
    uint64_t turns_let_go(struct proxy *);
"""
PROGRESS = 1
MOST_TURNS = 10_000  # until nothing happens any more


def load(folder: Path, changed: tuple[Path, str] | None = None) -> Library:
    """The core's objects as they are built, except for what turns.c puts in the place of clock,
    chance and thread. `changed`: a source file of the core, and what is to be compiled in its
    place."""
    objects = paths.native("obj")
    files = [
        each
        for each in objects.glob("proxy/**/*.o")
        if not {"soft", "nvidia"} & set(each.parts)
        and (native.REPOSITORY / each.relative_to(objects)).with_suffix(".c").exists()
    ]
    includes = []
    if changed:
        file, text = changed
        includes = [f"-I{file.parent}"]
        here = objects / file.relative_to(native.REPOSITORY).with_suffix(".o")
        copy = folder / file.name
        copy.write_text(text)
        files = [each for each in files if each != here] + [copy]
    library = native.build(
        folder,
        [Path(__file__).with_name("turns.c"), *sorted(files)],
        "turns",
        not changed,
        ["-fvisibility=hidden", *includes, *(f"-Wl,--wrap={name}" for name in WRAPPED)],
    )
    ffi = cffi.FFI()
    api, hal = native.CORE / "proxy.h", native.REPOSITORY / "proxy/hal/hal.h"
    ffi.cdef(re.sub(r"^#.*$", "", api.read_text(), flags=re.MULTILINE) + native.declarations(hal))
    ffi.cdef(TURNS)
    return ffi, ffi.dlopen(str(library))


class Kernels:
    """The kernels of support/computing.py: the product computes their sets, and each is called by
    its number."""

    def module(self, image: bytes, _: int, /) -> ModuleInfo:
        return described()

    def function(self, module: ModuleInfo, name: str, /) -> FunctionInfo:
        return kernel(name)


@cache
def described() -> ModuleInfo:
    text = source().decode()
    return module_info(text)


@cache
def kernel(name: str) -> FunctionInfo:
    module = described()
    found = module.ptx.functions[name]
    return function_info(
        module,
        found,
        sets_of(module.ptx, found, fixed_code=True),
        address=1 + NAMES.index(name),
        max_threads=1024,
        registers=16,
        ptx_version=module.ptx.target,
    )


def wild(sets: Sets) -> bool:
    """May it write where no rank has foreseen it?"""
    writes = Use.WRITTEN | Use.ATOMIC
    return not sets.closed or any(
        use & writes and not sets.bounds.uses(at) & Use.WRITTEN for at, use in sets.words
    )


class World:
    """One device with the ranks of a job, which are its clients from the beginning."""

    def __init__(
        self,
        library: Library,
        count: int,
        variables: int,
        chunks: int,
        beneath: bool = True,
        squash: bool = True,
        quantum_ns: int = 0,
    ) -> None:
        self.ffi, self.lib = library
        self.lib.turns_now_ns, self.lib.turns_chance = BEGINNING_NS, 0
        wild_ones = {name for name in NAMES if wild(kernel(name).sets)}
        self.device = TurnedDevice(self.ffi, chunks, beneath, wild_ones)
        self.lib.turns_device(self.device.table)
        with patch.object(product, "_library", lambda: library):
            self.native = Native(
                "soft",
                chunks * CHUNK,
                (8, 0),
                1.0,
                1,
                quantum_ns,
                share=True,
                squash=squash,
                validate=1,
            )
        self.closed = False
        self.told: list[Event] = []
        self.known: dict[str, ModuleInfo] = {}
        self.clients = [Turned(self, rank, count, variables) for rank in range(count)]
        self.native.job_open(JOB, 1, 0, 1, [0] * count, -1)
        for client in self.clients:
            self.native.rank_attach(JOB, client.rank, client.fd, client.image)

    # ---- one thing at a time ----

    def turn(self) -> bool:
        """One of the loop, and answers to what it asks; False: it would sleep now."""
        happened = self.lib.turns_turn(self.native._proxy)
        assert not self.device.broken, self.device.broken
        wrong = self.lib.turns_invalid(self.native._proxy)
        assert wrong == self.ffi.NULL, self.ffi.string(wrong).decode()
        answered = answer(self.native, Kernels(), self.known, self.told)
        assert not [event for event in self.told if event.kind in (EVENT_ALARM, EVENT_LOST)]
        return bool(happened) or answered

    def step(self, which: int) -> bool:
        """Runs a step of one of the device's busy queues, modulo their number. Returns whether one
        ran."""
        busy = self.device.busy
        return bool(busy) and self.device.step(busy[which % len(busy)])

    def wait(self, ns: int) -> None:
        self.lib.turns_now_ns += ns

    # ---- until nothing happens by itself ----

    def settle(self) -> None:
        """As the loop's thread: turns while something happens, else it sleeps until the device or
        the time that it has set itself wakes it."""
        for _ in range(MOST_TURNS):
            if self.turn():
                continue
            if self.goes_to_sleep() or self.end_works():
                continue
            deadline = self.lib.turns_deadline_ns(self.native._proxy)
            if not deadline:
                return
            self.lib.turns_now_ns = max(self.lib.turns_now_ns, deadline)
        raise AssertionError(f"it never ends\n{self.native.debug_text()}")

    def goes_to_sleep(self) -> bool:
        """The loop says what it wants to be woken for, and looks once more; True: it continues."""
        self.lib.turns_sleep(self.native._proxy)
        return self.turn()

    def end_works(self) -> bool:
        """The device continues until the loop hears of something that has ended; False: it does not
        any more."""
        moved = True
        while moved:
            moved = False
            for stream in self.device.busy:
                done = self.device.done[stream]
                moved |= self.device.step(stream)
                if self.device.done[stream] != done and self.device.rings(stream):
                    return True
        return False

    def until_state(self, state: str) -> None:
        """The job's. People call again each second while nothing moves."""
        for _ in range(10):
            self.settle()
            status = self.native.job_status(JOB)
            if status and status["state"] == state:
                return
            self.wait(SECOND_NS)
            self.native.hurry(JOB)
        raise AssertionError(f"{status}\n{self.native.debug_text()}")

    def close(self) -> None:
        self.native.job_discard(JOB)
        self.settle()
        self.native.job_close(JOB)
        self.native.close()
        self.closed = True
        assert not self.device.broken, self.device.broken
        assert not self.device.open and not self.device.content and not self.device.spaces

    def let_go(self) -> None:
        """After a failure: of the addresses that it takes, some TiB, if that can be."""
        if self.closed:
            return
        with suppress(NativeError):
            self.native.job_discard(JOB)
        for _ in range(100):
            self.lib.turns_turn(self.native._proxy)
            with suppress(Broken, KeyError):
                self.end_works()
        with suppress(NativeError):
            self.native.job_close(JOB)
            self.native.close()


class Turned(Computing):
    """A client whose requests are served while it waits."""

    def __init__(self, world: World, rank: int, ranks: int, variables: int) -> None:
        super().__init__(rank, ranks, variables)
        self.world = world

    def finish(self, slot: int = 1, wait: float = 20.0) -> int:
        if not self.answered(slot):
            self.world.settle()
        assert self.answered(slot), f"rank {self.rank} waits\n{self.world.native.debug_text()}"
        return super().finish(slot, wait)

    def close(self) -> None:
        """Disables garbage collection: no garbage has to do with the channel."""
        self.map.close()
        os.close(self.fd)
        os.close(self.image)


@contextmanager
def world(library: Library, count: int, variables: int, chunks: int, **how: Any) -> Iterator[World]:
    """It must end well, if the test does."""
    made = World(library, count, variables, chunks, **how)
    try:
        yield made
        made.close()
    finally:
        made.let_go()
        for client in made.clients:
            client.close()

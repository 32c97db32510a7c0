"""The proxy's C half, as seen from Python (proxy/core/proxy.h, through cffi).

Every method runs in the C loop's thread and returns when it has run there; none waits for a device,
a rank or a peer. The loop never calls Python: `events` returns what has happened.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cffi

from rankfold import paths, plural
from rankfold.log import area
from rankfold.proxy.ptx.errors import INVALID_IMAGE

log = area(__file__)

RANK_AT = ("host", "device", "turn", "others", "code")  # enum proxy_rank_at
JOB_STATES = {1: "running", 2: "stopping", 3: "cut", 4: "saved", 5: "failed"}
EVENT_MODULE, EVENT_FUNCTION, EVENT_JOB, EVENT_SAVED, EVENT_RACE, EVENT_ALARM = 1, 2, 3, 4, 5, 6
EVENT_LOST, EVENT_LINK = 7, 8
RACES = {"certain": 1, "possible": 2}  # enum proxy_races
EVENTS_AT_ONCE = 256
WORD_BYTES = 8  # of an address among the parameters
EXIT_CLEAN, EXIT_CRASHED, EXIT_REPLACED = 0, 1, 2

_PEER_API = "int peer_segment_create(uint32_t device_count);"


@functools.cache
def declarations(header: str) -> cffi.FFI:
    """The declarations of a header. Reading them takes longer than loading the library."""
    ffi = cffi.FFI()
    ffi.cdef(re.sub(r"^#.*$", "", header, flags=re.MULTILINE) + _PEER_API)
    return ffi


@functools.cache
def _library() -> tuple[cffi.FFI, Any]:
    ffi = declarations(paths.native("include/proxy.h").read_text())
    return ffi, ffi.dlopen(str(paths.native("lib/librankfold-proxy.so")))


class NativeError(Exception):
    """The C half refused; the message has the reason."""


@dataclass(frozen=True)
class Event:
    """An event of the loop; see enum proxy_event_kind."""

    kind: int
    job: int
    rank: int
    token: int
    image_kind: int
    state: str
    text: str
    name: str
    data: bytes
    size: int


@dataclass(frozen=True)
class RankStatus:
    """The loop's data on an attached rank: memory in bytes, everything else is counts."""

    exited: bool
    resident: bool
    error: int
    error_text: str
    used: int
    kernels: int
    collectives: int
    records: int
    switches: int
    reads: int
    squashed: int = 0
    shared: int = 0
    spared: int = 0
    copies: int = 0
    unforeseen: int = 0
    prepared: int = 0
    at: str = ""
    moves: int = 0


@dataclass(frozen=True)
class Outbox:
    """Memory of a device that others read directly; `gpu`: which one, 16 bytes."""

    fd: int
    size: int  # in bytes
    gpu: bytes


def _unfit(info: Any) -> str:
    """Why a kernel (FunctionInfo) is refused: a word of its access sets is not in its parameters.
    "": it is not."""
    last = info.param_bytes - WORD_BYTES
    beyond = [offset for offset, _ in info.sets.words if not 0 <= offset <= last]
    if not beyond:
        return ""
    return (
        f"kernel {info.name}: its access sets name byte {beyond[0]} of its parameters, which have "
        f"{plural.count(info.param_bytes, 'byte')}: a defect of rankfold"
    )


class Native:
    """One device, open until `close`. Raises NativeError if it cannot be opened."""

    def __init__(
        self,
        hal: str,
        memory: int,
        cc: tuple[int, int],
        speed: float,
        workers: int,
        quantum_ns: int = 0,
        index: int = 0,
        share: bool = False,
        squash: bool = True,
        validate: int = 0,
        opaque: bool = False,
        prepare: bool = True,
        moves_fd: int = 0,
    ):
        self.hal = hal
        self._ffi, self._lib = _library()
        self._error = self._ffi.new("char[512]")
        hal_name = self._ffi.new("char[]", hal.encode())
        config = self._ffi.new(
            "struct proxy_config *",
            {
                "hal": hal_name,
                "memory_bytes": memory,
                "workers": workers,
                "cc_major": cc[0],
                "cc_minor": cc[1],
                "speed": speed,
                "quantum_ns": quantum_ns,
                "index": index,
                "share": share,
                "no_squash": not squash,
                "validate": validate,
                "opaque": opaque,
                "no_prefetch": not prepare,
                "moves_fd": moves_fd,
            },
        )
        self._proxy = self._lib.proxy_open(config, self._error, 512)
        if not self._proxy:
            raise NativeError(self._reason())
        self.event_fd: int = self._lib.proxy_event_fd(self._proxy)
        self._event = self._ffi.new("struct proxy_event *")

    def _reason(self) -> str:
        return str(self._ffi.string(self._error).decode(errors="replace"))

    def close(self) -> None:
        self._lib.proxy_close(self._proxy)

    def events(self) -> Iterator[Event]:
        """The oldest events, at most EVENTS_AT_ONCE. Others are for the next call, and `event_fd`
        stays readable: while ranks keep sending requests, they would never end."""
        string = self._ffi.string
        for _ in range(EVENTS_AT_ONCE):
            if not self._lib.proxy_next_event(self._proxy, self._event):
                return
            e = self._event
            data = bytes(self._ffi.buffer(e.data, e.bytes)) if e.data != self._ffi.NULL else b""
            yield Event(
                e.kind,
                e.job,
                e.rank,
                e.token,
                e.image_kind,
                JOB_STATES.get(e.state, ""),
                string(e.text).decode(errors="replace"),
                string(e.name).decode(errors="replace"),
                data,
                e.bytes,
            )

    def job_open(
        self,
        job: int,
        epoch: int,
        device: int,
        device_count: int,
        rank_device: list[int],
        segment: int,
    ) -> None:
        """Begin to serve a job epoch. `segment`: the shared memfd, -1 with one device."""
        if self._lib.proxy_job_open(
            self._proxy,
            job,
            epoch,
            device,
            device_count,
            len(rank_device),
            rank_device,
            segment,
            self._error,
            512,
        ):
            raise NativeError(self._reason())

    def check_order(self, job: int, races: str) -> None:
        """Report races in the ranks that are attached from now on: EVENT_RACE."""
        self._lib.proxy_job_check_order(self._proxy, job, RACES[races])

    def allow_links(self, job: int) -> None:
        """Sums between the job's devices may be those of a library (NCCL): determinism D0."""
        self._lib.proxy_job_allow_links(self._proxy, job)

    def job_names(self, job: int, names: Iterable[str]) -> None:
        """Set the names of the job's devices in alarms: EVENT_ALARM."""
        self._lib.proxy_job_names(self._proxy, job, "".join(f"{n}\n" for n in names).encode())

    def job_close(self, job: int) -> None:
        if self._lib.proxy_job_close(self._proxy, job):
            raise NativeError("the job still has ranks here")

    def job_save(self, job: int) -> bool:
        """Start to save all ranks of a job that is at its cut and stays there. EVENT_SAVED ends it,
        with the reason in `text` if it failed."""
        return not self._lib.proxy_job_save(self._proxy, job)

    def job_leave(self, job: int) -> bool:
        """Start to save and release all ranks of a job that is at its cut; EVENT_SAVED ends it."""
        return not self._lib.proxy_job_leave(self._proxy, job)

    def job_discard(self, job: int) -> bool:
        return not self._lib.proxy_job_discard(self._proxy, job)

    def barrier(self, job: int, request: bool) -> bool:
        return not self._lib.proxy_job_barrier(self._proxy, job, request)

    def hurry(self, job: int) -> None:
        self._lib.proxy_job_hurry(self._proxy, job)

    def job_fail(self, job: int, reason: str) -> None:
        self._lib.proxy_job_fail(self._proxy, job, reason.encode())

    def job_outbox(self, job: int) -> Outbox:
        """Memory of this device that other devices of the job may read directly. Its descriptor
        stays the proxy's. Raises NativeError if there is none."""
        made = self._ffi.new("struct proxy_outbox *")
        if self._lib.proxy_job_outbox(self._proxy, job, made, self._error, 512):
            raise NativeError(self._reason())
        return Outbox(made.fd, made.bytes, bytes(made.gpu))

    def job_outbox_open(self, job: int, device: int, outbox: Outbox) -> None:
        """Read another device's memory directly from now on. Raises NativeError if it is to be read
        through host memory."""
        found = {"fd": outbox.fd, "bytes": outbox.size, "gpu": outbox.gpu}
        given = self._ffi.new("struct proxy_outbox *", found)
        if self._lib.proxy_job_outbox_open(self._proxy, job, device, given, self._error, 512):
            raise NativeError(self._reason())

    def rank_attach(self, job: int, rank: int, channel: int, image: int) -> None:
        if self._lib.proxy_rank_attach(self._proxy, job, rank, channel, image, self._error, 512):
            raise NativeError(self._reason())

    def rank_exited(self, job: int, rank: int, how: int) -> None:
        """`how`: EXIT_CLEAN, EXIT_CRASHED or EXIT_REPLACED (enum proxy_exit)."""
        self._lib.proxy_rank_exited(self._proxy, job, rank, how)

    def module_ready(self, token: int, error: int, info: Any = None, why: str = "") -> None:
        """Answer EVENT_MODULE; `info` is the loader's ModuleInfo unless there is an error
        (CUresult), which `why` explains."""
        if info is None:
            null = self._ffi.NULL
            self._lib.proxy_module_ready(
                self._proxy,
                token,
                error,
                why.encode(),
                b"",
                0,
                null,
                0,
                null,
                0,
                0,
                null,
                null,
                null,
            )
            return
        functions = b"".join(name.encode() + b"\0" for name in info.functions)
        variables = sorted(info.globals, key=lambda g: not g.managed)
        names = b"".join(g.name.encode() + b"\0" for g in variables)
        self._lib.proxy_module_ready(
            self._proxy,
            token,
            0,
            b"",
            info.hash.encode(),
            info.globals_bytes,
            info.globals_image,
            len(info.functions),
            functions,
            len(variables),
            sum(g.managed for g in variables),
            names,
            [g.offset for g in variables],
            [g.bytes for g in variables],
        )

    def function_ready(self, token: int, error: int, info: Any = None, why: str = "") -> None:
        """Answer EVENT_FUNCTION; `info` is the loader's FunctionInfo unless there is an error,
        which `why` explains."""
        if info and (why_not := _unfit(info)):
            log.error("%s", why_not)
            error, info, why = INVALID_IMAGE, None, why_not
        if info is None:
            null = self._ffi.NULL
            self._lib.proxy_function_ready(self._proxy, token, error, why.encode(), null, null)
            return
        sets = info.sets
        bounds, places = sets.bounds, {offset: n for n, (offset, _) in enumerate(sets.words)}
        words = self._ffi.new(
            "struct proxy_access[]",
            [(offset, WORD_BYTES, use, bounds.uses(offset)) for offset, use in sets.words],
        )
        variables = self._ffi.new(
            "struct proxy_access[]", [(a.at, a.bytes, a.use, a.bounded) for a in info.variables]
        )
        steps = self._ffi.new("struct proxy_step[]", [tuple(step) for step in bounds.steps])
        reached, reached_words = bounds.by_place(places)
        reached = self._ffi.new("struct proxy_reached[]", reached)
        reached_words = self._ffi.new("uint32_t[]", reached_words)
        slots = self._ffi.new("struct proxy_slot[]", [tuple(slot) for slot in bounds.slots])
        loads = self._ffi.new("struct proxy_load[]", list(bounds.loads))
        parts = self._ffi.new("struct proxy_load[]", list(bounds.parts))
        why_open = self._ffi.new("char[]", sets.why_open.encode())
        function = self._ffi.new(
            "struct proxy_function *",
            {
                "address": info.address,
                "param_count": len(info.params),
                "param_bytes": info.param_bytes,
                "static_shared_bytes": info.static_shared,
                "max_threads": info.max_threads,
                "registers": info.registers,
                "local_bytes": info.local_bytes,
                "const_bytes": info.const_bytes,
                "ptx_version": info.ptx_version,
                "closed": sets.closed,
                "word_count": len(words),
                "words": words,
                "variable_count": len(variables),
                "variables": variables,
                "step_count": len(steps),
                "steps": steps,
                "reached_count": len(reached),
                "reached": reached,
                "reached_word_count": len(reached_words),
                "reached_words": reached_words,
                "slot_count": len(slots),
                "slots": slots,
                "load_count": len(loads),
                "loads": loads,
                "part_count": len(parts),
                "parts": parts,
                "why_open": self._ffi.NULL if sets.closed else why_open,
            },
        )
        layout = [number for param in info.params for number in param]
        self._lib.proxy_function_ready(self._proxy, token, 0, b"", function, layout)

    def status(self) -> dict[str, int]:
        s = self._ffi.new("struct proxy_status *")
        self._lib.proxy_status(self._proxy, s)
        return {
            "used": s.used_bytes,
            "swap": s.swap_bytes,
            "switches": s.switches,
            "swapped_in": s.swapped_in,
            "swapped_out": s.swapped_out,
            "swapped_alike": s.swapped_alike,
            "kernels": s.kernels,
            "wakeups": s.wakeups,
            "squashed": s.squashed,
            "shared": s.shared_bytes,
            "spared": s.not_swapped_bytes,
            "copies": s.copies,
            "unforeseen": s.unforeseen,
            "shares": bool(s.shares),
            "checked": s.checked,
            "prepared": s.prepared,
        }

    def job_status(self, job: int) -> dict[str, Any] | None:
        s = self._ffi.new("struct proxy_job_status *")
        if self._lib.proxy_job_status(self._proxy, job, s):
            return None
        return {
            "state": JOB_STATES.get(s.state, "failed"),
            "cut_at": s.cut_at or None,
            "released_at": s.released_at or None,
            "round": s.round,
            "shared": s.shared_bytes,
            "spent": {
                "seconds": s.seconds,
                "switches": s.switches_s,
                "copies": s.copies_s,
                "waiting": s.waiting_s,
            },
            "guard": {
                "every": s.validate,
                "compared": s.checked,
                "unwatched": s.unwatched,
                "measured": s.measured,
                "alike": s.alike,
            }
            if s.validate
            else None,
            "readers": [n for n in range(64) if s.readers >> n & 1],
            "through_host": s.through_host,
            "direct": s.direct,
            "links": s.links_used,
            "links_refused": s.links_refused,
            "links_bytes": s.links_bytes,
            "links_why_not": self._ffi.string(s.links_why_not).decode(errors="replace"),
            "reason": self._ffi.string(s.reason).decode(errors="replace"),
        }

    def rank_status(self, job: int, rank: int) -> RankStatus | None:
        s = self._ffi.new("struct proxy_rank_status *")
        if self._lib.proxy_rank_status(self._proxy, job, rank, s):
            return None
        text = self._ffi.string(s.error_text).decode(errors="replace")
        return RankStatus(
            bool(s.exited),
            bool(s.resident),
            s.error,
            text,
            s.used_bytes,
            s.kernels,
            s.collectives,
            s.records,
            s.switches,
            s.reads,
            s.squashed,
            s.shared_bytes,
            s.not_swapped_bytes,
            s.copies,
            s.unforeseen,
            s.prepared,
            RANK_AT[s.at],
            s.moves,
        )

    def debug_text(self) -> str:
        """The current state of the loop, as text for people."""
        text = self._ffi.new("char[]", 1 << 16)
        self._lib.proxy_debug_text(self._proxy, text, 1 << 16)
        return str(self._ffi.string(text).decode(errors="replace"))


def segment_create(device_count: int) -> int:
    """Create a shared segment for a job epoch on several devices; returns its descriptor."""
    _ffi, lib = _library()
    fd = int(lib.peer_segment_create(device_count))
    if fd < 0:
        raise NativeError(f"cannot create shared memory for the job: {os.strerror(-fd)}")
    return fd

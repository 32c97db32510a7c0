"""The software GPU in this process: memory, copies and launches without a proxy."""

from __future__ import annotations

import contextlib
import re
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

import cffi
import numpy as np

from rankfold import control, paths
from rankfold.proxy.hal.soft.compiler import cache, codegen, objects, parts
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.info import FunctionInfo

DEV_BASE = 0x200000000000
CHUNK = 2 << 20
WAIT_S = 120.0


def _declarations() -> str:
    text = (paths.REPOSITORY / "proxy/hal/hal.h").read_text()
    text = text.replace("extern const struct hal ", "extern struct hal ")  # for cffi a variable
    numbers = dict(re.findall(r"^#define (\w+) (\d+)u$", text, flags=re.M))
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    return re.sub(r"\[(\w+)\]", lambda m: f"[{numbers.get(m[1], m[1])}]", text)


ffi = cffi.FFI()
ffi.cdef(_declarations())


class Device:
    """A device with one stream per default: soft except for tests/nvidia. Close it, or use it in
    a `with`. `ring`: a C function to be called instead of ours when something has moved; then
    `wait` polls."""

    def __init__(
        self,
        memory: int = 64 << 20,
        workers: int = 1,
        speed: float = 1.0,
        ring: Any = None,
        hal: str = "soft",
    ):
        self.lib = ffi.dlopen(str(paths.native("lib/librankfold-proxy.so")))
        self.hal = getattr(self.lib, f"hal_{hal}")
        self._moved = threading.Event()
        self._polled = ring is not None
        mine = ffi.callback("void(void *)", lambda _arg: self._moved.set())
        self._ring = ring if self._polled else mine
        config = ffi.new("struct hal_config *")
        config.memory_bytes, config.workers, config.speed = memory, workers, speed
        config.cc_major, config.cc_minor = 8, 0
        config.ring, config.ring_arg = self._ring, ffi.NULL
        out = ffi.new("struct hal_device **")
        assert self.hal.device_open(config, out) == 0
        self.handle = out[0]
        self.spaces: list[Space] = []
        self.streams: list[Any] = []
        self.stream = self.new_stream()

    def new_stream(self) -> Any:
        out = ffi.new("struct hal_stream **")
        assert self.hal.stream_create(self.handle, out) == 0
        self.streams.append(out[0])
        return out[0]

    def submit(self, work: Any, stream: Any = None) -> int:
        """The work's number; it must be accepted."""
        number = self.hal.submit(stream or self.stream, work)
        assert number > 0
        return int(number)

    def wait(self, number: int, stream: Any = None) -> None:
        """Waits until that work is complete. Each completion rings, so nothing is polled."""
        stream = stream or self.stream
        while self.hal.completed(stream) < number:
            if self._polled:
                time.sleep(0)
                continue
            assert self._moved.wait(WAIT_S), "the device does not move"
            self._moved.clear()

    def run(self, work: Any, stream: Any = None) -> None:
        self.wait(self.submit(work, stream), stream)

    def space(self) -> Space:
        space = Space(self)
        self.spaces.append(space)
        return space

    def close(self) -> None:
        for stream in self.streams:
            self.hal.stream_destroy(stream)
        for space in self.spaces:
            self.hal.space_destroy(space.handle)
        self.hal.device_close(self.handle)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class Space:
    """One rank's window, with a bump allocator that leaves a chunk at the beginning unmapped."""

    def __init__(self, device: Device):
        self.device, self.hal = device, device.hal
        out = ffi.new("struct hal_space **")
        assert self.hal.space_create(device.handle, out) == 0
        self.handle = out[0]
        self.next = self.mapped = DEV_BASE + CHUNK
        self.chunks: list[int] = []

    def alloc(self, nbytes: int) -> int:
        address = self.next
        self.next += (max(nbytes, 1) + 511) // 512 * 512
        while self.mapped < self.next:
            chunk = ffi.new("uint32_t *")
            assert self.hal.chunk_create(self.device.handle, chunk) == 0
            assert self.hal.space_map(self.handle, self.mapped, chunk[0], True) == 0
            self.chunks.append(chunk[0])
            self.mapped += CHUNK
        return address

    def map(self, address: int, chunk: int, writable: bool = True) -> int:
        return int(self.hal.space_map(self.handle, address, chunk, writable))

    def protect(self, address: int, chunks: int, writable: bool) -> int:
        return int(self.hal.space_protect(self.handle, address, chunks, writable))

    def copied(self) -> dict[int, int]:
        """Pages that have got chunks of their own since the last time: their chunks."""
        found: dict[int, int] = {}
        address, chunk = ffi.new("uint64_t *"), ffi.new("uint32_t *")
        while self.hal.space_copied(self.handle, address, chunk):
            assert address[0] not in found
            found[address[0]] = chunk[0]
        return found

    def put(self, array: np.ndarray[Any, Any]) -> int:
        """A new buffer with the array's bytes: its address."""
        address = self.alloc(array.nbytes)
        self.write(address, array)
        return address

    def write(self, address: int, array: np.ndarray[Any, Any]) -> None:
        data = np.ascontiguousarray(array)
        self._copy((self.handle, address), (ffi.NULL, data.ctypes.data), data.nbytes)

    def read(self, address: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
        data = np.zeros(count, dtype)
        self._copy((ffi.NULL, data.ctypes.data), (self.handle, address), data.nbytes)
        return data

    def _copy(self, dst: tuple[Any, int], src: tuple[Any, int], nbytes: int) -> None:
        work = ffi.new("struct hal_work *", {"kind": self.device.lib.HAL_COPY})
        work.copy.dst.space, work.copy.dst.addr = dst
        work.copy.src.space, work.copy.src.addr = src
        work.copy.width, work.copy.height = nbytes, 1
        work.copy.dst_pitch = work.copy.src_pitch = nbytes
        self.device.run(work)

    def kernel_work(
        self,
        function: FunctionInfo,
        grid: Any,
        block: Any,
        *args: Any,
        shared: int = 0,
        globals_addr: int = 0,
    ) -> tuple[Any, Any]:
        """The work of a launch and the memory it refers to. Arguments: int, float, NumPy scalars,
        bytes."""
        params = bytearray(function.param_bytes)
        assert len(args) == len(function.params), "number of arguments"
        for value, (offset, nbytes) in zip(args, function.params, strict=True):
            params[offset : offset + nbytes] = _pack(value, nbytes)
        buffer = ffi.from_buffer(bytes(params)) if params else ffi.NULL
        work = ffi.new("struct hal_work *", {"kind": self.device.lib.HAL_KERNEL})
        kernel = work.kernel
        kernel.space = self.handle
        kernel.function = ffi.cast("struct hal_function *", function.address)
        for index, (g, b) in enumerate(zip(_three(grid), _three(block), strict=True)):
            kernel.grid[index], kernel.block[index] = g, b
        kernel.shared_bytes, kernel.param_bytes = shared, len(params)
        kernel.params, kernel.globals_addr = buffer, globals_addr
        return work, buffer

    def launch(
        self, function: FunctionInfo, grid: Any, block: Any, *args: Any, **options: Any
    ) -> None:
        """Run a kernel to its end; its error is in `error()`."""
        work, _buffer = self.kernel_work(function, grid, block, *args, **options)
        self.device.run(work)

    def error(self) -> tuple[int, str]:
        text = ffi.new("char[256]")
        code = self.hal.space_error(self.handle, text, 256)
        return code, ffi.string(text).decode()

    def check(self) -> None:
        assert self.error() == (0, ""), self.error()


def _three(value: Any) -> tuple[int, int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (*values, 1, 1, 1)[:3]


def _pack(value: Any, nbytes: int) -> bytes:
    if isinstance(value, bytes):
        assert len(value) == nbytes
        return value
    if isinstance(value, np.generic):
        data = value.tobytes()
        assert len(data) == nbytes
        return data
    if isinstance(value, float):
        return struct.pack("<f" if nbytes == 4 else "<d", value)
    return (int(value) & ((1 << 8 * nbytes) - 1)).to_bytes(nbytes, "little")


@contextlib.contextmanager
def loader(cache: Path, socket: Path) -> Iterator[Loader]:
    """A loader whose compiler process is gone afterwards."""
    made = Loader(paths.native("lib/librankfold-proxy.so"), cache, socket, (8, 0))
    try:
        yield made
    finally:
        stop_compiler(made)


def stop_compiler(made: Loader) -> None:
    """Ends the compiler process of a loader and waits for its end."""
    made.close()
    with contextlib.suppress(control.ControlError):
        control.call(made.socket, "shutdown")
    for child in made.children:
        child.wait()


def store_in_parts(kernels: Loader, image: bytes, name: str) -> int:
    """Compile a kernel as large ones are, and store it for the loader: what its parts are is known
    in this process only. Returns the number of its objects."""
    source = objects.kernel_source(kernels.module(image, 1).ptx, name)
    with patch.object(parts, "PART_BYTES", 1000):
        divided = codegen.compile_kernel(source, name)
    cache.store(kernels.cache_dir, objects.key_of(source, name), divided)
    return len(divided.objects)

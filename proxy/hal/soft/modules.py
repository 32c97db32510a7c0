"""The Python interface of the software GPU for a proxy: modules, and kernels that C can launch.

Calls block (a compilation takes up to seconds) and may come from several threads at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from rankfold import paths, plural
from rankfold.control import Client, ControlError
from rankfold.log import area
from rankfold.proxy.ptx.errors import UNKNOWN, ModuleError
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo, function_info
from rankfold.proxy.ptx.module import find
from rankfold.proxy.ptx.prepared import Prepared

from .compiler import cache, objects

if TYPE_CHECKING:
    from subprocess import Popen

log = area(__file__)

COMPILE_TIMEOUT_S = 1800.0  # the compiler has its own limits, and serves other proxies
START_TIMEOUT_S = 30.0
SLOW_S = 2.0  # a compilation that takes longer is reported
SILENT_S = 2.0  # then, a compiler that does not answer for so long
ATTEMPTS = 5  # a connection may still reach a process that is being killed
RUNTIME_SYMBOLS = tuple(
    f"rankfold_soft_{name}"
    for name in ("trap", "nanoseconds", "print", "assert", "end_at", "diverge", "malloc", "free")
)


def open_loader(state: Path, cc: tuple[int, int]) -> Loader:
    """Returns the loader for a proxy of the fleet in `state` and a device of compute capability
    `cc`."""
    core = paths.native("lib/librankfold-proxy.so")
    return Loader(core, paths.kernel_cache(state), compiler_socket(state), cc)


def compiler_socket(state: Path) -> Path:
    """Returns the socket of a fleet's compiler. A compiler of another version of rankfold, which
    serves proxies started before the change, has a different socket."""
    return paths.sockets(state) / f"compiler-{objects.version()[:12]}.sock"


def _engine() -> llvm.ExecutionEngine:
    """Returns what loads one object. llvmlite's memory manager keeps an object's sections together;
    LLVM's own may place code and constants further apart than relocations reach. It is used for
    one object only, since it aborts where an object is given the rest of a page and needs more."""
    return llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), objects.target_machine(), use_lmm=True
    )


class Loader:
    """Loads modules and kernels into this process.

    `core_lib`: librankfold-proxy.so. `cache_dir`: compiled objects. `socket`: of the node's
    compiler process, which is started if it does not run. `compute_capability`: of the device.
    """

    def __init__(
        self, core_lib: Path, cache_dir: Path, socket: Path, compute_capability: tuple[int, int]
    ):
        self.cache_dir, self.socket = Path(cache_dir), Path(socket)
        self.compute_capability = compute_capability
        self._lock = threading.Lock()
        self._prepared = Prepared(self.cache_dir)
        self._slow = False  # a slow compilation was logged
        self._reported: set[int] = set()  # pids of the unresponsive compilers that were logged
        self._full = False  # modules cannot be stored; it was logged
        self._modules: dict[str, ModuleInfo] = {}
        self._functions: dict[tuple[str, str], FunctionInfo] = {}
        self._addresses: dict[str, int] = {}
        self._keep_alive: Client | None = None
        self.busy: set[Client] = set()  # connections with a compilation in progress
        self._closed = False
        self.children: set[Popen[bytes]] = set()  # compiler processes started by this loader
        library = ctypes.CDLL(str(core_lib))
        for name in RUNTIME_SYMBOLS:
            llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        self._engines: list[llvm.ExecutionEngine] = []  # one for each object

    def close(self) -> None:
        """Closes the connections to the compiler process. Kernels stay valid; compilations that
        other threads wait for fail."""
        with self._lock:
            self._closed = True
            for client in self.busy:
                client.interrupt()
            if self._keep_alive:
                self._keep_alive.close()
                self._keep_alive = None

    def facts(self) -> dict[str, int]:
        """None: ranks see the usual numbers."""
        return {}

    def module(self, image: bytes, kind: int, cc: tuple[int, int] | None = None) -> ModuleInfo:
        """Reads a fatbin or PTX text. `kind` (enum rf_image) is the program's claim; the first
        bytes decide. `cc`: the compute capability for which code is chosen; default: the
        device's. Raises ModuleError."""
        info, not_stored = self._prepared.module(image, cc or self.compute_capability)
        if not_stored and not self._full:
            log.warning("%s; they are prepared again each time: free some space", not_stored)
        self._full = bool(not_stored)
        with self._lock:
            return self._modules.setdefault(info.hash, info)

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        """Returns a kernel, compiled if no object exists. Raises ModuleError."""
        with self._lock:
            known = self._functions.get((module.hash, name))
        if known:
            return known
        kernel = find(module.ptx, name)
        source = objects.kernel_source(module.ptx, name)
        key = objects.key_of(source, name)
        compiled = cache.load(self.cache_dir, key) or self._compile(key, name, source)
        with self._lock:
            if key not in self._addresses:
                self._addresses[key] = self._load(compiled)
            variables = module.ptx.variables.values()
            info = function_info(
                module,
                kernel,
                compiled.sets,
                address=self._addresses[key],
                static_shared=compiled.static_shared,
                max_threads=min(kernel.max_threads, 1024),
                registers=compiled.registers,
                local_bytes=compiled.local_bytes,
                const_bytes=sum(v.size for v in variables if v.space == "const"),
                ptx_version=module.ptx.target,
            )
            return self._functions.setdefault((module.hash, name), info)

    def _load(self, compiled: objects.Compiled) -> int:
        address = 0
        for code, exported in zip(compiled.objects, compiled.exported, strict=True):
            engine = _engine()
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            engine.finalize_object()
            self._engines.append(engine)
            for name in exported:
                llvm.add_symbol(name, engine.get_global_value_address(name))
            address = engine.get_global_value_address(compiled.symbol)  # in the last one
        if not address:
            raise ModuleError(UNKNOWN, f"the object of {compiled.symbol} cannot be linked")
        return int(address)

    # ---- the compiler process

    def _compile(self, key: str, name: str, source: str) -> objects.Compiled:
        """Requests a compilation; if the compiler dies meanwhile, from the next one."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                given = self._request(key, name, source)
                break
            except ControlError as error:
                if error.code != "unreachable" or attempt == ATTEMPTS or self._closed:
                    text = f"kernel {name}: the compiler process: {error}"
                    raise ModuleError(UNKNOWN, text) from error
        compiled = cache.decode(given) if given else cache.load(self.cache_dir, key)
        if compiled is None:
            raise ModuleError(UNKNOWN, f"kernel {name}: no object in {self.cache_dir}")
        return compiled

    def _request(self, key: str, name: str, source: str) -> bytes:
        """Returns the object if it could not be stored in the cache, otherwise nothing."""
        for child in list(self.children):
            self._ended(child)
        client = self._connect()  # succeeds with a stopped compiler, too: see _report_slow
        with self._lock:
            self.busy.add(client)
            if self._closed:
                client.interrupt()
        fd = os.memfd_create("rankfold-ptx", os.MFD_CLOEXEC)
        slow = threading.Timer(SLOW_S, self._report_slow, (name,))
        slow.daemon = True
        slow.start()
        try:
            data = source.encode()
            os.write(fd, data)
            reply, objects = client.request(
                "compile", timeout=COMPILE_TIMEOUT_S, fds=[fd], key=key, name=name, bytes=len(data)
            )
        finally:
            slow.cancel()
            os.close(fd)
            with self._lock:
                self.busy.discard(client)
            self._give_back(client)
        if "code" in reply:
            raise ModuleError(int(reply["code"]), str(reply["message"]))
        given = b""
        for each in objects:
            with os.fdopen(each, "rb"):
                given = os.pread(each, os.fstat(each).st_size, 0)
        return given

    def _report_slow(self, name: str) -> None:
        """Logs that a compilation takes a while: once for this proxy, and once for each compiler
        that does not answer."""
        if (pid := self._silent()) and pid not in self._reported:
            self._reported.add(pid)
            log.warning(
                "kernel %s cannot be compiled now: the compiler (process %d) is unresponsive; "
                "`kill -CONT %d` lets it continue if a signal has stopped it, and `kill -9 %d` "
                "kills it: then another one is started",
                name,
                pid,
                pid,
                pid,
            )
            return
        with self._lock:
            first, self._slow = not self._slow, True
            number = plural.count(len(self.busy), "kernel")
        if first:
            log.warning(
                "kernel %s has been compiling for %g s; this device waits for %s; they are kept "
                "in %s for the next run",
                name,
                SLOW_S,
                number,
                self.cache_dir,
            )

    def _silent(self) -> int:
        """The compiler's process, if it does not answer for SILENT_S; otherwise 0."""
        pid = 0
        try:
            with Client(self.socket, SILENT_S) as client:
                pid = client.pid
                client.request("status")
        except ControlError as error:
            return pid if error.code == "timeout" else 0
        return 0

    def _give_back(self, client: Client) -> None:
        """Keeps one connection open, because the compiler does not end while it has a client."""
        with self._lock:
            old, self._keep_alive = self._keep_alive, client
            if self._closed:
                old, self._keep_alive = client, None
        if old:
            old.close()

    def _connect(self) -> Client:
        """Returns a connection to the compiler, which is started if no process answers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        child: Popen[bytes] | None = None
        while not self._closed:
            with contextlib.suppress(ControlError):
                return Client(self.socket)
            if child is None or self._ended(child):
                child = self._spawn()
            if time.monotonic() > deadline:
                raise ControlError("timeout", f"no compiler at {self.socket}")
            time.sleep(0.02)
        raise ControlError("closed", "the proxy exits")

    def _spawn(self) -> Popen[bytes]:
        """Starts a compiler in its own session: it also serves other proxies and may outlive this
        one."""
        import subprocess  # most proxies find a compiler, or compile nothing

        command = [
            sys.executable,
            "-m",
            "rankfold.proxy.hal.soft.compiler.server",
            "--socket",
            str(self.socket),
            "--cache",
            str(self.cache_dir),
        ]
        null = subprocess.DEVNULL
        child = subprocess.Popen(command, stdin=null, stdout=null, start_new_session=True)
        with self._lock:
            self.children.add(child)
        return child

    def _ended(self, child: Popen[bytes]) -> bool:
        """Returns True if the process has ended; also reaps it, so that no zombie remains."""
        if child.poll() is None:
            return False
        with self._lock:
            self.children.discard(child)
        return True

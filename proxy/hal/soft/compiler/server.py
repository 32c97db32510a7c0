"""The compiler process: one per node, it turns PTX into cached objects for all proxies.

``python -m rankfold.proxy.hal.soft.compiler.server --socket PATH --cache DIR``. The first proxy
that needs it starts it; a lock file next to the socket ensures that there is only one; it ends
after a while without clients and work. Each compilation runs in a child process with a time limit,
so that a crash or hang of LLVM affects only that kernel. The limit applies to processor time,
because on a busy machine a child may get little of it.

Operations: `Compile`; ``status`` → pid, compiled, running; ``shutdown``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import math
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from rankfold import limits, messages, plural, switches
from rankfold.control import ControlError, Message
from rankfold.log import area, set_up
from rankfold.proxy.ptx import stored
from rankfold.proxy.ptx.errors import UNKNOWN, ModuleError
from rankfold.service import Request, Server

from . import cache, codegen, objects, output

log = area(__file__)

IDLE_S = 2.0
TIME_LIMIT_S = 120.0
BUSY = 10  # factor between the wall-clock limit and the processor-time limit of a child
SOURCE_BYTES_MAX = 1 << 28
SHRINK_EVERY = 256  # compilations


class Compile(messages.Operation, frozen=True, tag="compile"):
    """Request with a descriptor of the PTX. Reply: {} once the object is in the cache; with a
    descriptor of the object if it cannot be stored there; or {code, message}: a CUresult and the
    reason."""

    takes_fds: ClassVar[int] = 1

    key: messages.Name
    name: Annotated[str, Meta(min_length=1, max_length=1 << 16)]
    bytes: Annotated[int, Meta(ge=1, le=SOURCE_BYTES_MAX)]


@dataclass
class Job:
    """One compilation and all requests that wait for it."""

    key: str
    name: str
    source: str
    requests: list[Request[Compile]] = field(default_factory=list)
    pid: int = 0
    object: int = -1  # memory for an object that the cache cannot store
    output: bytes = b""
    timed_out: bool = False


class Compiler:
    def __init__(self, socket: Path, folder: Path, time_limit_s: float, idle_s: float):
        self.folder, self.time_limit_s, self.idle_s = folder, time_limit_s, idle_s
        self.jobs: dict[str, Job] = {}
        self.waiting: deque[Job] = deque()
        self.most = switches.cache_bytes()
        self.slots = max(1, os.cpu_count() or 1)
        self.compiled = 0
        self.reported = False
        self.full = False  # the cache accepts nothing more
        self.outputs, why = output.folder()
        self.report_not_written(why)
        self.server = Server(
            socket,
            {
                Compile: self.compile,
                messages.Status: self.status,
                messages.Shutdown: self.shutdown,
            },
        )
        self.server.after(self.idle_s, self.check_idle)

    # ---- operations

    def compile(self, request: Request[Compile]) -> Message | None:
        key, name = request.message.key, request.message.name
        try:
            source = os.pread(request.fds[0], request.message.bytes, 0).decode()
        except (OSError, UnicodeError) as error:
            raise ControlError("argument", f"the PTX cannot be read: {error}") from error
        if objects.key_of(source, name) != key:
            problem = "rankfold was changed after the requesting proxy had been started"
            raise ControlError("version", f"{problem}: stop that proxy, and it is started again")
        if cache.load(self.folder, key):
            return {}
        job = self.jobs.get(key)
        if job is None:
            job = self.jobs[key] = Job(key, name, source)
            self.waiting.append(job)
        job.requests.append(request)
        self.start_more()
        return None

    def status(self, _request: Request[Any]) -> Message:
        running = [job.pid for job in self.jobs.values() if job.pid]
        return {"pid": os.getpid(), "compiled": self.compiled, "running": running}

    def shutdown(self, _request: Request[Any]) -> Message:
        for job in self.jobs.values():
            if job.pid:
                os.kill(job.pid, signal.SIGKILL)
        self.server.stop()
        return {}

    # ---- children

    def start_more(self) -> None:
        running = sum(1 for job in self.jobs.values() if job.pid)
        while self.waiting and running < self.slots:
            self.start(self.waiting.popleft())
            running += 1

    def start(self, job: Job) -> None:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        job.object = os.memfd_create("rankfold-object", os.MFD_CLOEXEC)
        job.pid = os.fork()
        if job.pid == 0:
            os.close(read_end)
            _child(self.folder, self.outputs, job, write_end, self.time_limit_s)
        os.close(write_end)
        self.server.add(read_end, self.reader(job, read_end))
        self.server.after(BUSY * self.time_limit_s, lambda: self.expire(job))

    def reader(self, job: Job, fd: int) -> Callable[[], None]:
        def read() -> None:
            data = os.read(fd, 1 << 16)
            job.output += data
            if not data:
                self.server.remove(fd)
                os.close(fd)
                self.finish(job)

        return read

    def expire(self, job: Job) -> None:
        if self.jobs.get(job.key) is job:
            job.timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.pid, signal.SIGKILL)

    def finish(self, job: Job) -> None:
        _, status = os.waitpid(job.pid, 0)
        del self.jobs[job.key]
        objects: list[int] = []
        if job.timed_out or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
            result = failure(job, f"timed out after {self.time_limit_s:g} s")
        elif os.WIFSIGNALED(status):
            result = failure(job, f"was killed by signal {os.WTERMSIG(status)}")
        else:
            try:
                outcome = json.loads(job.output)
                result = outcome["result"]
                self.report_not_written(outcome["output_error"])
                self.report_not_stored(outcome["store_error"])
                objects = [job.object] if outcome["store_error"] else []
            except ValueError:
                result = failure(job, f"exited with status {os.waitstatus_to_exitcode(status)}")
        self.compiled += 1
        if self.compiled % SHRINK_EVERY == 0:
            self.shrink()
        for request in job.requests:
            request.reply(objects, **result)
        os.close(job.object)
        self.start_more()

    def shrink(self) -> None:
        """Removes kernels and modules that have not been used for longest from a full cache."""
        if removed := stored.shrink(self.folder, self.most):
            log.info(
                "%s removed from %s, which was full", plural.count(removed, "file"), self.folder
            )

    def report_not_written(self, why: str) -> None:
        """Logs the reason once, and stops keeping intermediate files."""
        if why and not self.reported:
            self.reported = True
            log.warning("%s", why)
        self.outputs = None if why else self.outputs

    def report_not_stored(self, why: str) -> None:
        """Logs when storing begins to fail."""
        if why and not self.full:
            log.warning("%s; compiled kernels are not cached until there is space: free some", why)
        self.full = bool(why)

    def check_idle(self) -> None:
        if not self.jobs and not self.server.clients():
            self.server.stop()
        else:
            self.server.after(self.idle_s, self.check_idle)

    def run(self) -> None:
        self.shrink()
        self.server.run()


def failure(job: Job, problem: str) -> Message:
    """The reply if the compiler fails, rather than refuses the PTX."""
    return {"code": UNKNOWN, "message": f"kernel {job.name}: its compilation {problem}"}


def _child(folder: Path, outputs: Path | None, job: Job, reply: int, limit_s: float) -> None:
    """Compiles in the child; never returns. Writes to the pipe the result, and why intermediate
    files or the object could not be stored."""
    status, store_error = 1, ""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        limits.compute_for(math.ceil(limit_s))
        result: Message = {}
        files = output.StageFiles(outputs, job.key, job.name) if outputs else None
        try:
            compiled = codegen.compile_kernel(job.source, job.name, files.keep if files else None)
            try:
                cache.store(folder, job.key, compiled)
            except OSError as error:
                os.pwrite(job.object, cache.encode(compiled), 0)
                store_error = f"kernels cannot be stored in {folder}: {error.strerror or error}"
        except ModuleError as error:
            result = {"code": error.code, "message": error.message}
        except Exception as error:  # noqa: BLE001  a fault of ours: say in which kernel
            result = failure(job, f"failed: {error!r}")
        output_error = files.failed if files else ""
        outcome = {"result": result, "output_error": output_error, "store_error": store_error}
        os.write(reply, json.dumps(outcome).encode())
        status = 0
    finally:
        os._exit(status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S, help="seconds per kernel")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds without a client")
    arguments = parser.parse_args()
    lock = os.open(f"{arguments.socket}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another process serves
    set_up()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    objects.target_machine()  # children inherit the initialised state
    Compiler(arguments.socket, arguments.cache, arguments.time_limit, arguments.idle).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the fleet really does: the answers of proxies and launchers, and exit files.

Never a pid: a process that does not answer on its socket is not there, unless it still holds its
lock file (then it starts, or is busy). Reads only; `status` uses it without a reconciler.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from rankfold import control
from rankfold.messages import (
    JobTold,
    LauncherHello,
    LauncherStatus,
    ProxyHello,
    ProxyStatus,
    RankFault,
    RankTold,
)
from rankfold.reconciler.layout import Layout, is_locked
from rankfold.reconciler.model import (
    JobOnDevice,
    Json,
    Observed,
    RankOnDevice,
    Record,
    SeenDevice,
    SeenRank,
)

ASK_TIMEOUT_S = 2.0
HOST_MEMORY_SHARE = 0.8  # of the machine's memory may be promised to folded and resting ranks
WORKERS = 8
# After these the connection is not used again.
BROKEN_CODES = (
    "unreachable", "timeout", "not_json", "nonsense", "too_long", "version", "fds", "internal",
    "denied",
)  # fmt: skip


class Connections:
    """Open connections to proxies and launchers, one per socket, made anew when they break.

    A socket may be asked from one thread at a time.
    """

    def __init__(self) -> None:
        self._clients: dict[str, control.Client] = {}
        self._hello: dict[str, Json] = {}

    def ask(self, path: Path, op: str, timeout: float = ASK_TIMEOUT_S, **arguments: Any) -> Json:
        """Raises ControlError; what failed to answer is connected to anew the next time."""
        key = str(path)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = control.Client(path, timeout)
            self._hello.pop(key, None)
        try:
            reply, fds = client.ask(op, timeout=timeout, **arguments)
        except control.ControlError as error:
            if error.code in BROKEN_CODES:
                self.drop(path)
            raise
        for fd in fds:
            os.close(fd)
        return reply

    def hello(self, path: Path) -> Json:
        """What the process behind the socket says of itself; asked once per connection."""
        key = str(path)
        if key not in self._hello or key not in self._clients:
            self._hello[key] = self.ask(path, "hello")
        return self._hello[key]

    def refresh(self, path: Path) -> None:
        """Forget what `hello` said."""
        self._hello.pop(str(path), None)

    def drop(self, path: Path) -> None:
        client = self._clients.pop(str(path), None)
        self._hello.pop(str(path), None)
        if client:
            client.close()

    def close(self) -> None:
        for path in list(self._clients):
            self.drop(Path(path))


def observe(
    layout: Layout, devices: Iterable[str], records: Mapping[str, Record], links: Connections
) -> Observed:
    """Ask every device of `devices` and every rank of the jobs that have started."""
    ranks = [
        (record.name, rank)
        for record in records.values()
        if record.fixed is not None and record.step != "ended"
        for rank in range(record.fixed.world_size)
    ]
    with ThreadPoolExecutor(WORKERS) as pool:
        seen_devices = pool.map(lambda name: see_device(layout, name, links), devices)
        seen_ranks = pool.map(lambda each: see_rank(layout, each[0], each[1], links), ranks)
        return Observed(
            {seen.name: seen for seen in seen_devices if seen},
            {(seen.job, seen.rank): seen for seen in seen_ranks if seen},
            host_memory(),
        )


def known_devices(layout: Layout) -> set[str]:
    """Devices that have a lock file somebody holds: also those no pool names any longer."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for file in (layout.state / "proxies").iterdir():
            if file.suffix == ".lock" and is_locked(file):
                found.add(file.read_text().strip())
    return found - {""}


def see_device(layout: Layout, name: str, links: Connections) -> SeenDevice | None:
    path = layout.proxy_socket(name)
    try:
        hello = control.expect(ProxyHello, links.hello(path))
        status = control.expect(ProxyStatus, links.ask(path, "status"))
        return _device(hello, status) if hello.device == name else None
    except control.ControlError:
        if is_locked(layout.proxy_file(name, ".lock")):
            return SeenDevice(name, ready=False)
        return None


def _device(hello: ProxyHello, status: ProxyStatus) -> SeenDevice:
    counted = ("switches", "swapped_in", "swapped_out", "kernels")
    return SeenDevice(
        hello.device, True, hello.pid, status.type, status.memory, status.used, status.swap,
        tuple(_job(each) for each in status.jobs), {key: getattr(status, key) for key in counted},
        _kernels(status),
    )  # fmt: skip


def _kernels(status: ProxyStatus) -> dict[str, int]:
    """Kernels that each rank ran here, those of ended placements included."""
    counted: dict[str, int] = {}
    ended = [(gone.job, gone) for gone in status.history]
    now = [(job.job, rank) for job in status.jobs if job.state != "saved" for rank in job.ranks]
    for job, each in [*ended, *now]:
        name = f"{job}/{each.rank}"
        counted[name] = counted.get(name, 0) + each.kernels_here
    return {name: count for name, count in counted.items() if count}


def _job(told: JobTold) -> JobOnDevice:
    return JobOnDevice(
        told.job, told.epoch, told.state, told.reason, told.cut_at, told.released_at,
        tuple(_rank(each) for each in told.ranks),
    )  # fmt: skip


def _rank(told: RankTold) -> RankOnDevice:
    counters = msgspec.structs.asdict(told)
    for name in ("rank", "state", "error"):
        del counters[name]
    return RankOnDevice(told.rank, told.state, counters, _error_text(told.error))


def _error_text(error: RankFault | None) -> str:
    return "" if error is None else error.text or f"CUDA error {error.code}"


def see_rank(layout: Layout, job: str, rank: int, links: Connections) -> SeenRank | None:
    """The exit file counts first: a launcher writes it, then ends."""
    if ended := read_exit(layout, job, rank):
        links.drop(layout.launcher_socket(job, rank))
        return ended
    path = layout.launcher_socket(job, rank)
    try:
        status = control.expect(LauncherStatus, links.ask(path, "status"))
        pid = control.expect(LauncherHello, links.hello(path)).pid
        if pid is None:
            links.refresh(path)
        if status.state == "running":
            return SeenRank(job, rank, "running", pid, status.channel)
    except control.ControlError:
        pass
    # It may have ended between the two looks, or be about to write.
    if ended := read_exit(layout, job, rank):
        return ended
    if is_locked(layout.launcher_lock(job, rank)):
        return SeenRank(job, rank, "starting")
    return read_exit(layout, job, rank)


def read_exit(layout: Layout, job: str, rank: int) -> SeenRank | None:
    try:
        data = json.loads(layout.rank_file(job, rank, ".exit").read_text())
        status = data["exit_status"]
        return SeenRank(
            job, rank, "exited", None, False,
            int(status) if status is not None else None, str(data.get("error") or ""),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def last_lines(file: Path, count: int = 3, bytes_max: int = 4096) -> str:
    """The end of a log, for a message."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - bytes_max))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-count:])


def host_memory() -> int:
    """Bytes that jobs may need beside their devices: a share of the machine's, or the cgroup's."""
    if explicit := os.environ.get("RANKFOLD_HOST_MEMORY"):
        return int(explicit)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return int(total * HOST_MEMORY_SHARE)

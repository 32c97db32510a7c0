"""Finds processes of a fleet that are neither in its journal nor on a device: the compiler of the
software GPU, and proxies and launchers whose state directory was removed.

Their sockets are outside the state directory, so they can be found there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from rankfold import control
from rankfold.reconciler.deadlines import SILENT_AFTER_S
from rankfold.reconciler.layout import Layout, is_locked
from rankfold.reconciler.liveness import is_stopped
from rankfold.reconciler.model.values import Json

_PROXY, _LAUNCHER, _COMPILER = "d", "l", "compiler"  # first part of the sockets' names
_AT_ONCE = 16


class _Listener(Struct, frozen=True):
    """The process that listens on a socket. `hello` is None if the process `pid` does not
    answer."""

    kind: str
    pid: int
    hello: Json | None


def find_strays(layout: Layout, known: Container[Path]) -> tuple[str, ...]:
    """Descriptions of problems, for people. known: sockets of proxies and launchers that are
    queried elsewhere.

    Takes at most SILENT_AFTER_S for each 16 processes that do not answer.
    """
    paths = [
        path
        for path in sorted(layout.sockets.glob("*.sock"))
        if _kind(path) in (_PROXY, _LAUNCHER, _COMPILER) and path not in known
    ]
    listeners = [each for each in _query_all(paths) if each]
    return (*_silent_compilers(listeners), *_orphaned(layout, listeners))


def _kind(path: Path) -> str:
    return path.name.partition("-")[0]


def _query_all(paths: Sequence[Path]) -> Iterable[_Listener | None]:
    if len(paths) < 2:  # a compiler at most, usually
        return map(_query, paths)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_query, paths))


def _query(path: Path) -> _Listener | None:
    """Send `hello`; None: no process listens there."""
    pid = 0
    try:
        with control.Client(path, SILENT_AFTER_S) as client:
            pid = client.pid
            hello, fds = client.request("hello")
            control.close_all(fds)
            return _Listener(_kind(path), pid, hello)
    except control.ControlError as error:
        if not pid or error.code == "unreachable":
            return None
        return _Listener(_kind(path), pid, None if error.code == "timeout" else {})


def _silent_compilers(listeners: Iterable[_Listener]) -> Iterable[str]:
    for each in listeners:
        if each.kind != _COMPILER or each.hello is not None:
            continue
        text = (
            f"the compiler (process {each.pid}) is unresponsive: no answer for {SILENT_AFTER_S:g} s"
        )
        if is_stopped(each.pid):
            text += f"; a signal has stopped it: `kill -CONT {each.pid}` lets it continue"
        else:
            text += f"; `kill -9 {each.pid}` kills it, and the next compilation starts another"
        yield f"{text}. Ranks that need a kernel compiled are waiting"


def _orphaned(layout: Layout, listeners: Iterable[_Listener]) -> Iterable[str]:
    """One sentence for all processes whose state directory was removed."""
    orphans = [
        each
        for each in listeners
        if each.kind != _COMPILER and not _is_of_state_directory(layout, each)
    ]
    if not orphans:
        return
    shown = ", ".join(_named(each) for each in orphans)
    pids = " ".join(str(each.pid) for each in orphans)
    reason = (
        "does not exist"
        if not layout.state.exists()
        else "is not the directory they were started for"
    )
    yield (
        f"processes of a fleet are running whose state directory was removed ({layout.state} "
        f"{reason}), and no reconciler manages them: {shown}; `kill -9 "
        f"{pids}` kills them and their ranks"
    )


def _is_of_state_directory(layout: Layout, each: _Listener) -> bool:
    """Whether the present state directory is the one that the process was started for: the process
    holds a lock there for its life."""
    if not layout.state.exists():
        return False
    if not each.hello:
        return True  # its owner is not known
    with contextlib.suppress(OSError, KeyError, TypeError):
        if each.kind == _LAUNCHER:
            return is_locked(layout.launcher_lock(each.hello["job"], each.hello["rank"]))
        return is_locked(layout.proxy_file(each.hello["device"], ".lock"))
    return True


def _named(each: _Listener) -> str:
    hello = each.hello or {}
    if each.kind == _LAUNCHER:
        rank = f" of {hello['job']}/{hello['rank']}" if "rank" in hello else ""
        return f"launcher {each.pid}{rank}"
    device = f" of {hello['device']}" if "device" in hello else ""
    return f"proxy {each.pid}{device}"

"""The launcher of one rank: starts it, keeps what outlives the proxies, and records how the rank
ended.

It does not depend on the process that started it (start.py): it keeps running when the reconciler
or a proxy dies, and is found again through its control socket (operations: see
rankfold/messages.py). When the launcher is killed, its rank dies too. Where privileges allow, the
launcher is pid 1 of a pid namespace that holds the rank and its children; the first pid there is
1000·(rank + 1), so that names derived from pids do not collide in a shared /tmp. Elsewhere the
launcher is a plain subreaper, and killing it kills only the rank itself, not the processes that the
rank started. ``hello`` reports which of the two it is: ``namespaced``.

config.py describes the fields of the config.

When the process that owns the channel has exited and another process of the rank makes a channel,
the launcher also makes a fresh image and sends the notice {"event": "channel"} to each proxy that
claimed the rank. The proxy then claims it again, with the same epoch. A claim that is still
deferred when the rank ends is refused with code "exited"; a claim that a higher epoch overtakes is
refused with "stale".
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence

from rankfold import messages, peers, service
from rankfold.control import Channel, ControlError, Message
from rankfold.interpose.launcher import handshake, interposer
from rankfold.interpose.launcher.config import Config, preloads, rank_environment
from rankfold.interpose.launcher.files.tracker import PAUSE_S, Tracker
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank import sandbox as sandboxes
from rankfold.interpose.launcher.rank.remains import Remains
from rankfold.interpose.launcher.rank.workers import Workers
from rankfold.interpose.launcher.rest import Rest
from rankfold.interpose.launcher.state_folder import StateFolder
from rankfold.log import area
from rankfold.service import Request

log = area(__file__)

STARTS_LATE_S = 10.0  # after this time, a rank that has not reported its start is late
RECORD_AGAIN_S = 0.5  # between two attempts to write the exit file
ALLOWED_WHILE_STARTING = (messages.Hello, messages.Status, messages.Claim, messages.Signal)
STOPPED_SEARCH_S = 1.0  # between two searches for processes that a signal has stopped
STOPPED_SEARCH_MACHINE_S = 30.0  # the same where /proc shows the whole machine: all of it is read


class Launcher:
    """The launcher process: one event loop over its sockets and the exits of its children."""

    def __init__(self, config: Config, namespaced: bool, host_proc: int):
        self.config = config
        self.namespaced = namespaced
        self.host_proc = host_proc
        self.starting: process.Starting | None = None
        self.started: process.Started | None = None
        self._early_status: int | None = (
            None  # wait status of a rank that ended before `started` was set
        )
        self.epoch = 0
        self.device = ""
        self.exit_status: int | None = None
        self._next_stopped_search, self._stopped_processes = 0.0, list[str]()
        self._claimed: set[Channel] = set()
        self._waiting: list[Request[messages.Claim]] = []
        self._image = self._make_image()
        self.workers = Workers()
        self.remains = Remains(self)
        self.libraries: str | None = None  # folder with the copies that the rank preloads
        self.tracker = Tracker(config, lambda: self.state() == "running")
        self.rest: Rest | StateFolder = (
            StateFolder(self, self._begin)
            if config.state_folder
            else Rest(self, _name(config), lambda: preloads(config))
        )
        handlers: dict[type[messages.Operation], service.Handler] = {
            messages.Hello: self._hello,
            messages.Status: self._status,
            messages.Claim: self._claim,
            messages.Signal: self._signal,
            messages.End: self._end_empty,
            **self.rest.operations(),
        }
        checked = {
            kind: self._checked_for_incarnation(handler) for kind, handler in handlers.items()
        }
        self.server = service.Server(
            config.socket, checked, peers.Gate(host_proc), serves=os.path.dirname(config.exit_file)
        )
        self.server.on_close = self._closed
        identity = handshake.Identity(
            config.rank, config.world_size, config.local_world_size, config.device
        )
        self.client_listener = handshake.ClientListener(
            config.client_socket, identity, self.server, self._on_channel, self._is_of_rank
        )

    # ---- the rank -----------------------------------------------------------------------

    def start(self, then: Callable[[], None]) -> None:
        """Start the rank; call `then` when it runs, cannot run, or (`empty`) is not to run. From
        here on the loop notices the rank's end."""
        config = self.config
        self._watch_children()
        if self.namespaced:
            self.tracker.begin(afresh=not config.empty)
            self._watch_files()
        if config.empty:
            then()
        else:
            self._begin(then)

    def _begin(self, then: Callable[[], None]) -> None:
        """Start the rank's command, and call `then`."""
        command = self._command()
        if self.namespaced:
            try:
                process.set_next_pid(self.config.rank)
            except OSError as error:  # read-only /proc/sys: only names made from pids may collide
                log.warning("first pid not set: %s", error)
        self.starting = process.begin(command, self.host_proc, not self.namespaced)
        self.server.add(self.starting.pipe, lambda: self._on_start_report(then))
        self.server.after(STARTS_LATE_S, self._late)

    def _on_start_report(self, then: Callable[[], None]) -> None:
        starting = self.starting
        if starting is None or not starting.read():
            return
        self.server.remove(starting.pipe)
        os.close(starting.pipe)
        self.starting = None
        try:
            self.started = starting.outcome()
        except process.CannotStart as failure:
            with open(self.config.log("err"), "a", opener=_private) as err:
                err.write(f"rankfold: {failure}\n")
            then()
            self.end(failure.exit_status, str(failure))
            return
        then()
        if self._early_status is not None:
            self._first_ended(os.waitstatus_to_exitcode(self._early_status), {})

    def _late(self) -> None:
        if self.starting:
            self.remains.report(self.starting.waits_for())

    def _command(self) -> process.Command:
        """The job's command, with the sandbox and the environment of the rank."""
        config, inside = self.config, None
        if self.namespaced:
            if preload := preloads(config):
                self.libraries = str(interposer.keep(preload, config.copies))
            inside = self.sandbox()
        if inside is None or inside.fixed is None:
            env = rank_environment(config, dict(os.environ))
            out, err = config.log("out"), config.log("err")
        else:
            libraries = sandboxes.LIBRARIES if self.libraries else ""
            env = rank_environment(config, dict(os.environ), sandboxes.SOCKET, libraries)
            out, err = sandboxes.OUT, sandboxes.ERR
        return process.Command(config.command, config.workdir, env, out, err, inside)

    def sandbox(self) -> sandboxes.Sandbox:
        """The rank's sandbox; used only if the rank has namespaces."""
        config = self.config
        fixed = None
        if _can_mount_files():
            out, err = config.log("out"), config.log("err")
            fixed = sandboxes.Fixed(config.client_socket, out, err, self.libraries)
        visible = (config.workdir,) if fixed else (config.client_socket, config.workdir)
        return sandboxes.Sandbox(config.hidden, visible, fixed)

    def _watch_files(self) -> None:
        """Read the events on files, but at most once every `PAUSE_S`."""
        if not self.tracker.watches:
            return

        def on_event() -> None:
            self.server.remove(self.tracker)
            self.tracker.read()
            self.server.after(PAUSE_S, self._watch_files)

        self.server.add(self.tracker, on_event)

    def _watch_children(self) -> None:
        ours, kernels = socket.socketpair()
        ours.setblocking(False)
        kernels.setblocking(False)
        self._wakeup = (ours, kernels)
        signal.set_wakeup_fd(kernels.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        self.server.add(ours, self._children)

    def _children(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup[0].recv(4096)
        reaped = process.reap()
        if self.remains.ending:
            return
        if self.starting:
            self._early_status = reaped.get(self.starting.pid, self._early_status)
        status = reaped.get(self.started.pid) if self.started else None
        if status is not None and not self.rest.ending:
            self._first_ended(os.waitstatus_to_exitcode(status), reaped)
        for pid, how in reaped.items():
            if not self.remains.ending:
                self.workers.ended(pid, how)
        if not self.remains.ending:
            self.rest.children_ended()

    def _first_ended(self, exit_status: int, reaped: dict[int, int]) -> None:
        """The rank's first process has ended. `reaped`: what else has ended at the same time."""
        assert self.started is not None
        if exit_status == 0 and (successor := self.remains.successor(self.started)):
            self.started = successor
            return
        if (
            exit_status == 0
            and (channel := self.client_listener.channel_and_owner())
            and channel[1] in reaped
        ):
            exit_status = os.waitstatus_to_exitcode(reaped[channel[1]])
        self.rest.background.before_end(
            lambda: self.remains.kill(exit_status, lambda: self.end(exit_status))
        )

    def end(self, exit_status: int, error: str | None = None) -> None:
        """Record the exit status, notify the proxy that serves the rank, and stop the loop."""
        if self.exit_status is not None:
            return
        self.tracker.read()
        self.tracker.forget_previous()
        self.exit_status = exit_status
        for channel in list(self._claimed):
            self.server.post(channel, {"event": "exited", "exit_status": exit_status})
        for request in self._waiting:
            request.refuse(ControlError("exited", f"the rank has ended ({exit_status})"))
        self._waiting.clear()
        self.rest.ended(exit_status)
        self._record_end(exit_status, error or self.rest.trouble)

    def _record_end(self, exit_status: int, error: str | None) -> None:
        """Write the exit file, the only record of how the rank ended: while the disk is full,
        retry."""
        try:
            write_exit_file(self.config.exit_file, exit_status, error, self.remains.killed)
        except OSError as failure:
            log.error("%s: %s", self.config.exit_file, failure)
            if os.path.isdir(os.path.dirname(self.config.exit_file)):
                self.server.after(RECORD_AGAIN_S, lambda: self._record_end(exit_status, error))
                return
        self.server.stop()

    def run(self) -> None:
        """Serve until the rank has ended."""
        self.server.run()

    # ---- the channel, and the proxies that claim it --------------------------------------

    def _make_image(self) -> int:
        fd = os.memfd_create(f"rankfold-image-{self.config.rank}", os.MFD_CLOEXEC)
        os.ftruncate(fd, self.config.image_bytes)
        return fd

    def _on_channel(self, replaced: bool) -> None:
        if replaced:  # the second process has no use for the first one's memory
            os.close(self._image)
            self._image = self._make_image()
            for claimed in list(self._claimed):
                self.server.post(claimed, {"event": "channel"})
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._grant(request)

    # ---- what Rest needs of the rank ------------------------------------------------------

    @property
    def image(self) -> int:
        return self._image

    def channel(self) -> tuple[int, int] | None:
        """The channel, and the pid of its owner."""
        return self.client_listener.channel_and_owner()

    def vacated(self) -> None:
        """We have ended the rank's processes: notify the proxy that serves the rank, and reset."""
        for channel in list(self._claimed):
            notice = {"event": "exited", "exit_status": -signal.SIGKILL}
            self.server.post(channel, notice)
        self._claimed.clear()
        self.started, self.libraries = None, None
        self.tracker.forget_previous()
        self.client_listener.forget()
        os.close(self._image)
        self._image = self._make_image()

    def restored(self, pid: int, memory: tuple[int, int] | None) -> None:
        """The rank is restored. Raises OSError, and Refused if `memory` is not a channel."""
        host_pid = process.host_pid(pid, self.host_proc)
        self.started = process.Started(pid, host_pid, process.mounts_of(pid))
        if memory:
            self.client_listener.restore_channel(*memory)

    def _is_of_rank(self, pid: int) -> bool:
        """Whether a process is below the launcher. `pid` is as this namespace numbers it: 0 is a
        process outside of the namespace."""
        return pid > 0 and (self.namespaced or pid in process.descendants(os.getpid()))

    def _claim(self, request: Request[messages.Claim]) -> Message | None:
        epoch, device = request.message.epoch, request.message.device
        if epoch < self.epoch or (epoch == self.epoch and device != self.device):
            raise ControlError(
                "stale", f"rank {self.config.rank} is claimed by {self.device}, epoch {self.epoch}"
            )
        self.epoch, self.device = epoch, device
        superseded = [other for other in self._waiting if other.message.epoch < epoch]
        self._waiting = [other for other in self._waiting if other not in superseded]
        for other in superseded:
            other.refuse(ControlError("stale", f"superseded by {device}, epoch {epoch}"))
        if self.client_listener.channel is None:
            self._waiting.append(request)
        else:
            self._grant(request)
        return None

    def _grant(self, request: Request[messages.Claim]) -> None:
        assert self.client_listener.channel is not None
        self._claimed.add(request.channel)
        request.reply(fds=[self.client_listener.channel, self._image])

    def _closed(self, channel: Channel) -> None:
        self._claimed.discard(channel)
        self._waiting = [request for request in self._waiting if request.channel is not channel]

    # ---- the other operations -----------------------------------------------------------

    def _checked_for_incarnation(self, handler: service.Handler) -> service.Handler:
        """Refuse requests for another incarnation of the job, and those that do not fit the
        state."""

        def checked(request: Request[messages.Operation]) -> Message | None:
            message, config = request.message, self.config
            if self.starting and not isinstance(message, ALLOWED_WHILE_STARTING):
                raise ControlError("busy", self.starting.waits_for())
            if self.remains.ending and not isinstance(message, (messages.Hello, messages.Status)):
                raise ControlError("exited", self.remains.ending)
            if isinstance(message, messages.OfRank):
                other, own = message.incarnation, config.incarnation
                if other < own or (other > own and not message.ends):
                    over = f"{other} has ended" if other < own else f"end it before {other} begins"
                    problem = f"rank {config.rank} of {config.job} runs here in incarnation {own}"
                    raise ControlError("incarnation", f"{problem}: {over}")
            return handler(request)

        return checked

    def _hello(self, _request: Request[messages.Hello]) -> Message:
        return {
            "kind": "launcher",
            "job": self.config.job,
            "rank": self.config.rank,
            "pid": self.started.host_pid if self.started else None,
            "namespaced": self.namespaced,
            "incarnation": self.config.incarnation,
        }

    def _status(self, _request: Request[messages.Status]) -> Message:
        return {
            "state": self.state(),
            "channel": self.client_listener.channel is not None,
            "epoch": self.epoch,
            "exit_status": self.exit_status,
            "stopped": self._stopped() if self.started and not self.rest.frozen else [],
        }

    def _stopped(self) -> list[str]:
        """Processes that a signal has stopped. Cached for a while, because requests are
        frequent."""
        if (now := time.monotonic()) >= self._next_stopped_search:
            self._next_stopped_search = now + (
                STOPPED_SEARCH_S if self.namespaced else STOPPED_SEARCH_MACHINE_S
            )
            self._stopped_processes = process.stopped(self.host_proc)
        return self._stopped_processes

    def state(self) -> str:
        if self.exit_status is not None:
            return "exited"
        if self.started is None and self.starting is None:
            return "empty"
        return "frozen" if self.rest.frozen else "running"

    def _signal(self, request: Request[messages.Signal]) -> Message:
        signum = request.message.signum
        if signum not in signal.valid_signals():
            raise ControlError("argument", f"there is no signal {signum!r}")
        self.rest.background.before_end(lambda: process.signal_all(signum, self.namespaced))
        return {}

    def _end_empty(self, _request: Request[messages.End]) -> Message:
        if self.state() != "empty":
            raise ControlError(
                "busy", f"rank {self.config.rank} has processes here: vacate it first"
            )
        self.server.after(0, self.server.stop)  # after the reply to this request
        return {}


def _name(config: Config) -> str:
    """The name of the rank's cgroup: unique among the ranks on this machine."""
    return hashlib.sha256(config.socket.encode()).hexdigest()[:16]


@functools.cache
def _can_mount_files() -> bool:
    """Whether the folder below which a rank's files are mounted exists or can be made."""
    try:
        os.makedirs(sandboxes.FOLDER, mode=0o755, exist_ok=True)
    except OSError as error:
        log.warning("ranks can see the state directory, so they cannot be saved: %s", error)
        return False
    return True


def write_exit_file(
    path: str, exit_status: int, error: str | None, killed: Sequence[str] = ()
) -> None:
    """Write the rank's end atomically: a reader sees the whole file or none, even after a crash."""
    record = {
        "exit_status": exit_status,
        "signal": -exit_status if exit_status < 0 else None,
        "error": error,
        "killed": list(killed),
        "time": time.time(),
    }
    temporary = f"{path}.tmp"
    with open(temporary, "w", opener=_private) as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

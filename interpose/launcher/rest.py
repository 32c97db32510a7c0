"""A rank at rest: it is frozen (quiesce.py), saved, ended by us, and restored.

Each operation is answered when it is done. The loop continues meanwhile: long work is done by
processes of its own (`workers.py`, CRIU). One operation runs at a time. A request for the same
operation waits for the same reply, and any other request is refused as "busy". If CRIU was killed
in the middle, the rank is ended: what CRIU left in it is unknown.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, Protocol

from rankfold import criu as programs
from rankfold import messages, service
from rankfold.control import ControlError, Message
from rankfold.image import state_version
from rankfold.interpose.launcher import handshake, interposer
from rankfold.interpose.launcher.config import Config
from rankfold.interpose.launcher.criu import command, inherited, settings, sockets, undumpable
from rankfold.interpose.launcher.files import unlinked
from rankfold.interpose.launcher.files.tracker import Tracker
from rankfold.interpose.launcher.freeze import freezer, interrupted
from rankfold.interpose.launcher.freeze.quiesce import Quiesce
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank import sandbox as sandboxes
from rankfold.interpose.launcher.rank.progress import Stuck
from rankfold.interpose.launcher.rank.workers import Workers
from rankfold.interpose.launcher.snapshot import channel, snapshot
from rankfold.interpose.launcher.snapshot.background_copy import BackgroundCopy
from rankfold.log import area
from rankfold.service import Request

log = area(__file__)

HINDRANCES_MAX = 3  # named in a message
EXAMINE_S = 30.0  # time limit: a file system of the rank may not answer


class Launcher(Protocol):
    """The part of `Launcher` that this module uses."""

    config: Config
    namespaced: bool
    started: process.Started | None
    libraries: str | None
    server: service.Server
    workers: Workers
    tracker: Tracker

    @property
    def image(self) -> int: ...

    def channel(self) -> tuple[int, int] | None:
        """The channel, and the pid of its owner."""

    def sandbox(self) -> sandboxes.Sandbox: ...

    def vacated(self) -> None:
        """The rank's processes are gone: release what belonged to them."""

    def restored(self, pid: int, memory: tuple[int, int] | None) -> None:
        """The rank is restored; `memory` is the channel and its owner, as from `channel`."""


class Rest:
    """Serves the operations of messages.py from ``freeze`` to ``restore``."""

    def __init__(self, launcher: Launcher, name: str, libraries: Callable[[], tuple[str, ...]]):
        self.launcher, self.preload = launcher, libraries

        def after(seconds: float, then: Callable[[], None]) -> None:
            self.launcher.server.after(seconds, then)

        self.quiesce = Quiesce(name, launcher.workers, launcher.tracker, after)
        self.background = BackgroundCopy(
            launcher.workers, launcher.tracker, after, self._snapshot_again
        )
        self.trouble: str | None = None  # why the rank had to be ended
        self._busy = ""  # the operation that runs
        self._waiting: list[Request[Any]] = []  # requests that wait for it
        self._stuck: Stuck | None = None  # watches its progress, if CRIU does it
        self._why_killed = ""  # why it was killed; empty: it was not
        self._saved_to: tuple[str, int] | None = None  # folder, bytes; reset when it is thawed
        self._restored = ""  # the folder that the rank was restored from, until it is thawed
        self._file_problems: Message = {}  # what the restore reported about files
        self._script = -1  # a memfd with CRIU's action script; -1: not needed yet
        self._wall: sockets.Wall | None = None
        self._outside: list[sockets.Connection] = []  # connections to end when the rank is back
        self._on_all_ended: Callable[[], None] | None = None

    def operations(self) -> dict[type[messages.Operation], service.Handler]:
        return {
            messages.Freeze: self._freeze,
            messages.Thaw: self._thaw,
            messages.Examine: self._examine,
            messages.Snapshot: self._snapshot,
            messages.Vacate: self._vacate,
            messages.Restore: self._restore,
        }

    def ended(self, exit_status: int) -> None:
        """The rank has ended, and with it any operation; `trouble` is the reason if the rank did
        not end by itself.

        While CRIU works on a rank, the rank can only be killed. If it ends otherwise, CRIU's own
        end has released it, usually in the middle of CRIU's code; we may notice CRIU's end later.
        """
        if self._busy.startswith("snapshot") and exit_status != -process.KILL:
            why = self._why_killed or "CRIU was killed while it examined the rank"
            self.trouble = self.trouble or why
        error = ControlError("exited", self.trouble or "the rank has ended")
        self._refuse_all(error)
        self.drop()

    def drop(self) -> None:
        """No process of the rank is left: remove its cgroup and the state of its freeze."""
        self._saved_to, self._restored = None, ""
        self._open_wall()
        self.quiesce.drop()

    def _refuse_all(self, error: ControlError) -> None:
        self.quiesce.refuse(error)
        self.background.refuse(error)
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.refuse(error)

    # ---- freezing ------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        return self.quiesce.frozen

    def _freeze(self, request: Request[messages.Freeze]) -> Message | None:
        self._need_rank()
        self._need_idle("freeze")
        if self.frozen:
            return {}
        if not self.launcher.namespaced:
            raise ControlError("unavailable", _UNPRIVILEGED)
        self.quiesce.stop(request)
        return None

    def _thaw(self, _request: Request[messages.Thaw]) -> Message:
        self._need_rank()
        self._need_idle("thaw")
        self.quiesce.refuse(ControlError("busy", "it was thawed again"))
        self._saved_to, self._restored = None, ""
        self._open_wall()
        self.quiesce.resume()
        self.background.rank_thawed()
        return {}

    def _examine(self, request: Request[messages.Examine]) -> Message | None:
        self._need_rank()
        self._need_idle("examine")
        if self.quiesce.freezing:
            raise ControlError("busy", f"rank {self.launcher.config.rank} is frozen")
        assert self.launcher.started is not None
        rank = self.launcher.started
        pids = self.quiesce.pids()  # without workers that we start later
        watches = self.launcher.tracker.watches

        def examined(reply: Message | None) -> None:
            if reply is None:
                text = (
                    f"examining the rank's processes was killed, or timed out after {EXAMINE_S:g} s"
                )
                request.refuse(ControlError("failed", text))
            else:
                request.reply(**reply)

        pid = self.launcher.workers.start(
            lambda: {"hindrances": undumpable.find_running(rank, pids, watches)[:HINDRANCES_MAX]},
            examined,
        )
        self.launcher.server.after(EXAMINE_S, lambda: self.launcher.workers.kill(pid))
        return None

    # ---- saving ---------------------------------------------------------------------------

    def _snapshot(self, request: Request[messages.Snapshot]) -> Message | None:
        self._need_rank()
        folder, in_background = request.message.folder, request.message.beside
        if self._joins_running(f"snapshot into {folder}", request):
            return None
        if not self.frozen:
            raise ControlError("running", f"rank {self.launcher.config.rank} runs: freeze it first")
        if self._saved_to and self._saved_to[0] == folder and os.path.exists(folder):
            return {"bytes": self._saved_to[1]}
        if self.background.postpones(request):
            return None
        self.background.forget()  # a snapshot that this one replaces
        self._need_criu()
        if trouble := self.launcher.tracker.trouble():
            raise ControlError("undumpable", f"rank {self.launcher.config.rank}: {trouble}")
        about, memory = self._about()
        self._begin(f"snapshot into {folder}", request)
        rank, pids = self.launcher.started, self.quiesce.pids()
        assert rank is not None
        cgroup, image = self.quiesce.freezer.path, self.launcher.image
        tracker, calls = self.launcher.tracker, self.quiesce.calls
        self.launcher.workers.start(
            lambda: _saved_to(
                folder, about, rank, pids, cgroup, tracker, memory, image, in_background, calls
            ),
            lambda result: self._after_snapshot(folder, result),
        )
        self._kill_if_stuck(Stuck())
        return None

    def _about(self) -> tuple[snapshot.About, int | None]:
        launcher, config = self.launcher, self.launcher.config
        assert launcher.started is not None
        found = launcher.channel()
        place: dict[str, Any] | None = None
        if found:
            where = channel.mapped_by(found[1], found[0])
            if where is None:
                text = f"process {command.named(found[1])} does not have its channel mapped"
                raise ControlError("undumpable", text)
            place = {"owner": found[1], "map": where}
        about = snapshot.About(
            job=config.job,
            rank=config.rank,
            world_size=config.world_size,
            incarnation=config.incarnation,
            pid=launcher.started.pid,
            interposer=os.path.basename(launcher.libraries) if launcher.libraries else None,
            image_bytes=config.image_bytes,
            channel=place,
            connections=[
                list(astuple(each)) for each in sockets.connections_of(self.quiesce.pids())
            ],
            addresses=sockets.addresses(self.quiesce.pids()),
            journal=(str(launcher.tracker.journal), launcher.tracker.life),
            state=state_version(launcher.image),
            logs={kind: os.stat(config.log(kind)).st_size for kind in ("out", "err")},
        )
        return about, found[0] if found else None

    def _after_snapshot(self, folder: str, result: Message | None) -> None:
        """Report the result of a snapshot. CRIU leaves the rank frozen, unless CRIU was killed."""
        if result is None or result.get("code") == "killed":
            reply = (result or {}).get("message") or "the process that saved the rank was killed"
            self.trouble = self._why_killed or reply
            self._answer(ControlError("failed", f"{self.trouble}: the rank is killed"))
            process.signal_all(process.KILL, self.launcher.namespaced)
            return

        def on_frozen() -> None:
            if "code" in result:
                self._answer(ControlError(result["code"], result["message"]))
            else:
                self._saved_to = (folder, result["bytes"])
                try:
                    if snapshot.waits_for_image(folder):
                        self.background.expect(folder, self.launcher.image)
                except OSError as error:
                    with contextlib.suppress(OSError):
                        snapshot.release(self.launcher.image)
                    self._answer(ControlError("failed", str(error)))
                    return
                self._answer(result)

        def on_running() -> None:
            self._answer(ControlError("failed", "the rank did not stay frozen"))

        self.quiesce.refreeze(on_frozen, on_running)

    def _snapshot_again(self, request: Request[messages.Snapshot]) -> None:
        """Start a snapshot that has waited for the copy of another snapshot's image."""
        try:
            result = self._snapshot(request)
        except ControlError as error:
            request.refuse(error)
        else:
            if result is not None:
                request.reply(**result)

    # ---- ending the rank ------------------------------------------------------------------

    def _vacate(self, request: Request[messages.Vacate]) -> Message | None:
        if self._joins_running("vacate", request):
            return None
        if self.launcher.started is None and not self._busy:
            return {}
        self._refuse_all(ControlError("vacated", "the rank was killed meanwhile"))
        self._begin("vacate", request)
        self.background.before_end(lambda: self._end_all(lambda: self._answer({})))
        return None

    def _end_all(self, then: Callable[[], None]) -> None:
        """End all processes below us, and call `then` when they are gone."""
        self.launcher.workers.forget()
        self.background.forget()
        self._on_all_ended = then
        process.signal_all(process.KILL, self.launcher.namespaced)
        self.children_ended()

    @property
    def ending(self) -> bool:
        """Whether we are ending the rank's processes."""
        return self._on_all_ended is not None

    def children_ended(self) -> None:
        """Children have been reaped: continue if none is left."""
        if self._on_all_ended is None:
            return
        if process.has_children():
            if not self.launcher.namespaced:  # orphans of a killed process become our children
                process.signal_all(process.KILL, False)
            return
        then, self._on_all_ended = self._on_all_ended, None
        self.drop()
        self.launcher.vacated()
        then()

    # ---- restoring -----------------------------------------------------------------------

    def _restore(self, request: Request[messages.Restore]) -> Message | None:
        folder, config = request.message.folder, self.launcher.config
        if self._joins_running(f"restore from {folder}", request):
            return None
        if self._restored == folder:
            return self._file_problems
        if self.launcher.started is not None or self._busy:
            raise ControlError("busy", f"rank {config.rank} has processes here: vacate it first")
        self._need_criu()
        try:
            about = snapshot.read(folder)
            snapshot.compare(about, config.rank, config.world_size, config.image_bytes)
            ranks = snapshot.abouts(folder)
        except snapshot.Unfit as error:
            raise ControlError("snapshot", str(error)) from error
        of_job = [each for rank in ranks for each in _connections(rank)]
        self._outside = sockets.outside(_connections(about), of_job)
        self._begin(f"restore from {folder}", request)
        libraries, copies, journal = self.preload(), config.copies, self.launcher.tracker.journal
        self.launcher.workers.start(
            lambda: _prepared(folder, about, libraries, copies, journal, self.launcher.image),
            lambda result: self._prepared(folder, about, result),
        )
        self._kill_if_stuck(Stuck())
        return None

    def _prepared(self, folder: str, about: snapshot.About, result: Message | None) -> None:
        if result is None or "code" in result:
            killed = self._why_killed or "the process that prepared the rank was killed"
            reply = result or {"code": "failed", "message": killed}
            self._not_restored(ControlError(reply["code"], reply["message"]))
            return
        self.launcher.libraries, self._file_problems = result["libraries"], result["file_problems"]
        try:
            self.quiesce.freezer.make()
            self._end_connections(sockets.lingering(_connections(about)))
            self._build_wall(about)
            process.set_last_pid(result["last_pid"])
            pid = self._fork_criu(folder, about)
        except (OSError, freezer.CannotFreeze) as error:
            self._not_restored(ControlError("unavailable", f"CRIU cannot be started: {error}"))
            return
        self.launcher.workers.await_end(pid, lambda status: self._after_criu(folder, about, status))

    def _build_wall(self, about: snapshot.About) -> None:
        """Drop packets on the rank's connections until it is thawed: by then all ranks are
        restored."""
        connections = _connections(about)
        if not connections:
            return
        try:
            self._wall = sockets.Wall(self.quiesce.freezer.name, connections)
            self.launcher.workers.await_end(self._wall.pid, lambda _status: None)
        except (OSError, programs.Missing) as error:
            log.warning("connections of the rank may be reset: %s", error)

    def _end_connections(self, connections: list[sockets.Connection]) -> None:
        try:
            sockets.end(connections)
        except OSError as error:
            log.warning("%d connections cannot be closed: %s", len(connections), error)

    def _open_wall(self) -> None:
        if self._wall:
            self._wall.remove()
            self._wall = None

    def _fork_criu(self, folder: str, about: snapshot.About) -> int:
        """Fork CRIU as our child, so that the rank's first process becomes our child too."""
        if self._script < 0:
            self._script = os.memfd_create("hold", os.MFD_CLOEXEC)
            os.write(self._script, command.HOLD)
        images, inside = snapshot.opened_images(folder), self.launcher.sandbox()
        try:
            pid = os.fork()
            if pid == 0:
                process.child(lambda: self._become_criu(images, inside, about))
        finally:
            os.close(images)
        return pid

    def _become_criu(self, images: int, inside: sandboxes.Sandbox, about: snapshot.About) -> None:
        process.forget_signals()
        sandboxes.enter(inside, ipc=False)  # CRIU's images contain the IPC namespace
        cgroup = self.quiesce.freezer
        cgroup.join()
        hold = f"/proc/{os.getppid()}/fd/{self._script}"
        for each in inherited.assume(about.inherited):
            log.warning("a setting of the rank is lost: %s", each)
        command.restore(
            images, hold, cgroup.path, cgroup.parent, about.semaphores, about.personality
        )

    def _after_criu(self, folder: str, about: snapshot.About, status: int) -> None:
        unlinked.forget(about.lost)
        if status != 0:
            killed = self._why_killed or f"CRIU was killed ({status})"
            why = snapshot.why_not(folder) if status > 0 else killed
            self._not_restored(ControlError("snapshot", f"rank {about.rank}: {why}"))
            return

        def on_frozen() -> None:
            try:
                memory = None
                if about.channel:
                    owner = about.channel["owner"]
                    memory = (channel.opened(owner, about.channel["map"]), owner)
                snapshot.cut(self.launcher.config.log, about.logs)
                # A read on such a connection would never return: the peer has seen the rank end.
                self._end_connections(self._outside)
                for each in settings.restore(about.settings):
                    log.warning("a setting of the rank was not restored: %s", each)
                self.launcher.tracker.reload()
                self.launcher.restored(about.pid, memory)
            except (OSError, snapshot.Unfit, handshake.Refused) as error:
                self._not_restored(ControlError("failed", f"the restored rank is invalid: {error}"))
                return
            self._restored = folder
            self._answer(self._file_problems)

        def on_running() -> None:
            self._not_restored(ControlError("failed", "the restored rank is not frozen"))

        self.quiesce.hold(on_frozen, on_running)

    def _not_restored(self, error: ControlError) -> None:
        self._end_all(lambda: self._answer(error))

    # ---- common to all operations --------------------------------------------------------

    def _need_rank(self) -> None:
        if self.launcher.started is None:
            raise ControlError("empty", f"there is no rank {self.launcher.config.rank} here")

    def _need_idle(self, request_name: str) -> None:
        if self._busy:
            raise ControlError("busy", f"{request_name}: a {self._busy} is in progress")

    def _need_criu(self) -> None:
        if not self.launcher.namespaced:
            raise ControlError("unavailable", _UNPRIVILEGED)
        if self.launcher.sandbox().fixed is None:
            raise ControlError("unavailable", f"the folder {sandboxes.FOLDER} cannot be created")
        try:
            programs.command()
        except programs.Missing as error:
            raise ControlError("unavailable", str(error)) from error

    def _joins_running(self, request_name: str, request: Request[Any]) -> bool:
        """Whether the same operation runs already; if so, the request also waits for it."""
        if self._busy == request_name:
            self._waiting.append(request)
            return True
        if request_name != "vacate":
            self._need_idle(request_name)
        return False

    def _begin(self, request_name: str, request: Request[Any]) -> None:
        self._busy, self._waiting = request_name, [request]
        self._stuck, self._why_killed = None, ""

    def _kill_if_stuck(self, work: Stuck) -> None:
        """Kill the processes that do the work when they make no progress."""
        self._stuck = work

        def look() -> None:
            if self._stuck is not work:
                return
            if work.look():
                self._why_killed = (
                    f"CRIU timed out: no progress for {work.patience_s:g} s; it was killed"
                )
                self._stuck = None
                wall = self._wall.pid if self._wall else None
                for pid in self.launcher.workers.pids():
                    if pid != wall:
                        os.kill(pid, process.KILL)  # not reaped: pid is valid; CRIU dies too
                return
            self.launcher.server.after(work.pause_s, look)

        look()

    def _answer(self, result: Message | ControlError) -> None:
        waiting, self._waiting, self._busy = self._waiting, [], ""
        self._stuck = None
        for request in waiting:
            if isinstance(result, ControlError):
                request.refuse(result)
            else:
                request.reply(**result)


_UNPRIVILEGED = (
    "the rank has no namespaces of its own: freezing and saving processes needs root or "
    "CAP_SYS_ADMIN"
)


def _connections(about: snapshot.About) -> list[sockets.Connection]:
    return [sockets.Connection(*each) for each in about.connections]


# ---- in processes of their own -----------------------------------------------------------


def _saved_to(
    folder: str,
    about: snapshot.About,
    rank: process.Started,
    pids: set[int],
    cgroup: str,
    tracker: Tracker,
    memory: int | None,
    image: int,
    in_background: bool,
    calls: interrupted.Calls,
) -> Message:
    hindrances = undumpable.find(rank, pids, tracker.watches)
    if hindrances:
        return {"code": "undumpable", "message": "; ".join(hindrances[:HINDRANCES_MAX])}
    if unread := undumpable.passing(pids):
        return {"code": "failed", "message": "; ".join(unread[:HINDRANCES_MAX])}
    try:
        written = snapshot.write(folder, about, pids, cgroup, tracker, memory, image, in_background)
        return {"bytes": written}
    except command.Passing as error:
        return {"code": "failed", "message": str(error)}
    except command.Refused as error:
        return {"code": "undumpable", "message": str(error)}
    except command.Killed as error:
        return {"code": "killed", "message": str(error)}
    except programs.Missing as error:
        return {"code": "unavailable", "message": str(error)}
    except OSError as error:
        return {"code": "failed", "message": str(error)}
    finally:
        calls.restore_registers()


def _prepared(
    folder: str,
    about: snapshot.About,
    libraries: tuple[str, ...],
    copies: str,
    journal: Path,
    image: int,
) -> Message:
    try:
        place = (
            interposer.find_or_make(about.interposer, libraries, copies)
            if about.interposer
            else None
        )
        last, problems = snapshot.prepare(folder, about, journal, image)
    except (snapshot.Unfit, interposer.Unusable) as error:
        return {"code": "snapshot", "message": str(error)}
    except programs.Missing as error:
        return {"code": "unavailable", "message": str(error)}
    except OSError as error:
        return {"code": "failed", "message": str(error)}
    state = {"libraries": str(place) if place else None, "last_pid": last}
    return state | {"file_problems": problems.reply()}

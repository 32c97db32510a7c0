"""A rank whose program keeps its state in files, such as those of the elastic runtime.

Serves the operations of messages.py from ``freeze`` to ``restore`` without CRIU: a job is saved
only at a cut, where its program waits and its state is in ``states/step-N`` below `state_folder`.
The rank's snapshot has links to those files, since they never change. A restore copies them and
starts the rank's command, which finds them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rankfold import messages, service
from rankfold.control import ControlError, Message
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rest import Launcher
from rankfold.interpose.launcher.snapshot import snapshot
from rankfold.service import Request

SOCKET = "control"
STATES, FILES = "states", "state"  # below the state folder; in a snapshot
SHARED = ("shared.pt", "threads")  # of all ranks: in the snapshot of rank 0


class _Background:
    """No copy runs in the background."""

    def before_end(self, then: Callable[[], None]) -> None:
        then()


class StateFolder:
    """Instead of `Rest`."""

    def __init__(self, launcher: Launcher, begin: Callable[[Callable[[], None]], None]):
        self.launcher, self._begin_rank = launcher, begin
        self.background = _Background()
        self.trouble: str | None = None
        self.frozen = False
        self._restored = ""
        self._on_all_ended: Callable[[], None] | None = None
        self._vacating: list[Request[messages.Vacate]] = []

    def operations(self) -> dict[type[messages.Operation], service.Handler]:
        return {
            messages.Freeze: self._freeze,
            messages.Thaw: self._thaw,
            messages.Examine: lambda _request: {"hindrances": []},
            messages.Snapshot: self._snapshot,
            messages.Vacate: self._vacate,
            messages.Restore: self._restore,
        }

    def ended(self, exit_status: int) -> None:
        """The rank has ended. If it was killed, its socket is still there."""
        if self.launcher.config.rank == 0:
            Path(self.launcher.config.state_folder, SOCKET).unlink(missing_ok=True)

    def _need_rank(self) -> process.Started:
        if self.launcher.started is None:
            raise ControlError("empty", f"there is no rank {self.launcher.config.rank} here")
        return self.launcher.started

    def _freeze(self, _request: Request[messages.Freeze]) -> Message:
        """Its processes wait at the cut already."""
        self._need_rank()
        self.frozen = True
        return {}

    def _thaw(self, _request: Request[messages.Thaw]) -> Message:
        self._need_rank()
        self.frozen = False
        return {}

    # ---- saving ----

    def _snapshot(self, request: Request[messages.Snapshot]) -> Message:
        rank = self._need_rank()
        config = self.launcher.config
        if not self.frozen:
            raise ControlError("running", f"rank {config.rank} runs: freeze it first")
        folder = Path(request.message.folder)
        about = snapshot.About(
            job=config.job,
            rank=config.rank,
            world_size=config.world_size,
            incarnation=config.incarnation,
            pid=rank.pid,
            interposer=None,
            image_bytes=config.image_bytes,
            logs={kind: os.stat(config.log(kind)).st_size for kind in ("out", "err")},
            channel=None,
            connections=[],
        )
        try:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / FILES).mkdir(parents=True, mode=0o700)
            written = self._link(folder / FILES)
            text = json.dumps(asdict(about) | {"has_channel": False}, indent=1)
            (folder / "about.json.new").write_text(text)
            (folder / "about.json.new").rename(folder / "about.json")
        except OSError as error:
            raise ControlError("failed", str(error)) from error
        return {"bytes": written}

    def _newest(self) -> Path | None:
        states = Path(self.launcher.config.state_folder, STATES)
        found = [each for each in states.glob("step-*") if re.fullmatch(r"step-\d+", each.name)]
        return max(found, key=lambda each: int(each.name[5:]), default=None)

    def _link(self, into: Path) -> int:
        """Link this rank's files of the newest state; return their bytes. A job that was never
        held has none: its snapshot is its beginning."""
        state, rank, written = self._newest(), self.launcher.config.rank, 0
        if state is None:
            return 0
        (into / state.name).mkdir(mode=0o700)
        for name in (f"rank-{rank}.pt", f"gradients-{rank}.pt", *(SHARED if rank == 0 else ())):
            if (state / name).exists():
                os.link(state / name, into / state.name / name)
                written += (state / name).stat().st_size
        return written

    # ---- ending and restoring ----

    @property
    def ending(self) -> bool:
        return self._on_all_ended is not None

    def _vacate(self, request: Request[messages.Vacate]) -> Message | None:
        if self.launcher.started is None:
            return {}
        self._vacating.append(request)
        self._on_all_ended = self._vacated
        process.signal_all(process.KILL, self.launcher.namespaced)
        self.children_ended()
        return None

    def _vacated(self) -> None:
        self.frozen, self._restored = False, ""
        self.launcher.vacated()
        waiting, self._vacating = self._vacating, []
        for request in waiting:
            request.reply()

    def children_ended(self) -> None:
        """Children have been reaped: continue if none is left."""
        if self._on_all_ended is None:
            return
        if process.has_children():
            if not self.launcher.namespaced:  # orphans of a killed process become our children
                process.signal_all(process.KILL, False)
            return
        then, self._on_all_ended = self._on_all_ended, None
        then()

    def _restore(self, request: Request[messages.Restore]) -> Message | None:
        folder, config = request.message.folder, self.launcher.config
        nothing: Message = {"stay": _NONE, "renewed": _NONE}
        if self._restored == folder:
            return nothing
        if self.launcher.started is not None:
            raise ControlError("busy", f"rank {config.rank} has processes here: vacate it first")
        try:
            about = snapshot.read(folder)
            snapshot.compare(about, config.rank, config.world_size, config.image_bytes)
            self._copy(Path(folder, FILES))
            snapshot.cut(config.log, about.logs)
        except snapshot.Unfit as error:
            raise ControlError("snapshot", str(error)) from error
        except OSError as error:
            raise ControlError("failed", str(error)) from error

        def started() -> None:
            if self.launcher.started is None:  # it could not be started: its end is recorded
                request.refuse(ControlError("failed", "the rank's command cannot be started"))
                return
            self.frozen, self._restored = True, folder
            request.reply(**nothing)

        self._begin_rank(started)
        return None

    def _copy(self, saved: Path) -> None:
        own = Path(self.launcher.config.state_folder)
        if self.launcher.config.rank == 0:
            for other in own.parent.glob("elastic-*"):
                if other != own:  # of an earlier incarnation, whose processes are gone
                    shutil.rmtree(other, ignore_errors=True)
        for state in saved.iterdir() if saved.exists() else ():
            place = own / STATES / state.name
            place.mkdir(parents=True, mode=0o700, exist_ok=True)
            for file in state.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    (place / file.name).unlink()
                shutil.copyfile(file, place / file.name)


_NONE: Message = {"first": [], "count": 0}

"""The job epochs that a proxy serves: where their ranks are, and the progress of each."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import Any

from rankfold import messages
from rankfold.control import Channel, Message
from rankfold.proxy.native import RankStatus
from rankfold.service import Outgoing, Request

COUNTED = (  # of a rank: at its arrival and now
    "kernels",
    "collectives",
    "records",
    "switches",
    "squashed",
    "spared",
    "copies",
    "unforeseen",
    "prepared",
)


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a job epoch are: the arguments of `place`."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    sockets: tuple[str, ...]
    rank_device: tuple[int, ...]
    launchers: tuple[str, ...]
    cc: str  # the compute capability that the job sees; empty: the device's
    check_order: str
    incarnation: int
    cores: tuple[tuple[int, ...], ...] = ()  # of each device, if it has any
    gpus: tuple[tuple[str, int], ...] = ()  # of each device: messages.Peered
    determinism: str = "D1"

    @staticmethod
    def read(message: messages.Place) -> Placement:
        members = sorted(message.members, key=lambda member: member.rank)
        names = [device.device for device in message.devices]
        return Placement(
            message.job,
            message.epoch,
            tuple(names),
            tuple(device.socket for device in message.devices),
            tuple(names.index(member.device) for member in members),
            tuple(member.launcher for member in members),
            message.cc,
            message.check_order,
            message.incarnation,
            tuple(tuple(device.cores) for device in message.devices),
            tuple((device.gpu, device.memory) for device in message.devices if device.gpu),
            message.determinism,
        )


@dataclass
class Job:
    """One job epoch on this device."""

    id: int
    placement: Placement
    device: int
    state: str = "joining"
    reason: str = ""
    opened: bool = False
    segment: int = -1
    joined: set[int] = field(default_factory=set)  # devices that hold the segment
    departed: set[int] = field(
        default_factory=set
    )  # devices that disconnected while it was at a cut
    peers: dict[Channel, int] = field(default_factory=dict)
    calls: list[Outgoing[Any]] = field(default_factory=list)
    exited: set[int] = field(default_factory=set)
    attached: dict[int, RankStatus] = field(default_factory=dict)  # at its arrival
    last: dict[int, RankStatus] = field(default_factory=dict)
    moved_at: dict[int, float] = field(default_factory=dict)  # last progress of each rank
    cut_at: float | None = None
    released_at: float | None = None
    saved_bytes: int = 0
    # other devices whose memory is read through the host's, and why
    indirect: dict[str, str] = field(default_factory=dict)
    races: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)  # contents that should be equal and are not
    detaches: list[Request[messages.Detach]] = field(default_factory=list)
    saves: list[Request[messages.Save]] = field(default_factory=list)
    waits: list[tuple[float, set[str], Request[messages.Wait]]] = field(default_factory=list)

    @property
    def local(self) -> list[int]:
        return [r for r, d in enumerate(self.placement.rank_device) if d == self.device]

    def lives(self) -> bool:
        """Whether a rank of the job may still need this device, possibly among others."""
        if self.state == "saved":
            return False
        return bool(set(self.local) - self.exited) or any(map(_listens, self.placement.launchers))

    def remember(self, rank: int, status: RankStatus) -> None:
        before = self.last.get(rank)
        if before is None or before.moves != status.moves:
            self.moved_at[rank] = time.monotonic()
        self.last[rank] = status

    def describe_rank(self, rank: int) -> Message:
        """The rank as `status` reports it: counters since its start and, with `_here`, since it
        arrived."""
        came, now = self.attached.get(rank), self.last.get(rank)
        state = "exited" if rank in self.exited else "attached" if came else "waiting"
        result: Message = {
            "rank": rank,
            "state": state,
            "resident": False,
            "used": 0,
            "error": None,
        }
        for name in COUNTED:
            result[name] = getattr(now, name, 0)
            result[f"{name}_here"] = getattr(now, name, 0) - getattr(came, name, 0)
        if now:
            result["resident"], result["used"] = now.resident, now.used
            result["shared"] = now.shared
            if state == "attached":
                result["at"] = now.at
                result["quiet_s"] = time.monotonic() - self.moved_at[rank]
            if now.error:
                result["error"] = {"code": now.error, "text": now.error_text}
        return result

    def answer_saves(self) -> None:
        """All ranks are saved: reply to the requesters."""
        for request in self.saves:
            request.reply(saved_bytes=self.saved_bytes)
        self.saves.clear()


def _listens(path: str) -> bool:
    """Whether a launcher still listens on its socket: it exits with its rank."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, ValueError):
            return False
        except OSError:  # the launcher is busy
            return True
        return True

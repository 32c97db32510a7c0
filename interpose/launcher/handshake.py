"""The client socket: a rank's library connects once and hands its channel over.

The messages and checks are those of the hand-over at the end of ``interpose/channel/channel.h``,
with its numbers (a test compares them with the compiler's). This module never reads the ring.
Nothing here blocks on a client, and a client that sends invalid messages only loses its connection.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rankfold import control, peers, records, service
from rankfold.plural import count

_CHANNEL = records.channel()
MAGIC, MAJOR, MINOR, MEMFD_BYTES, WINDOW_BYTES = (
    _CHANNEL.constants[f"RF_{name}"]
    for name in ("MAGIC", "MAJOR", "MINOR", "MEMFD_BYTES", "WINDOW_BYTES")
)
FDS_MAX = 4  # descriptors with one greeting: a client that sends more is disconnected
SHARED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

HELLO = _CHANNEL.structs["rf_hello"].layout()
HEADER = _CHANNEL.structs["rf_header"].layout(until="reserved0")
DEVICE = _CHANNEL.structs["rf_device"].layout()
WELCOME = _CHANNEL.structs["rf_welcome"].layout()

# The software GPU's figures: what a rank sees for fields that the config does not give. Those of
# the compute capability (`limits_of`) take precedence.
DEVICE_DEFAULTS: dict[str, int] = {
    "cc_major": 12,
    "cc_minor": 0,
    "sm_count": 8,
    "warp_size": 32,
    "max_threads_per_block": 1024,
    "max_threads_per_sm": 1536,
    "shared_per_block": 48 << 10,
    "shared_per_block_optin": 99 << 10,
    "shared_per_sm": 100 << 10,
    "regs_per_block": 65536,
    "regs_per_sm": 65536,
    "clock_khz": 1_000_000,
    "memory_clock_khz": 1_000_000,
    "memory_bus_bits": 256,
    "l2_bytes": 4 << 20,
    "blocks_per_sm": 24,
}
# CUDA C++ Programming Guide, technical specifications per compute capability: threads and blocks of
# a multiprocessor, and its shared memory in KiB; a block may have all except RESERVED_KIB.
LIMITS: dict[tuple[int, int], tuple[int, int, int]] = {
    (7, 0): (2048, 32, 96),
    (7, 5): (1024, 16, 64),
    (8, 0): (2048, 32, 164),
    (8, 6): (1536, 16, 100),
    (8, 7): (1536, 16, 164),
    (8, 9): (1536, 24, 100),
    (9, 0): (2048, 32, 228),
    (11, 0): (1536, 24, 228),
    (12, 0): (1536, 24, 100),
}
CC = ("cc_major", "cc_minor")
RESERVED_KIB = 1  # of each block, since capability 8.0


class Refused(Exception):
    """The hello is answered with an error; the message is for the program's user."""


def limits_of(major: int, minor: int) -> dict[str, int]:
    """The fields of struct rf_device that follow from a compute capability: of the newest in
    `LIMITS` that is not newer, or of the oldest."""
    known = max((cc for cc in LIMITS if cc <= (major, minor)), default=min(LIMITS))
    threads, blocks, shared_kib = LIMITS[known]
    reserved = RESERVED_KIB if known >= (8, 0) else 0
    return {
        "max_threads_per_sm": threads,
        "blocks_per_sm": blocks,
        "shared_per_sm": shared_kib << 10,
        "shared_per_block_optin": (shared_kib - reserved) << 10,
    }


def pack_device(fields: dict[str, int | str]) -> bytes:
    """Pack a config's device fields as ``struct rf_device``. Raises ValueError for an unknown,
    missing or out-of-range field."""
    unknown = set(fields) - set(DEVICE_DEFAULTS) - {"name", "memory_bytes"}
    if unknown:
        raise ValueError(f"device has no field {', '.join(sorted(unknown))}")
    name = str(fields.get("name", "")).encode()
    memory_bytes = fields.get("memory_bytes")
    if not name or not isinstance(memory_bytes, int) or memory_bytes <= 0:
        raise ValueError("device needs a name and memory_bytes > 0")
    defaults = DEVICE_DEFAULTS | limits_of(*(int(fields.get(k, DEVICE_DEFAULTS[k])) for k in CC))
    numbers = [int(fields.get(key, default)) for key, default in defaults.items()]
    try:
        return DEVICE.pack(name[:63], memory_bytes, *numbers, *[0] * 8)
    except struct.error as error:
        raise ValueError(f"a device field is out of range: {error}") from error


@dataclass(frozen=True)
class Identity:
    """The rank's identity: constants of its channel."""

    rank: int
    world_size: int
    device_count: int
    device: bytes

    def welcome(self, refusal: str = "") -> bytes:
        return WELCOME.pack(
            MAGIC,
            1 if refusal else 0,
            self.device_count,
            self.rank,
            self.world_size,
            self.device,
            refusal.encode()[:255],
        )


@dataclass(eq=False)
class _Client:
    sock: socket.socket
    pid: int
    data: bytearray = field(default_factory=bytearray)
    fds: list[int] = field(default_factory=list)


class ClientListener:
    """Listens on the client socket and keeps the rank's one channel.

    Calls `on_channel(replaced)` when `channel` is set. `replaced` is true if it replaces another
    channel whose owner has exited or has executed another program. `server` only provides its event
    loop. Only processes for which `is_of_rank(pid)` holds are admitted, whichever user they run as:
    a program may drop its privileges before it uses the device. So the socket is open to every
    user; its folder is not, except where the rank sees it.
    """

    def __init__(
        self,
        path: str,
        identity: Identity,
        server: service.Server,
        on_channel: Callable[[bool], None],
        is_of_rank: Callable[[int], bool],
    ):
        self.identity = identity
        self.server = server
        self.on_channel = on_channel
        self.channel: int | None = None
        self._owner: tuple[int, int] | None = None  # pid, pidfd
        self.is_of_rank = is_of_rank
        self._clients: list[_Client] = []
        self._listener = service.Listener(server, path, self._admit, self._free_space, mode=0o666)

    def channel_and_owner(self) -> tuple[int, int] | None:
        """The channel, and the pid of its owner."""
        if self.channel is None or self._owner is None:
            return None
        return self.channel, self._owner[0]

    def user(self) -> int | None:
        """The pid of the process that uses the device; None if there is none or it has exited."""
        return self._owner[0] if self._owner and not has_exited(self._owner[1]) else None

    def forget(self) -> None:
        """Close the channel and forget its owner."""
        if self.channel is not None:
            os.close(self.channel)
            self.channel = None
        if self._owner is not None:
            os.close(self._owner[1])
            self._owner = None

    def restore_channel(self, channel: int, owner: int) -> None:
        """Take over the channel of a restored rank; we own its descriptor now.

        Raises Refused if it is not a channel of this rank, OSError.
        """
        check_memfd(channel, self.identity)
        self._owner = (owner, os.pidfd_open(owner))
        self.channel = channel
        self.on_channel(False)

    def _admit(self, sock: socket.socket) -> None:
        try:
            pid, _user = peers.peer(sock)
            if not self.is_of_rank(pid):
                raise peers.Denied(
                    "a process outside of this rank connected to the rank's own socket"
                )
        except (peers.Denied, OSError) as error:
            self.server.refused(str(error))
            sock.close()
            return
        client = _Client(sock, pid)
        self._clients.append(client)
        self.server.add(sock, lambda: self._readable(client))

    def _free_space(self) -> bool:
        """Disconnect the longest-connected client: a visit takes two messages, so it has had its
        time."""
        if self._clients:
            self._disconnect(self._clients[0])
            return True
        return False

    def _readable(self, client: _Client) -> None:
        try:
            space = socket.CMSG_SPACE(FDS_MAX * 4)
            data, ancillary, _flags, _address = client.sock.recvmsg(
                HELLO.size, space, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(raw[: len(raw) - len(raw) % received.itemsize])
                client.fds.extend(received)
        client.data += data
        if not data or len(client.fds) > FDS_MAX:
            self._disconnect(client)
            return
        while len(client.data) >= HELLO.size:
            hello = bytes(client.data[: HELLO.size])
            del client.data[: HELLO.size]
            if not self._answer(client, hello):
                self._disconnect(client)
                return

    def _answer(self, client: _Client, hello: bytes) -> bool:
        fds, client.fds = client.fds, []
        try:
            self._hello(client, hello, fds)
            reply = self.identity.welcome()
        except Refused as refusal:
            reply = self.identity.welcome(str(refusal))
        except OSError as error:  # another kind of file, or no descriptor left here
            reply = self.identity.welcome(f"the channel cannot be used: {error}")
        finally:
            for fd in fds:
                os.close(fd)
        try:
            return client.sock.send(reply) == len(reply)
        except OSError:
            return False

    def _disconnect(self, client: _Client) -> None:
        self._clients.remove(client)
        self.server.remove(client.sock)
        control.close_all(client.fds)
        client.sock.close()

    def _hello(self, client: _Client, hello: bytes, fds: list[int]) -> None:
        """Accept or raise Refused. Duplicates a channel that it keeps."""
        magic, major, minor, pid, _reserved = HELLO.unpack(hello)
        if magic != MAGIC:
            raise Refused("not a rankfold library: unknown greeting")
        if major != MAJOR:
            raise Refused(
                f"this program loads rankfold's library {major}.{minor}, its launcher is "
                f"{MAJOR}.{MINOR}: start the job with the library of the same version"
            )
        self._refuse_second(client.pid)
        if pid == 0 and not fds:
            return
        if len(fds) != 1:
            raise Refused(f"a greeting brings one channel, not {len(fds)}")
        if self._owner and self._owner[0] == client.pid and self._is_mapped(client.pid):
            raise Refused("this process has handed over its channel already")
        check_memfd(fds[0], self.identity)
        self._keep(os.dup(fds[0]), client.pid)

    def _is_mapped(self, pid: int) -> bool:
        """Whether the process still has our channel mapped. If not, it has executed another
        program."""
        assert self.channel is not None
        mine = os.fstat(self.channel)
        device = f"{os.major(mine.st_dev):02x}:{os.minor(mine.st_dev):02x}"
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            return True  # unknown: assume that it is mapped
        places = (line.split(maxsplit=5)[3:5] for line in maps.splitlines())
        return [device, str(mine.st_ino)] in places

    def _refuse_second(self, pid: int) -> None:
        if self._owner is None:
            return
        owner, pidfd = self._owner
        if owner != pid and not has_exited(pidfd):
            raise Refused(
                f"process {owner} of rank {self.identity.rank} uses the device already; only one "
                "process of a rank can. Start the other one as its own rank (--world-size N "
                "train.py, in place of torchrun or mpirun), or after the first has exited"
            )

    def _keep(self, channel: int, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            os.close(channel)
            raise Refused(f"process {pid} has exited already: {error}") from error
        if self._owner is not None:
            os.close(self._owner[1])
        replaced, self.channel = self.channel, channel
        self._owner = (pid, pidfd)
        if replaced is not None:
            os.close(replaced)
        self.on_channel(replaced is not None)


def has_exited(pidfd: int) -> bool:
    """Whether the process has ended, reaped or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def check_memfd(fd: int, identity: Identity) -> None:
    """Raise Refused unless `fd` is a sealed channel of this rank and version."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
    except OSError as error:
        raise Refused(f"the channel is not a memfd: {error}") from error
    if seals & SHARED_SEALS != SHARED_SEALS:
        raise Refused("the channel lacks seals: it can still be resized")
    if size != MEMFD_BYTES:
        raise Refused(f"the channel has {count(size, 'byte')}, not {MEMFD_BYTES}")
    magic, major, minor, memfd_bytes, _pid, rank, world_size = HEADER.unpack(
        os.pread(fd, HEADER.size, 0)
    )
    if (magic, major, memfd_bytes) != (MAGIC, MAJOR, MEMFD_BYTES):
        raise Refused(f"the channel's header is not one of version {MAJOR} ({major}.{minor})")
    if (rank, world_size) != (identity.rank, identity.world_size):
        raise Refused(
            f"the channel is rank {rank} of {world_size}, this launcher has rank "
            f"{identity.rank} of {identity.world_size}"
        )

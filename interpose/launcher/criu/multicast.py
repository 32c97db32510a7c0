"""Saves the multicast memberships of sockets, which CRIU does not.

The kernel lists the groups of each interface, and answers for each socket whether it is a member.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.sandbox import check, libc

_JOIN_GROUP, _FILTER = 42, 48  # MCAST_JOIN_GROUP, MCAST_MSFILTER: for both levels
_ADDRESS = 128  # bytes of sockaddr_storage
_REQUEST = struct.Struct(f"=I4x{_ADDRESS}s")  # group_req
_HEAD = struct.Struct(f"=I4x{_ADDRESS}sII")  # group_filter up to its sources
_SOURCES_MAX = 128
_EXCLUDE = 0

# Level, interface, group, mode, sources; addresses as text.
Membership = tuple[int, str, str, int, list[str]]


def memberships_of(pid: int) -> Iterator[tuple[int, Membership]]:
    """The memberships of a process's sockets, each with its descriptor."""
    groups = list(_groups(pid))
    for number in process.opened(pid, "socket:") if groups else ():
        with contextlib.suppress(OSError), process.socket_of(pid, number) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                for level, index, group in groups:
                    with contextlib.suppress(OSError):
                        yield number, _membership(sock, level, index, group)


def join(sock: socket.socket, membership: Membership) -> None:
    """Make a socket a member. Raises OSError."""
    level, interface, group, mode, sources = membership
    index, address = socket.if_nametoindex(interface), _packed(level, group)
    if not _is_member(sock, level, index, group):
        sock.setsockopt(level, _JOIN_GROUP, _REQUEST.pack(index, address))
    if mode != _EXCLUDE or sources:
        data = _HEAD.pack(index, address, mode, len(sources))
        sock.setsockopt(level, _FILTER, data + b"".join(_packed(level, s) for s in sources))


def absent(memberships: Iterable[Membership]) -> list[Membership]:
    """Those whose interface this machine does not have."""
    known = {name for _, name in socket.if_nameindex()}
    return [each for each in memberships if each[1] not in known]


def _groups(pid: int) -> Iterator[tuple[int, int, str]]:
    """All groups of this machine: level, number of the interface, address."""
    index = 0
    for line in _lines(f"/proc/{pid}/net/igmp"):
        words = line.split()
        if not line[0].isspace():
            index = int(words[0]) if words[0].isdigit() else 0
        elif index:
            raw = int(words[0], 16).to_bytes(4, "little")
            yield socket.IPPROTO_IP, index, socket.inet_ntop(socket.AF_INET, raw)
    for line in _lines(f"/proc/{pid}/net/igmp6"):
        words = line.split()
        group = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[2]))
        yield socket.IPPROTO_IPV6, int(words[0]), group


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def _is_member(sock: socket.socket, level: int, index: int, group: str) -> bool:
    with contextlib.suppress(OSError):
        _membership(sock, level, index, group)
        return True
    return False


def _membership(sock: socket.socket, level: int, index: int, group: str) -> Membership:
    """Raises OSError if the socket is not a member."""
    head = _HEAD.pack(index, _packed(level, group), 0, _SOURCES_MAX)
    data = ctypes.create_string_buffer(head, _HEAD.size + _SOURCES_MAX * _ADDRESS)
    size = ctypes.c_uint32(len(data))
    check(libc.getsockopt(sock.fileno(), level, _FILTER, data, ctypes.byref(size)), group)
    _, _, mode, count = _HEAD.unpack_from(data)
    places = range(_HEAD.size, _HEAD.size + min(count, _SOURCES_MAX) * _ADDRESS, _ADDRESS)
    sources = [_text(level, data[place : place + _ADDRESS]) for place in places]
    return level, socket.if_indextoname(index), group, mode, sources


def _packed(level: int, address: str) -> bytes:
    """An address as sockaddr_storage."""
    if level == socket.IPPROTO_IP:
        packed = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(address))
    else:
        raw = socket.inet_pton(socket.AF_INET6, address)
        packed = struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, raw, 0)
    return packed.ljust(_ADDRESS, b"\0")


def _text(level: int, packed: Any) -> str:
    if level == socket.IPPROTO_IP:
        return socket.inet_ntop(socket.AF_INET, packed[4:8])
    return socket.inet_ntop(socket.AF_INET6, packed[8:24])

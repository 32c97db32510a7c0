"""A rank's TCP connections while it is saved and restored.

A connection between two ranks survives if no data moves between the snapshots of its two ends, and
if neither end sends packets while the other does not exist: a host without such a socket answers
with a reset. So a freeze waits until everything sent has arrived, and from before a restore until
the thaw a `Wall` drops the packets of the rank's connections. (Ranks are thawed when all are
restored.) A connection to any other process is ended: what its other end has done meanwhile is
unknown.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import select
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from rankfold import criu

# States in /proc/net/tcp: closed, time-wait, listening.
_NO_CONNECTION = ("07", "06", "0A")
_ANSWER_S = 5.0
_SOCK_DIAG, _SOCK_DESTROY = 4, 21


@dataclass(frozen=True)
class Connection:
    """The two ends of a connection, ours first: an address and a port each."""

    ours: str
    our_port: int
    theirs: str
    their_port: int

    @property
    def is_ipv4(self) -> bool:
        return "." in self.ours

    def element(self, back: bool) -> str:
        """Its element of an nft set: packets to the peer or, with `back`, from it."""
        ends = [(self.ours, self.our_port), (self.theirs, self.their_port)]
        return " . ".join(f"{address} . {port}" for address, port in ends[:: -1 if back else 1])


def connections_of(pids: Iterable[int]) -> dict[Connection, int]:
    """All connections of these processes, and the bytes that the other end has not acknowledged."""
    connections = {}
    for words in _listed(pids, ("tcp", "tcp6")):
        if words[3] not in _NO_CONNECTION:
            connection = Connection(*_end(words[1]), *_end(words[2]))
            connections[connection] = int(words[4].split(":")[0], 16)
    return connections


def addresses(pids: Iterable[int]) -> dict[str, str]:
    """Addresses of this machine that sockets of these processes are bound to, each with a
    description of one such socket. Omits loopback and wildcard addresses, which all machines
    have."""
    problems: dict[str, str] = {}
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for words in _listed(pids, (name,)):
            (ours, port), (theirs, their_port) = _end(words[1]), _end(words[2])
            address = ipaddress.ip_address(ours)
            if address.is_loopback or address.is_unspecified:
                continue
            kind = name.rstrip("6").upper()
            subject = f"a {kind} socket on {ours}, port {port}"
            if their_port:
                subject = f"a {kind} connection from {ours} to {theirs}, port {their_port}"
            problems.setdefault(ours, subject)
    return problems


def absent(addresses: Iterable[str]) -> list[str]:
    """The addresses that this machine does not have: no socket can be bound to them."""
    result = []
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.bind((address, 0))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                result.append(address)
    return result


def lingering(connections: Iterable[Connection]) -> list[Connection]:
    """Connections that the kernel still has, without a process: they are in time-wait, or were
    closed while the other end was unreachable. No socket can get the same addresses and ports
    before they are gone."""
    wanted, result = set(connections), []
    for words in _lines(("tcp", "tcp6")) if wanted else ():
        connection = Connection(*_end(words[1]), *_end(words[2]))
        if words[9] == "0" and connection in wanted:
            result.append(connection)
    return result


def _listed(pids: Iterable[int], names: Iterable[str]) -> Iterator[list[str]]:
    """The lines of these processes' sockets in /proc/net, as words."""
    inodes = _inodes(pids)
    for words in _lines(names) if inodes else ():
        if words[9] in inodes:
            yield words


def _lines(names: Iterable[str]) -> Iterator[list[str]]:
    """The lines of all sockets of the machine, as words. Takes milliseconds."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                yield line.split()


def _inodes(pids: Iterable[int]) -> set[str]:
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    link = os.readlink(f"/proc/{pid}/fd/{name}")
                    if match := re.fullmatch(r"socket:\[(\d+)\]", link):
                        inodes.add(match[1])
    return inodes


def _end(text: str) -> tuple[str, int]:
    """Parse an address and port, as in ``0100007F:1F90``: 32-bit words in the machine's byte
    order."""
    address, _, port = text.partition(":")
    raw = b"".join(
        int(address[start : start + 8], 16).to_bytes(4, "little")
        for start in range(0, len(address), 8)
    )
    ip = ipaddress.ip_address(raw)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return str(ip), int(port, 16)


def outside(ours: Iterable[Connection], of_job: Iterable[Connection]) -> list[Connection]:
    """Connections of `ours` whose other end is not a rank's. `of_job`: the connections of all
    ranks."""
    ends = {(each.theirs, each.their_port, each.ours, each.our_port) for each in of_job}
    return [each for each in ours if astuple(each) not in ends]


def end(connections: Iterable[Connection]) -> None:
    """Abort the connections: calls on them fail with ECONNABORTED, also those that wait already.

    Raises OSError: EOPNOTSUPP where the kernel cannot (CONFIG_INET_DIAG_DESTROY).
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        for each in connections:
            kernel.send(_destroy(each))
            code = -struct.unpack_from("=i", kernel.recv(4096), 16)[0]
            if code not in (0, errno.ENOENT):
                raise OSError(code, os.strerror(code))


def _destroy(connection: Connection) -> bytes:
    """A request of sock_diag(7): a header and inet_diag_req_v2."""
    family = socket.AF_INET if connection.is_ipv4 else socket.AF_INET6
    ends = [socket.inet_pton(family, address) for address in (connection.ours, connection.theirs)]
    request = struct.pack(
        "=BBBxI2s2s16s16sIQ",
        family,
        socket.IPPROTO_TCP,
        0,
        0xFFFFFFFF,
        connection.our_port.to_bytes(2, "big"),
        connection.their_port.to_bytes(2, "big"),
        *ends,
        0,
        0xFFFFFFFFFFFFFFFF,
    )
    return struct.pack("=IHHII", 16 + len(request), _SOCK_DESTROY, 1 | 4, 0, 0) + request


class Wall:
    """Drops the packets of some connections, with an nft table that belongs to a process.

    The kernel removes the table when that process ends, for whatever reason.
    """

    def __init__(self, name: str, connections: Iterable[Connection]):
        """Start nft and wait until the table is in force. Raises criu.Missing, OSError."""
        self._table = f"inet {name}"
        read_end, self._commands = os.pipe()
        answers, write_end = os.pipe()
        try:
            self.pid = os.posix_spawn(
                criu.nft(),
                [criu.nft(), "-i"],
                {"PATH": os.defpath},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, read_end, 0),
                    (os.POSIX_SPAWN_DUP2, write_end, 1),
                    (os.POSIX_SPAWN_DUP2, write_end, 2),
                ],
            )
            os.close(read_end)
            os.close(write_end)
            os.write(self._commands, "\n".join(self._lines(list(connections))).encode())
            self._await(answers)
        except BaseException:
            os.close(self._commands)
            raise
        finally:
            os.close(answers)

    def _lines(self, connections: list[Connection]) -> list[str]:
        table = self._table
        lines = [
            f"add table {table} {{ flags owner; }}",
            f"add chain {table} out {{ type filter hook output priority 0; }}",
            f"add chain {table} in {{ type filter hook input priority 0; }}",
        ]
        for family, kind in (("ip", "ipv4_addr"), ("ip6", "ipv6_addr")):
            of_family = [each for each in connections if each.is_ipv4 == (family == "ip")]
            ends = f"{kind} . inet_service . {kind} . inet_service"
            lines.append(f"add set {table} {family}s {{ type {ends}; }}")
            for chain in ("out", "in"):
                lines.append(
                    f"add rule {table} {chain} {family} saddr . tcp sport . {family} daddr . "
                    f"tcp dport @{family}s drop"
                )
            for each in of_family:
                both = ", ".join(dict.fromkeys((each.element(False), each.element(True))))
                lines.append(f"add element {table} {family}s {{ {both} }}")
        return [*lines, "list tables", ""]

    def _await(self, answers: int) -> None:
        """Wait until nft lists the table, the last command. Raises OSError."""
        output, until = "", time.monotonic() + _ANSWER_S
        while f"table {self._table}" not in output:
            left = until - time.monotonic()
            data = (
                os.read(answers, 4096) if select.select([answers], [], [], max(0, left))[0] else b""
            )
            output += data.decode(errors="replace")
            if not data or "Error" in output:
                self._kill()
                raise OSError(f"nft: {output.strip() or 'no answer'}")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def remove(self) -> None:
        """Let packets pass again. The code that reaps children reaps the process."""
        os.close(self._commands)
        self._kill()

"""Changes CRIU's images: interrupted calls restart, and links to renamed files are dropped.

A dump takes threads out of the system calls in which they wait. The kernel restarts most of them.
Calls with a relative timeout, and some on sockets and System V objects, would return EINTR, which a
program without a signal handler need not expect, and few C programs check for. In the saved
registers of such a thread we restart the call, as the kernel does for the others: the call's number
goes into AX, and the instruction pointer is set back to the instruction. The call waits its whole
timeout again.

An image is two magic numbers, then for each entry its length (u32) and a protobuf message
(``core.proto``, ``core-x86.proto`` of CRIU). Changed values keep their place and length: a varint
may be longer than necessary.

If a file has lost the name by which it was opened and has another name, CRIU links it to a name of
its own. CRIU removes that link when the rank continues, but a restore would need it. On a restore
the file has its lost name (unlinked.py), so the entry for the link is dropped.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

# Numbers of x86-64: read, write, poll, readv, writev, select, nanosleep, accept, the send and
# receive calls, semop, msgsnd, msgrcv, rt_sigtimedwait, futex, io_getevents, semtimedop,
# clock_nanosleep, epoll_wait, pselect6, ppoll, epoll_pwait, accept4, recvmmsg, sendmmsg,
# io_pgetevents, epoll_pwait2, futex_waitv, futex_wait.
RESTARTED = frozenset(
    (
        0,
        1,
        7,
        19,
        20,
        23,
        35,
        43,
        44,
        45,
        46,
        47,
        65,
        69,
        70,
        128,
        202,
        208,
        220,
        230,
        232,
        270,
        271,
        281,
        288,
        299,
        307,
        333,
        441,
        449,
        455,
    )
)

_MAGICS = 8  # bytes
_INTERRUPTED = 2**64 - errno.EINTR
_SYSCALL_BYTES = 2  # length of the syscall instruction
# Fields of core_entry, task_core_entry, thread_core_entry, signal_queue_entry, thread_info_x86
# and user_x86_regs_entry.
_THREAD_INFO, _TASK, _THREAD = 2, 3, 5
_SIGNALS_OF_TASK, _SIGNALS_OF_THREAD, _SIGNALS = 10, 9, 1
_REGISTERS = 2
_AX, _ORIG_AX, _IP = 11, 16, 17
_REMAP_TYPE, _LINKED = 3, 0  # of remap_file_path_entry


def repair(folder: Path) -> int:
    """Change all images in `folder`. Returns the number of threads whose calls restart."""
    _forget_links(folder / "remap-fpath.img")
    return sum(_repair_one(path) for path in sorted(folder.glob("core-*.img")))


def _forget_links(path: Path) -> None:
    if not path.exists():
        return
    rewrite(path, lambda entry: b"" if _is_link(entry) else entry)


def _is_link(entry: bytes) -> bool:
    return dict(decoded(entry)).get(_REMAP_TYPE) == _LINKED


def threads(folder: Path) -> set[int]:
    """The ids of all dumped threads."""
    return {int(path.stem.removeprefix("core-")) for path in folder.glob("core-*.img")}


def _repair_one(path: Path) -> bool:
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<I", data, _MAGICS)
    begin = _MAGICS + 4
    core = Message(data, begin, begin + length)
    if not _interrupted(core):
        return False
    path.write_bytes(data)
    return True


def _interrupted(core: Message) -> bool:
    registers = core.inside(_THREAD_INFO, _REGISTERS)
    if registers is None or _has_signals(core):
        return False
    ax, call, ip = (registers.number(field) for field in (_AX, _ORIG_AX, _IP))
    if ax != _INTERRUPTED or call not in RESTARTED or ip is None:
        return False
    registers.put(_AX, call)
    registers.put(_IP, ip - _SYSCALL_BYTES)
    return True


def _has_signals(core: Message) -> bool:
    """Whether signals are pending: then one of them interrupted the call."""
    return any(
        (queue := core.inside(*path)) is not None and queue.has(_SIGNALS)
        for path in ((_TASK, _SIGNALS_OF_TASK), (_THREAD, _SIGNALS_OF_THREAD))
    )


# ---- entries that change their length ----

Field = tuple[int, Any]  # the field's number and its value: an int, or bytes


def entries(path: Path) -> list[bytes]:
    """The messages of an image."""
    data, result, offset = path.read_bytes(), [], _MAGICS
    while offset < len(data):
        (length,) = struct.unpack_from("<I", data, offset)
        result.append(data[offset + 4 : offset + 4 + length])
        offset += 4 + length
    return result


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace each message of an image by what `change` returns; empty: drop it."""
    magics = path.read_bytes()[:_MAGICS]
    changed = [new for new in map(change, entries(path)) if new]
    path.write_bytes(magics + b"".join(struct.pack("<I", len(new)) + new for new in changed))


def decoded(message: bytes) -> list[Field]:
    """The fields of a message without fixed-width fields."""
    fields: list[Field] = []
    for number, kind, begin, end in Message(bytearray(message), 0, len(message)).fields():
        inside = message[begin:end]
        fields.append((number, _varint(bytearray(inside), 0)[0] if kind == 0 else inside))
    return fields


def encoded(fields: Iterable[Field]) -> bytes:
    """The message with these fields; the inverse of `decoded`."""
    data = b""
    for number, value in fields:
        if isinstance(value, int):
            data += _bytes_of(number << 3) + _bytes_of(value)
        else:
            data += _bytes_of(number << 3 | 2) + _bytes_of(len(value)) + value
    return data


def _bytes_of(number: int) -> bytes:
    """Encode a number as a varint."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


# ---- values that keep their place ----


class Message:
    """A protobuf message in `data`, from `begin` to `end`."""

    def __init__(self, data: bytearray, begin: int, end: int):
        self.data, self.begin, self.end = data, begin, end

    def inside(self, *fields: int) -> Message | None:
        """The message nested at this path of field numbers; None: it is not there."""
        found: Message | None = self
        for number in fields:
            places = [p for p in (found.fields() if found else ()) if p[0] == number]
            found = Message(self.data, *places[0][2:]) if places else None
        return found

    def has(self, number: int) -> bool:
        return any(field == number for field, _, _, _ in self.fields())

    def number(self, number: int) -> int | None:
        for field, kind, begin, _ in self.fields():
            if (field, kind) == (number, 0):
                return _varint(self.data, begin)[0]
        return None

    def put(self, number: int, value: int) -> None:
        """Overwrite a field that is present and into whose bytes the value fits."""
        for field, _, begin, end in self.fields():
            if field == number:
                for position in range(begin, end):
                    more = 0x80 if position + 1 < end else 0
                    self.data[position] = (value & 0x7F) | more
                    value >>= 7
                assert value == 0

    def fields(self) -> Iterator[tuple[int, int, int, int]]:
        """For each field: number, wire type, and where the value begins and ends."""
        position = self.begin
        while position < self.end:
            key, position = _varint(self.data, position)
            kind = key & 7
            if kind == 0:
                following = _varint(self.data, position)[1]
            elif kind == 2:
                length, position = _varint(self.data, position)
                following = position + length
            else:
                following = position + {1: 8, 5: 4}[kind]
            yield key >> 3, kind, position, following
            position = following


def _varint(data: bytearray, position: int) -> tuple[int, int]:
    """Decode a varint: its value, and the offset after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position

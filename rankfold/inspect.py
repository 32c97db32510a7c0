"""Prints a rank's channel, or the saved state in its image, as text, for `rankfold inspect`.

The file may be a copy, or the memfd itself (``/proc/PID/fd/N``), which is only read. For a live
rank, some parts of the text may be newer than others. Nothing in the file is
trusted: an impossible value is reported at its place and ends the list that it is in.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rankfold import records
from rankfold.plural import count
from rankfold.records import Contract, Field, Opcode

CHECKED_BYTES_MAX = 16 << 20  # of saved state; the checksum of a larger one is not computed
SHOWN_BYTES_MAX = 64 << 10  # bytes shown of one record
TEXT_MAX = 256  # characters shown of a text
HEX_MAX = 32  # bytes shown of other values
ADDRESS = 1 << 40  # numbers from here on are shown as addresses
ENUMS = {
    ("rf_copy", "dst_place"): "rf_place",
    ("rf_copy", "src_place"): "rf_place",
    ("rf_module_load", "image"): "rf_image",
    ("rf_collective", "kind"): "rf_coll",
}


class NotOurs(Exception):
    """The file is neither a channel nor an image. The message says what was expected."""


@dataclass
class Found:
    """Whether anything in the file was damaged."""

    damaged: bool = False


class Source:
    """A file in which any part may be missing."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.size = file.seek(0, os.SEEK_END)

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes: fewer where the file ends."""
        if offset >= self.size:
            return b""
        return os.pread(self.file.fileno(), min(size, self.size - offset), offset)

    def number(self, offset: int) -> int:
        return int.from_bytes(self.read(offset, 8), "little")


@dataclass(frozen=True)
class Record:
    at: int  # position in bytes: in the ring as the header counts, or after the state's header
    size: int
    opcode: int
    slot: int
    seq: int

    def fault(self, contract: Contract, left: int) -> str:
        """Why this cannot be a record if `left` bytes are left for it; "": it can."""
        align = contract.constants["RF_RECORD_ALIGN"]
        if contract.constants["RF_OP_PAD"] < self.opcode < contract.constants["RF_OP_STATE_FIRST"]:
            left = min(left, contract.constants["RF_RECORD_MAX"])
        if self.size < contract.structs[records.RECORD].size or self.size % align:
            return f"{count(self.size, 'byte')} is not the size of a record"
        if self.size > left:
            return f"it has {count(self.size, 'byte')}, where at most {left} can be"
        return ""


def lines(path: Path, consumed: int, found: Found) -> Iterator[str]:
    """The file as text, with the newest `consumed` of the records that the proxy has taken.

    Raises NotOurs, and OSError for a file that cannot be read.
    """
    with path.open("rb") as file:
        source = Source(file)
        channel, saved = records.channel(), records.saved()
        offset = saved.constants["STATE_OFFSET"]
        magic = saved.constants["STATE_MAGIC"]
        if source.number(0) == channel.constants["RF_MAGIC"]:
            yield from _channel(source, consumed, found)
        elif source.number(offset) == magic:
            yield from _state(source, offset, found)
        elif source.number(0) == magic:
            yield from _state(source, 0, found)
        elif source.size > offset:
            yield "an image without a saved state: of a fresh rank, or of one that is on a device"
        else:
            raise NotOurs(
                f"{path} is neither a rank's channel nor its image: it does not begin like a "
                f"channel, and has no saved state {count(offset, 'byte')} behind its beginning "
                f"({count(source.size, 'byte')} in all)"
            )


# ---- a channel ----


def _channel(source: Source, consumed: int, found: Found) -> Iterator[str]:
    c = records.channel()
    shape = c.structs["rf_header"]
    data = source.read(c.constants["RF_OFF_HEADER"], shape.size)
    if len(data) < shape.size:
        found.damaged = True
        yield f"a channel whose header is cut off after {len(data)} of {count(shape.size, 'byte')}"
        return
    h = c.unpack(shape, data)
    yield (
        f"channel of rank {h['rank']} of {h['world_size']}, process {h['pid']}, version "
        f"{h['major']}.{h['minor']}"
    )
    if h["major"] != c.constants["RF_MAJOR"]:
        found.damaged = True
        yield f"  this rankfold reads version {c.constants['RF_MAJOR']} only"
        return
    asleep = ", the server sleeps" if h["server_sleeping"] else ""
    served = "served" if h["served"] else "not served" if h["epoch"] else "never served"
    yield f"  epoch {h['epoch']}: {served}{asleep}"
    yield f"  ring: published up to byte {h['head']}, consumed up to byte {h['tail']}"
    granted = count(h["grant_bytes"], "byte")
    yield f"  memory: {granted} granted, freed up to request {h['retired_free']}"
    yield f"  host functions: {h['hostfunc_head']} handed over, {h['hostfunc_tail']} returned"
    if h["async_error"] or h["comm_error"]:
        yield f"  error {h['async_error']}, of communicators {h['comm_error']}: {_text(h['fault'])}"
    busy = [str(i) for i in range(c.constants["RF_BULK_COUNT"]) if h["bulk_busy"] >> i & 1]
    yield f"  bulk slots in use: {' '.join(busy) or 'none'}"
    yield from _slots(source, found)
    yield from _ring(source, h["head"], h["tail"], consumed, found)


def _slots(source: Source, found: Found) -> Iterator[str]:
    c = records.channel()
    states = {n: name.removeprefix("RF_SLOT_") for name, n in c.enums["rf_slot_state"].items()}
    shape = c.structs["rf_slot"]
    used = []
    for index in range(c.constants["RF_SLOT_COUNT"]):
        data = source.read(c.constants["RF_OFF_SLOTS"] + index * shape.size, shape.size)
        if len(data) < shape.size:
            found.damaged = True
            yield f"  reply slots: the file ends before slot {index + 1}"
            break
        slot = c.unpack(shape, data)
        if slot["state"]:
            state = states.get(slot["state"], f"in an unknown state ({slot['state']})")
            error = f" with error {slot['error']}" if state == "ANSWERED" and slot["error"] else ""
            used.append(f"{index + 1} {state}{error}")
    yield f"  reply slots: {', '.join(used) or 'none in use'}"


def _record(source: Source, position: int) -> Record | None:
    """The record at byte `at` of the ring; None: the file ends before it."""
    c = records.channel()
    place = c.constants["RF_OFF_RING"] + position % c.constants["RF_RING_BYTES"]
    data = source.read(place, 16)
    return Record(position, *struct.unpack("<IHHQ", data)) if len(data) == 16 else None


def _ring(source: Source, head: int, tail: int, consumed: int, found: Found) -> Iterator[str]:
    c = records.channel()
    ring, align = c.constants["RF_RING_BYTES"], c.constants["RF_RECORD_ALIGN"]
    if head < tail or head - tail > ring or tail % align or head % align:
        found.damaged = True
        yield f"the ring's counts are invalid: head {head}, tail {tail}, of {count(ring, 'byte')}"
        return
    taken = _taken(source, head, tail)
    shown = taken[max(0, len(taken) - consumed) :]
    yield f"consumed requests, {len(shown)} of {len(taken)} that are still there:"
    for each in shown:
        yield _line(source, each)
    yield "waiting requests:"
    last = taken[-1].seq if taken else None
    position = tail
    while position < head:
        record = _record(source, position)
        if record is None:
            found.damaged = True
            yield f"  byte {position}: the file ends before it"
            return
        if fault := record.fault(c, min(head - position, ring - position % ring)):
            found.damaged = True
            yield f"  byte {position}: not a valid record: {fault}"
            return
        position += record.size
        if record.opcode == c.constants["RF_OP_PAD"]:
            continue
        if last is not None and record.seq != last + 1:
            found.damaged = True
            yield f"  the number of the next one is not {last + 1}"
        last = record.seq
        yield _line(source, record)
    if head == tail:
        yield "  none"


def _taken(source: Source, head: int, tail: int) -> list[Record]:
    """The longest row of records that ends at `tail`: those that the client has not overwritten
    yet.

    The start of the row is not recorded, so each possible position of a record is tried, from the
    end: a record belongs to the row if the one after it does.
    """
    c = records.channel()
    ring, align, pad = (
        c.constants[name] for name in ("RF_RING_BYTES", "RF_RECORD_ALIGN", "RF_OP_PAD")
    )
    base = c.constants["RF_OFF_RING"]
    data = source.read(base, ring)
    row: dict[int, tuple[Record, int]] = {}  # by position: record, and number expected there
    first = max(0, head - ring)
    for position in range(tail - align, first - align, -align):
        if position % ring + 16 > len(data):
            continue
        record = Record(position, *struct.unpack_from("<IHHQ", data, position % ring))
        if record.fault(c, min(tail - position, ring - position % ring)):
            continue
        end = position + record.size
        if end != tail and end not in row:
            continue
        following = row[end][1] if end != tail else 0
        if record.opcode == pad:
            row[position] = (record, following)
        elif record.seq and following in (0, record.seq + 1):
            row[position] = (record, record.seq)
    found: list[Record] = []
    position = min(row, default=tail)
    while position in row:
        if row[position][0].opcode != pad:
            found.append(row[position][0])
        position += row[position][0].size
    return found


def _line(source: Source, record: Record) -> str:
    c = records.channel()
    place = c.constants["RF_OFF_RING"] + record.at % c.constants["RF_RING_BYTES"]
    body = source.read(place, min(record.size, SHOWN_BYTES_MAX))
    slot = f" slot {record.slot}" if record.slot else ""
    return f"  {record.seq} {described(c, record, body)}{slot}"


# ---- saved state ----


def _state(source: Source, offset: int, found: Found) -> Iterator[str]:
    s = records.saved()
    shape = s.structs["state_header"]
    data = source.read(offset, shape.size)
    if len(data) < shape.size:
        found.damaged = True
        whole = count(shape.size, "byte")
        yield f"a saved state whose header is cut off after {len(data)} of {whole}"
        return
    h = s.unpack(shape, data)
    version = s.constants["STATE_VERSION"]
    yield f"saved state, version {h['version']}, {count(h['bytes'], 'byte')} of records"
    if h["version"] != version:
        found.damaged = True
        yield f"  this rankfold reads version {version} only"
        return
    left = source.size - offset - shape.size
    if h["bytes"] > left:
        found.damaged = True
        yield f"  the file ends {count(h['bytes'] - left, 'byte')} before they do"
    elif h["bytes"] > CHECKED_BYTES_MAX:
        yield "  checksum: not checked, the state is too large"
    elif _checksum(source, offset + shape.size, h["bytes"]) != h["checksum"]:
        found.damaged = True
        yield "  checksum: wrong, a proxy refuses this state"
    else:
        yield "  checksum: right"
    yield "records:"
    yield from _saved_records(source, offset + shape.size, h["bytes"], found)


def _saved_records(source: Source, first: int, size: int, found: Found) -> Iterator[str]:
    s = records.saved()
    position = 0
    while position < size:
        data = source.read(first + position, min(SHOWN_BYTES_MAX, size - position))
        if len(data) < 16:
            found.damaged = True
            yield f"  byte {position}: the file ends here"
            return
        record = Record(position, *struct.unpack_from("<IHHQ", data))
        if fault := record.fault(s, size - position):
            found.damaged = True
            yield f"  byte {position}: not a valid record: {fault}"
            return
        yield f"  {described(s, record, data[: record.size])}"
        if record.opcode == s.opcodes["END"].number:
            return
        position += record.size
    found.damaged = True
    yield "  they end without END"


def _checksum(source: Source, offset: int, size: int) -> int:
    """FNV-1a, 64 bits, as in proxy/core/loop/state.c."""
    result = 0xCBF29CE484222325
    for start in range(offset, offset + size, 1 << 20):
        for byte in source.read(start, min(1 << 20, offset + size - start)):
            result = (result ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return result


# ---- fields ----


def described(contract: Contract, record: Record, body: bytes) -> str:
    """The record's opcode name and fields. `body`: the available bytes of it."""
    opcode = contract.by_number().get(record.opcode)
    if opcode is None:
        return f"of unknown kind (opcode {record.opcode}, {count(record.size, 'byte')})"
    if len(body) < opcode.record.size:
        return f"{opcode.name} with {len(body)} of at least {count(opcode.record.size, 'byte')}"
    values = contract.unpack(opcode.record, body)
    words = [opcode.name]
    for each in opcode.record.arguments:
        if each.name in values:
            words += _words(contract, opcode.record.name, each, values[each.name])
    words += _behind(opcode, values, body[opcode.record.size :])
    return " ".join(words)


def _words(contract: Contract, owner: str, each: Field, value: Any) -> Iterator[str]:
    """field=value; for a struct its fields, without the record header that it may begin with."""
    if isinstance(value, dict):
        inner = contract.structs[each.type]
        for part in inner.fields:
            if part.name not in value or part.type == records.RECORD:
                continue
            for word in _words(contract, inner.name, part, value[part.name]):
                yield word if inner.fields[0].type == records.RECORD else f"{each.name}.{word}"
        return
    members = contract.enums.get(ENUMS.get((owner, each.name), ""), {})
    names = [name.split("_", 2)[2] for name, number in members.items() if number == value]
    yield f"{each.name}={names[0] if names else _text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + "…")
    if isinstance(value, bytes):
        return value.hex() if len(value) <= HEX_MAX else value[:HEX_MAX].hex() + "…"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return hex(value) if isinstance(value, int) and value >= ADDRESS else str(value)


def _behind(opcode: Opcode, values: dict[str, Any], rest: bytes) -> list[str]:
    """The data after the fixed part: as a name if the record has a name's length, otherwise as
    bytes."""
    if "name_bytes" in values:
        return ["name=" + _text(rest[: values["name_bytes"]].decode(errors="replace"))]
    size = values.get("param_bytes" if opcode.name == "LAUNCH" else "image_bytes", 0)
    return ["behind=" + _text(rest[:size])] if size else []

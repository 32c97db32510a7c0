"""The records of the channel and of a rank's saved state, read from the C headers.

``interpose/channel/channel.h`` and ``proxy/core/loop/saved.h`` are the contracts, ``opcodes.def``
and ``saved.def`` next to them are the lists. This module reads them, so that Python code repeats
none of their numbers: launchers, the control protocol, the generator of the client's stubs,
``rankfold inspect`` and the tests use it. It understands what those headers need: structs of
fixed-width numbers and arrays, enums, and macros that are numbers. (A test compares every offset
with the compiler's.)

A wheel contains none of these headers. It has the contracts in a generated module
(`distribution.py`, `setup.py`), so that they are not parsed at run time.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rankfold import distribution, paths

# For each contract, its files and the contract that it is based on.
SOURCES = {
    "channel": (("interpose/channel/channel.h", "interpose/channel/opcodes.def"), ""),
    "saved": (("proxy/core/loop/saved.h", "proxy/core/loop/saved.def"), "channel"),
    "image_hold": (("proxy/core/memory/image_hold.h",), "channel"),
    "host_state": (("interpose/channel/host_state.h",), ""),
}
NUMBERS = {
    "uint64_t": "Q",
    "uint32_t": "I",
    "uint16_t": "H",
    "uint8_t": "B",
    "int32_t": "i",
    "float": "f",
    "char": "c",
}
RECORD = "rf_record"  # the beginning of every record


class Unreadable(Exception):
    """A header contains something that this module does not understand."""


@dataclass(frozen=True)
class Field:
    name: str
    offset: int  # bytes, in its struct
    type: str  # a key of NUMBERS, or the name of a struct
    size: int  # bytes of one element
    count: int | None = None  # of an array; 0: variable, up to the end of the record

    @property
    def reserved(self) -> bool:
        return self.name.startswith("reserved")


@dataclass(frozen=True)
class Struct:
    name: str
    fields: tuple[Field, ...]
    size: int  # bytes
    align: int

    @property
    def arguments(self) -> tuple[Field, ...]:
        """The record's fields without the header and without reserved fields."""
        said = self.fields if self.name != RECORD else ()
        return tuple(f for f in said if f.type != RECORD and not f.reserved)

    def layout(self, until: str = "") -> struct.Struct:
        """A format for packing and unpacking: one value for each number; arrays of char and nested
        structs are bytes. `until`: the first field to leave out."""
        text, end = "<", 0
        for each in self.fields:
            if each.name == until:
                break
            many = 1 if each.count is None else each.count
            letter = NUMBERS.get(each.type, "s")
            length = many * each.size if letter in "cs" else many
            text += f"{each.offset - end}x{length}{'s' if letter == 'c' else letter}"
            end = each.offset + many * each.size
        return struct.Struct(text if until else f"{text}{self.size - end}x")

    def __getitem__(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)


@dataclass(frozen=True)
class Opcode:
    """A row of opcodes.def; rows of saved.def lack the last four fields."""

    name: str
    number: int
    record: Struct
    about: str = ""  # the field with the subject of a request
    kind: str = ""  # enum rf_kind
    errors: str = ""  # CUDA or NCCL
    reply: Struct | None = None


@dataclass
class Contract:
    constants: dict[str, int] = field(default_factory=dict)  # macros and enumerators
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    structs: dict[str, Struct] = field(default_factory=dict)
    opcodes: dict[str, Opcode] = field(default_factory=dict)  # by name

    def by_number(self) -> dict[int, Opcode]:
        return {opcode.number: opcode for opcode in self.opcodes.values()}

    def unpack(self, shape: Struct, data: bytes) -> dict[str, Any]:
        """Unpack a struct without its reserved fields. `data` must contain all of it.

        An array of char becomes text up to its first zero, one of uint8_t bytes, others lists; a
        nested struct becomes a dictionary. Data after the struct is ignored.
        """
        fields: dict[str, Any] = {}
        for each in shape.fields:
            if each.reserved or each.count == 0:
                continue
            if each.count is None and (letter := NUMBERS.get(each.type, "c")) != "c":
                fields[each.name] = struct.unpack_from("<" + letter, data, each.offset)[0]
                continue
            size = each.size * (1 if each.count is None else each.count)
            part = data[each.offset : each.offset + size]
            fields[each.name] = self._value(each, part)
        return fields

    def _value(self, each: Field, part: bytes) -> Any:
        if each.type == "char":
            return part.split(b"\0")[0].decode(errors="replace")
        if each.type == "uint8_t" and each.count is not None:
            return bytes(part)
        parts = [part[offset : offset + each.size] for offset in range(0, len(part), each.size)]
        values = [
            self.unpack(self.structs[each.type], p)
            if each.type in self.structs
            else struct.unpack("<" + NUMBERS[each.type], p)[0]
            for p in parts
        ]
        return values[0] if each.count is None else values


def parse(text: str, known: Contract | None = None) -> Contract:
    """Parse the text of headers and lists, given what is `known`. Raises Unreadable."""
    contract = Contract()
    if known:
        contract = Contract(dict(known.constants), dict(known.enums), dict(known.structs))
    plain = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    plain = re.sub(r"\\\n", " ", plain)
    for name, value in re.findall(r"^#define (\w+)[ \t]+(\S.*)$", plain, re.MULTILINE):
        if (number := _number(value, contract.constants)) is not None:
            contract.constants[name] = number
    rows = re.findall(r"^(RF_OPCODE\w*|RF_REPLY|SAVED)\((.*)\)\s*$", plain, re.MULTILINE)
    body = re.sub(r"^\s*(#|RF_OPCODE|RF_REPLY|SAVED).*$", "", plain, flags=re.MULTILINE)
    declarations = r"(enum|struct) (\w+) \{(.*?)\};"
    for kind, name, inside in re.findall(declarations, body, re.DOTALL):
        if kind == "enum":
            contract.enums[name] = _enumerators(inside, contract.constants)
            contract.constants.update(contract.enums[name])
        else:
            contract.structs[name] = _struct(name, inside, contract)
    for macro, arguments in rows:
        _row(macro, [word.strip() for word in arguments.split(",")], contract)
    return contract


def _number(text: str, constants: dict[str, int]) -> int | None:
    """The value of a C expression of numbers and known names; None for any other text."""
    expression = re.sub(r"\b(0x[0-9a-f]+|\d+)[ul]+\b", r"\1", text, flags=re.IGNORECASE)
    expression = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: str(constants.get(m[0], m[0])), expression)
    if not re.fullmatch(r"(0x[0-9a-fA-F]+|\d+|<<|[-+*/()\s])+", expression):
        return None
    return int(eval(expression.replace("/", "//"), {"__builtins__": {}}))  # digits, operators


def _enumerators(inside: str, constants: dict[str, int]) -> dict[str, int]:
    members: dict[str, int] = {}
    following = 0
    for part in filter(None, map(str.strip, inside.split(","))):
        name, _, value = map(str.strip, part.partition("="))
        number = _number(value, constants) if value else following
        if number is None:
            raise Unreadable(f"{name}: {value} is not a number")
        members[name] = number
        following = number + 1
    return members


def _struct(name: str, inside: str, known: Contract) -> Struct:
    """Lay a struct out as C does: each field at a multiple of its alignment."""
    fields: list[Field] = []
    end, strictest = 0, 1
    for declaration in filter(None, map(str.strip, inside.split(";"))):
        words = re.sub(r"\b_Atomic\b|\bstruct\b", "", declaration)
        aligned = re.search(r"_Alignas\((\w+)\)", words)
        words = re.sub(r"_Alignas\(\w+\)", "", words).strip()
        kind, _, declarators = words.partition(" ")
        size, align = _size(kind, known)
        align = max(align, int(aligned[1]) if aligned else 1)
        strictest = max(strictest, align)
        for declarator in map(str.strip, declarators.split(",")):
            array = re.fullmatch(r"(\w+)\[(.*)\]", declarator)
            count = None
            if array:
                count = _number(array[2], known.constants) if array[2] else 0
                if count is None:
                    raise Unreadable(f"struct {name}: {declarator} has a length that is not known")
            end = -(-end // align) * align
            fields.append(Field(array[1] if array else declarator, end, kind, size, count))
            end += size * (1 if count is None else count)
            align = size if kind in NUMBERS else align  # _Alignas applies to one field
    return Struct(name, tuple(fields), -(-end // strictest) * strictest, strictest)


def _size(kind: str, known: Contract) -> tuple[int, int]:
    if kind in NUMBERS:
        size = struct.calcsize(NUMBERS[kind])
        return size, size
    if kind in known.structs:
        return known.structs[kind].size, known.structs[kind].align
    raise Unreadable(f"{kind} is not a type that a record may have")


def _row(macro: str, words: list[str], contract: Contract) -> None:
    if macro == "SAVED":
        name, number, record, _size = words
        contract.opcodes[name] = Opcode(name, int(number, 0), contract.structs[record])
    elif macro == "RF_REPLY":
        name, reply, _size = words
        old = contract.opcodes[name]
        contract.opcodes[name] = Opcode(
            name, old.number, old.record, old.about, old.kind, old.errors, contract.structs[reply]
        )
    else:
        name, _handler, number, record, _size, about, kind, errors = words
        contract.opcodes[name] = Opcode(
            name, int(number), contract.structs[record], about, kind, errors
        )


def _parsed(name: str) -> Contract:
    """Parse a contract from the headers of the checkout. A contract includes the names of those
    that it is based on."""
    files, base = SOURCES[name]
    text = "".join((paths.REPOSITORY / file).read_text() for file in files)
    return parse(text, _parsed(base) if base else None)


def source() -> str:
    """Return the contracts as Python source, which defines ``CONTRACTS``, by name."""
    entries = "".join(f"    {name!r}: {_parsed(name)!r},\n" for name in SOURCES)
    return (
        "from rankfold.records import Contract, Field, Opcode, Struct\n\n"
        f"CONTRACTS = {{\n{entries}}}\n"
    )


@cache
def _contract(name: str) -> Contract:
    if (module := distribution.generated()) is None:
        return _parsed(name)
    contract: Contract = module.CONTRACTS[name]
    return contract


def channel() -> Contract:
    """The channel between a rank and its proxy."""
    return _contract("channel")


def host_state() -> Contract:
    """The record of a process about its state in the kernel."""
    return _contract("host_state")


def saved() -> Contract:
    """The saved state in a rank's image; includes the channel's names."""
    return _contract("saved")


def image_hold() -> Contract:
    """The image hold in a rank's image; includes the channel's names."""
    return _contract("image_hold")

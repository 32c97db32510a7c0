"""Reads machine code, a *cubin*: an ELF file whose architecture, kernels and variables the proxy
must know before the driver loads it. The code itself is never read.

Facts about the format, which NVIDIA does not document, are those that `cuobjdump -elf` shows. A
kernel's parameters are in the section `.nv.info.<kernel>`, as attributes; its module's variables
are symbols of the sections `.nv.global`, `.nv.global.init` and (constants) `.nv.constant3`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rankfold.proxy.ptx.errors import (
    INVALID_IMAGE,
    NO_BINARY_FOR_GPU,
    NOT_FOUND,
    NOT_SUPPORTED,
    ModuleError,
)
from rankfold.proxy.ptx.fatbin import architecture_of

_HEADER = struct.Struct("<16xH22xQ12xHH")  # type; sections: where, how many, which has names
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_TYPE_LINKED = 2  # a file that needs no further linking
_REL, _RELA, _NO_BITS = 9, 4, 8  # types of sections
_OBJECT, _FUNCTION = 1, 2  # types of symbols
_ENTRY, _MANAGED = 0x10, 0x04  # in a symbol's st_other
_UNDEFINED = 0
_WITH_SIZE = 4  # format of an attribute that is followed by its size and content
_CBANK_PARAM_SIZE = 0x19
_KPARAM = struct.Struct("<4xHHI")  # ordinal, offset, and a word with the size
_KPARAM_SIZE_SHIFTS = {0x17: 18, 0x45: 0}  # EIATTR_KPARAM_INFO, and its second version
_VARIABLES = (".nv.global", ".nv.global.init")
_CONSTANTS = ".nv.constant3"
_TEXTS = ("$str", "__unnamed_")  # what the compiler calls strings and __PRETTY_FUNCTION__
_LIBRARIES = re.compile(r"4cuda3std|6thrust\d|3cub\d|4cute\d")  # namespaces, mangled
_ALLOCATION = frozenset(("malloc", "free"))


@dataclass(frozen=True)
class Kernel:
    """A kernel's parameters: (offset, bytes) of each, and the bytes of all."""

    params: tuple[tuple[int, int], ...]
    param_bytes: int


@dataclass(frozen=True)
class Variable:
    """A `__device__` or `__constant__` variable. `initial`: its first content; shorter than `bytes`
    if the rest is zeros."""

    name: str
    initial: bytes
    bytes: int
    alignment: int
    constant: bool


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    data: bytes
    link: int
    info: int
    alignment: int


@dataclass(frozen=True)
class _Symbol:
    name: str
    type: int
    other: int
    section: int
    value: int
    bytes: int


class Cubin:
    """A cubin. All properties raise ModuleError if the file is damaged or has what a proxy cannot
    serve."""

    def __init__(self, image: bytes):
        self._image = image
        if len(image) < _HEADER.size:
            raise ModuleError(INVALID_IMAGE, "a cubin ends within its header: it is damaged")
        self.arch = architecture_of(image)
        kind, self._sections_at, self._section_count, self._names = _HEADER.unpack_from(image)
        if kind != _TYPE_LINKED:
            raise ModuleError(
                NO_BINARY_FOR_GPU,
                f"the module is machine code for sm_{self.arch} that has not been linked "
                "(nvcc -dc), and contains no PTX",
            )

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """The names of its kernels."""
        return tuple(
            s.name for s in self._symbols if s.type == _FUNCTION and s.other & _ENTRY and s.section
        )

    @cached_property
    def allocates(self) -> bool:
        """Whether some kernel calls CUDA's malloc or free."""
        return any(s.name in _ALLOCATION for s in self._symbols if s.section == _UNDEFINED)

    def kernel(self, name: str) -> Kernel:
        """The parameters of one kernel. Raises ModuleError also if there is no such kernel."""
        if name not in self.kernels:
            raise ModuleError(NOT_FOUND, f"the module has no kernel {name}")
        info = next((s for s in self._sections if s.name == f".nv.info.{name}"), None)
        params: dict[int, tuple[int, int]] = {}
        total = 0
        for attribute, content in _attributes(info.data) if info else ():
            if attribute == _CBANK_PARAM_SIZE:
                total = int.from_bytes(content, "little")
            elif attribute in _KPARAM_SIZE_SHIFTS and len(content) == _KPARAM.size:
                ordinal, offset, size = _KPARAM.unpack(content)
                params[ordinal] = (offset, size >> _KPARAM_SIZE_SHIFTS[attribute])
        ordered = tuple(params[ordinal] for ordinal in sorted(params))
        if sorted(params) != list(range(len(params))) or any(o + n > total for o, n in ordered):
            raise ModuleError(INVALID_IMAGE, f"kernel {name}: its list of parameters is damaged")
        return Kernel(ordered, total)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """Its variables, in the order of the file, without those that have no content of their own
        in any rank: strings of the code, and the libraries' objects of empty classes."""
        pointers = self._pointers()
        return tuple(
            self._variable(symbol, section, pointers)
            for symbol in self._symbols
            if symbol.type == _OBJECT and symbol.bytes
            for section in [self._section(symbol.section)]
            if section.name in (*_VARIABLES, _CONSTANTS)
            and not symbol.name.startswith(_TEXTS)
            and not (symbol.bytes == 1 and not section.data and _LIBRARIES.search(symbol.name))
        )

    def _variable(
        self, symbol: _Symbol, section: _Section, pointers: dict[str, list[int]]
    ) -> Variable:
        if symbol.other & _MANAGED:
            raise ModuleError(
                NOT_SUPPORTED,
                f"variable {symbol.name} is managed, and its module has machine code only: build "
                "it with PTX (nvcc -arch=compute_75)",
            )
        first, end = symbol.value, symbol.value + symbol.bytes
        if any(first <= at < end for at in pointers.get(section.name, ())):
            raise ModuleError(
                NOT_SUPPORTED,
                f"variable {symbol.name} is initialised with an address, and its module has "
                "machine code only: build it with PTX (nvcc -arch=compute_75)",
            )
        constant = section.name == _CONSTANTS
        return Variable(
            symbol.name,
            section.data[first:end],
            symbol.bytes,
            min(section.alignment, first & -first or section.alignment) or 1,
            constant,
        )

    def _pointers(self) -> dict[str, list[int]]:
        """Places, by the section's name, that the driver fills with addresses."""
        return {
            self._section(section.info).name: [at for at, _ in self._relocations(section)]
            for section in self._sections
            if section.type in (_REL, _RELA)
            and self._section(section.info).name in (*_VARIABLES, _CONSTANTS)
        }

    def _relocations(self, section: _Section) -> Iterator[tuple[int, int]]:
        """Place and symbol of each relocation."""
        each = 16 if section.type == _REL else 24
        for at in range(0, len(section.data) - each + 1, each):
            place, info = struct.unpack_from("<QQ", section.data, at)
            number = info >> 32
            if number >= len(self._symbols):
                raise ModuleError(INVALID_IMAGE, "a cubin refers to a symbol that it does not have")
            yield place, number

    @cached_property
    def _sections(self) -> list[_Section]:
        raw = []
        for number in range(self._section_count):
            at = self._sections_at + number * _SECTION.size
            if at + _SECTION.size > len(self._image):
                raise ModuleError(INVALID_IMAGE, "a cubin ends within its list of sections")
            raw.append(_SECTION.unpack_from(self._image, at))
        if self._names >= len(raw):
            raise ModuleError(INVALID_IMAGE, "a cubin has no names of sections")
        names = self._bytes(*raw[self._names][4:6])
        return [
            _Section(
                _text(names, fields[0]),
                fields[1],
                b"" if fields[1] == _NO_BITS else self._bytes(fields[4], fields[5]),
                fields[6],
                fields[7],
                fields[8],
            )
            for fields in raw
        ]

    @cached_property
    def _symbols(self) -> list[_Symbol]:
        table = next((s for s in self._sections if s.name == ".symtab"), None)
        if not table:
            return []
        names = self._section(table.link).data
        usable = len(table.data) // _SYMBOL.size * _SYMBOL.size
        return [
            _Symbol(_text(names, name), info & 0xF, other, section, value, size)
            for name, info, other, section, value, size in _SYMBOL.iter_unpack(table.data[:usable])
        ]

    def _section(self, number: int) -> _Section:
        """A section; an empty one for the numbers that have a meaning of their own."""
        if number < len(self._sections):
            return self._sections[number]
        return _Section("", 0, b"", 0, 0, 0)

    def _bytes(self, at: int, size: int) -> bytes:
        if at + size > len(self._image):
            raise ModuleError(INVALID_IMAGE, "a cubin is shorter than its sections: it is damaged")
        return self._image[at : at + size]


def _text(names: bytes, at: int) -> str:
    end = names.find(b"\0", at)
    return names[at : end if end >= 0 else len(names)].decode(errors="replace")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes of a section .nv.info: format, attribute, and two bytes that are the content
    or its size."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        if form == _WITH_SIZE:
            yield attribute, data[at + 4 : at + 4 + size]
            at += 4 + size
        else:
            yield attribute, data[at + 2 : at + 4]
            at += 4

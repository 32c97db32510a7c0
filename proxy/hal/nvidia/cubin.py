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
# EIATTR_KPARAM_INFO, and its second version: the lowest bit of the size in the word, and its mask.
_KPARAM_SIZES = {0x17: (18, 0x3FFF), 0x45: (0, 0xFFFFFF)}
_VARIABLES = (".nv.global", ".nv.global.init")
_CONSTANTS = ".nv.constant3"
_CODE = ".text."
# Strings and __PRETTY_FUNCTION__, tables of mathematical functions, and those of cuRAND's
# generators, which are __device__ variables of 200 KiB. Nothing writes to them.
_READ_ONLY = ("$str", "__unnamed_", "__cudart_", "__cr_", "precalc_xorwow_", "mrg32k3aM")
_LIBRARIES = re.compile(r"4cuda3std|6thrust\d|3cub\d|4cute\d")  # namespaces, mangled
_SECTION_ALIGNMENT = 256
_GLOBALS_MAX = 1 << 28  # bytes of variables: their first content is in the proxy's memory
_NEEDS_PTX = ", and its module has machine code only: build it with PTX (nvcc -arch=compute_75)"
_ALLOCATION = frozenset(("malloc", "free"))


@dataclass(frozen=True)
class Kernel:
    """A kernel's parameters: (offset, bytes) of each, and the bytes of all."""

    params: tuple[tuple[int, int], ...]
    param_bytes: int


@dataclass(frozen=True)
class Variable:
    """A `__device__` or `__constant__` variable: its offset in the globals area, and its size, in
    bytes. `section`: the number of its section; constants are in one of their own."""

    name: str
    offset: int
    bytes: int
    constant: bool
    section: int


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    data: bytes  # empty: zeros
    bytes: int
    link: int
    info: int


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
        info = self._by_name.get(f".nv.info.{name}")
        params: dict[int, tuple[int, int]] = {}
        total = 0
        for attribute, content in _attributes(info.data) if info else ():
            if attribute == _CBANK_PARAM_SIZE:
                total = int.from_bytes(content, "little")
            elif attribute in _KPARAM_SIZES and len(content) == _KPARAM.size:
                ordinal, offset, word = _KPARAM.unpack(content)
                shift, mask = _KPARAM_SIZES[attribute]
                params[ordinal] = (offset, word >> shift & mask)
        ordered = tuple(params[ordinal] for ordinal in sorted(params))
        if sorted(params) != list(range(len(params))) or any(o + n > total for o, n in ordered):
            raise ModuleError(INVALID_IMAGE, f"kernel {name}: its list of parameters is damaged")
        return Kernel(ordered, total)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its variables, without those that have no content of their own in any rank: what is never
        written, and the libraries' objects of empty classes."""
        return self._globals[0]

    @property
    def globals_image(self) -> bytes:
        """The first content of the globals area: the sections with variables, one after another, as
        they are in the file. So a section can be copied to the driver's at once."""
        return self._globals[1]

    @cached_property
    def _globals(self) -> tuple[tuple[Variable, ...], bytes]:
        variables: list[Variable] = []
        image = bytearray()
        for number, section in enumerate(self._sections):
            if section.name not in (*_VARIABLES, _CONSTANTS):
                continue
            found = [s for s in self._symbols if s.section == number and _has_content(s, section)]
            if not found:
                continue
            self._refuse_pointers(number, section)
            if section.bytes > _GLOBALS_MAX:
                raise ModuleError(
                    NOT_SUPPORTED,
                    f"variables of {section.bytes >> 20} MiB ({section.name}){_NEEDS_PTX}",
                )
            image += bytes(-len(image) % _SECTION_ALIGNMENT)
            base = len(image)
            variables += [self._variable(symbol, number, section, base) for symbol in found]
            image += section.data.ljust(section.bytes, b"\0")
        return tuple(variables), bytes(image)

    def _variable(self, symbol: _Symbol, number: int, section: _Section, base: int) -> Variable:
        if symbol.other & _MANAGED:
            raise ModuleError(NOT_SUPPORTED, f"variable {symbol.name} is managed{_NEEDS_PTX}")
        if symbol.value + symbol.bytes > section.bytes:
            raise ModuleError(INVALID_IMAGE, f"variable {symbol.name} is not in its section")
        constant = section.name == _CONSTANTS
        return Variable(symbol.name, base + symbol.value, symbol.bytes, constant, number)

    def _refuse_pointers(self, number: int, section: _Section) -> None:
        """Refuses a section in which the driver writes addresses: these are not the rank's."""
        for relocations in self._sections:
            if relocations.type not in (_REL, _RELA) or relocations.info != number:
                continue
            for place, _ in self._relocations(relocations):
                named = [
                    f"variable {s.name}"
                    for s in self._symbols
                    if s.section == number and s.value <= place < s.value + s.bytes
                ]
                what = named[0] if named else f"section {section.name}"
                raise ModuleError(NOT_SUPPORTED, f"{what} contains an address{_NEEDS_PTX}")

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
        found = []
        for fields in raw:
            name = _text(names, fields[0])
            content = self._bytes(fields[4], fields[5]) if fields[1] != _NO_BITS else b""
            kept = b"" if name.startswith(_CODE) else content
            found.append(_Section(name, fields[1], kept, fields[5], fields[6], fields[7]))
        self._image = b""  # the driver has the code
        return found

    @cached_property
    def _by_name(self) -> dict[str, _Section]:
        return {section.name: section for section in self._sections}

    @cached_property
    def _symbols(self) -> list[_Symbol]:
        table = self._by_name.get(".symtab")
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


def _has_content(symbol: _Symbol, section: _Section) -> bool:
    """Whether a symbol is a variable in which ranks may differ."""
    return (
        symbol.type == _OBJECT
        and symbol.bytes > 0
        and not symbol.name.startswith(_READ_ONLY)
        and not (symbol.bytes == 1 and not section.data and _LIBRARIES.search(symbol.name))
    )


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

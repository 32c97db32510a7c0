"""The representation of PTX: modules, functions, bodies, instructions, operands.

PTX ISA, chapters 4 (syntax) and 5 (state spaces, types, variables).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .outline import strip

TYPE_BYTES = {
    "pred": 1,
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "e4m3": 1,
    "e5m2": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "bf16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
    "u16x2": 4,
    "s16x2": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
}


@dataclass(frozen=True, slots=True)
class Reg:
    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register: ``tid.x``, ``laneid`` …"""

    name: str


@dataclass(frozen=True, slots=True)
class Int:
    value: int


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point constant as f64 (`single`: its bits, if it was written as f32 bits)."""

    value: float
    single: int | None = None


@dataclass(frozen=True, slots=True)
class Sym:
    """The address of a variable, plus a constant."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    base: Reg | Sym | Int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vec:
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """A negated predicate operand."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: the result is discarded."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes or half-words of a register (``r.b2``, ``r.h10``), or all of it, negated or not.

    Only in video instructions.
    """

    register: Reg
    selector: str = ""
    negated: bool = False


Operand = Reg | Special | Int | Float | Sym | Mem | Vec | Pair | Not | Sink | Part


@dataclass(slots=True)
class Instr:
    """One instruction, or a label (op == ("label",), its name in `target`)."""

    op: tuple[str, ...]
    args: tuple[Operand, ...] = ()
    pred: Reg | None = None
    negated: bool = False
    target: str = ""  # label, branch target, callee
    targets: tuple[str, ...] = ()  # of brx.idx
    text: str = ""


@dataclass(frozen=True)
class Variable:
    """A variable of module or function scope. `size` (bytes) 0: an extern array of unknown size."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes = b""
    extern: bool = False
    pointers: tuple[tuple[int, str, int], ...] = ()  # offset in it, symbol, addend
    element: int = 1  # bytes
    managed: bool = False  # the host accesses it too


@dataclass(frozen=True)
class Param:
    name: str
    offset: int
    bytes: int
    register: str = ""  # its type, if a device function receives it in a register


@dataclass
class Body:
    """A parsed body: flat instructions, registers with their types, variables."""

    instrs: list[Instr] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    vectors: dict[str, tuple[Reg, ...]] = field(default_factory=dict)  # vectors of registers
    elements: dict[str, int] = field(default_factory=dict)  # bytes, in the module's arrays


@dataclass
class Function:
    name: str
    entry: bool
    params: tuple[Param, ...]
    returns: tuple[Param, ...]
    header: str
    # returns the body as it is written; None: only declared
    read: Callable[[], str] | None = field(compare=False)
    max_threads: int = 1024
    min_blocks: int = 1  # minimum number on a multiprocessor

    @property
    def defined(self) -> bool:
        return self.read is not None

    @property
    def body(self) -> str:
        """The body as it is written; empty if it is only declared."""
        return self.read() if self.read else ""

    @functools.cached_property
    def body_text(self) -> str | None:
        """The body without comments and pragmas; None: only declared."""
        return strip(self.read()) if self.read else None

    @property
    def text(self) -> str:
        """Header and body."""
        return f"{self.header}{{{self.body_text}}}" if self.read else f"{self.header};"

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.bytes for p in self.params), default=0)


_MOVED = re.compile(r"\bmov\.[bu]64\s+[^,;]+,\s*([A-Za-z_$%][\w$]*)\s*;")


@dataclass
class Module:
    version: str
    target: int
    variables: dict[str, Variable]
    functions: dict[str, Function]
    declarations: str  # all text outside functions
    known_address_taken: list[str] | None = None  # held_by_kernels, if it was found before

    @functools.cached_property
    def address_taken_in_kernels(self) -> list[str]:
        """The functions whose address some kernel takes; another kernel may call them."""
        if self.known_address_taken is not None:
            return self.known_address_taken
        names = {f.name for f in self.functions.values() if f.defined and not f.entry}
        if not names:
            return []
        kernels = [
            f.body_text or ""
            for f in self.functions.values()
            if f.entry and any(name in body for body in [f.body] for name in names)
        ]
        return sorted(names & {name for text in kernels for name in _MOVED.findall(text)})


def symbols_of(operand: Operand) -> list[str]:
    """The variables and functions that an operand names."""
    match operand:
        case Sym(name, _):
            return [name]
        case Mem(base, _):
            return symbols_of(base)
        case Vec(items):
            return [name for item in items for name in symbols_of(item)]
    return []


def registers_of(operand: Operand) -> list[str]:
    """The registers that an operand names."""
    match operand:
        case Reg(name):
            return [name]
        case Mem(base, _):
            return registers_of(base)
        case Vec(items):
            return [name for item in items for name in registers_of(item)]
        case Pair(first, second):
            return registers_of(first) + registers_of(second)
        case Not(inner) | Part(inner):
            return registers_of(inner)
    return []

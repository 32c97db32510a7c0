"""The matrix operations of a warp as cuts: mma, wmma, ldmatrix, stmatrix and movmatrix.

matrix.c computes them. This module reads their forms: shapes, types, and the number of registers of
each fragment that a thread holds, as the PTX ISA defines them for sm_75 to sm_90 (9.7.14). A cut
has one operation, or several that follow one another (matrix_runs.py). It has the registers of all
threads in its slots, as 32-bit words, and leaves its results there. kernel.h describes its steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankfold.proxy.ptx.model import Float, Instr, Int, Mem, Operand, Sym, Vec

from .emit import Value, const
from .ops import Unsupported

if TYPE_CHECKING:
    from .memory import MemoryContext

_KINDS = {"mma": 0, "tile": 1, "rows": 2, "turn": 3}  # enum soft_step

_ELEMENTS = {
    name: number
    for number, name in enumerate("f16 bf16 tf32 f32 f64 e4m3 e5m2 s8 u8 s4 u4 b1 s32".split())
}
_BITS = {
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
    "tf32": 32,
    "f32": 32,
    "s32": 32,
    "f64": 64,
}
_SPACES = {"global": 1, "shared": 2, "shared_cta": 2}
_ROUNDINGS = {"rn": 0, "rz": 1, "rm": 2, "rp": 3}
_SATURATES, _AND, _COLUMN_A, _COLUMN_B = 1, 2, 4, 8

# The shapes of mma, by the element type of A.
_BYTES, _NIBBLES = ("m8n8k16", "m16n8k16", "m16n8k32"), ("m8n8k32", "m16n8k32", "m16n8k64")
_MMA = {
    "f16": ("m8n8k4", "m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    "e4m3": ("m16n8k16", "m16n8k32"),
    "e5m2": ("m16n8k16", "m16n8k32"),
    "s8": _BYTES,
    "u8": _BYTES,
    "s4": _NIBBLES,
    "u4": _NIBBLES,
    "b1": ("m8n8k128", "m16n8k128", "m16n8k256"),
}
_OBLONG = ("m16n16k16", "m32n8k16", "m8n32k16")
_WMMA = {
    "f16": _OBLONG,
    "bf16": _OBLONG,
    "s8": _OBLONG,
    "u8": _OBLONG,
    "tf32": ("m16n16k8",),
    "f64": ("m8n8k4",),
    "s4": ("m8n8k32",),
    "u4": ("m8n8k32",),
    "b1": ("m8n8k128",),
}
_SUMS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "f64": ("f64",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
    "s8": ("s32",),
    "u8": ("s32",),
    "s4": ("s32",),
    "u4": ("s32",),
    "b1": ("s32",),
}
# mma may use one of them for A and another for B
_ALIKE = ({"e4m3", "e5m2"}, {"s8", "u8"}, {"s4", "u4"})


@dataclass(frozen=True)
class Word:
    """32 bits of an operand; of a 64-bit one (also an address) the low or the `high` half."""

    of: Operand
    high: bool = False
    wide: bool = False


Fragment = tuple[Word, ...]
Described = tuple[str, int, list[Fragment], Fragment]  # kind, variant, operands, result


@dataclass(slots=True)
class Run(Instr):
    """Several operations as one instruction. `args`: the vector of all registers that they write,
    and the operands that they read."""

    steps: tuple[Instr, ...] = ()


@dataclass(frozen=True)
class Tiles:
    """A cut of operations. `given`: the words that the segment before it writes, and `made`:
    those that the segment after it reads, by slot. `steps`: struct soft_cut's, of `count`
    operations."""

    given: dict[int, Word]
    made: dict[int, Word]
    steps: tuple[int, ...]
    count: int


def tiles(instr: Instr) -> Tiles:
    """Describes a cut. Raises as `describe` does."""
    slots: dict[object, int] = {}
    given: dict[int, Word] = {}
    made: dict[int, Word] = {}
    steps: list[int] = []
    operations = instr.steps if isinstance(instr, Run) else (instr,)
    for each in operations:
        kind, code, operands, result = describe(each)
        fragments = [*operands, *[()] * (3 - len(operands)), result]
        places = [[slots.setdefault(_key(w), 4 * len(slots)) for w in f] for f in fragments]
        for words, where in zip(fragments[:3], places, strict=False):
            given.update((s, w) for w, s in zip(words, where, strict=True) if s not in made)
        made.update(zip(places[3], result, strict=True))
        steps += [_KINDS[kind], code, *map(len, fragments), *itertools.chain(*places)]
    return Tiles(given, made, tuple(steps), len(operations))


def _key(word: Word) -> object:
    """Identifies a word. Zeros of both signs are equal as numbers."""
    return (word, repr(word.of)) if isinstance(word.of, Float) else word


def frame_words(instr: Instr) -> set[object]:
    """Returns keys of the words that a thread keeps for a cut; none for a form that is refused."""
    found: set[object] = set()
    try:
        for each in instr.steps if isinstance(instr, Run) else (instr,):
            _, _, operands, result = describe(each)
            found.update(_key(word) for fragment in (*operands, result) for word in fragment)
    except (Unsupported, KeyError, IndexError, ValueError):
        return set()
    return found


def describe(instr: Instr) -> Described:
    """Describes an operation. Raises Unsupported, KeyError or IndexError for an unknown form."""
    name, words = instr.op[0], list(instr.op[1:])
    _take(words, "sync")
    _take(words, "aligned")
    if name == "mma":
        return _mma(words, instr.args)
    if name == "wmma":
        part = words.pop(0)
        if part in ("load", "store"):
            return _tile(part == "store", words, instr.args)
        _take([part], "mma")
        return _wmma(words, instr.args)
    if name == "movmatrix":
        if words != ["m8n8", "trans", "b16"]:
            raise Unsupported
        return "turn", 0, [(Word(instr.args[1]),)], (Word(instr.args[0]),)
    return _rows(name == "stmatrix", words, instr.args)


def _take(words: list[str], *choice: str) -> str:
    """Removes and returns the only one of `choice` that is among the words."""
    (found,) = [word for word in words if word in choice] or [""]
    if not found:
        raise Unsupported
    words.remove(found)
    return found


# ---- shapes and registers ------------------------------------------------------------------------


def _sizes(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def _packed(shape: str) -> int:
    m, n, k = _sizes(shape)
    return m // 8 | n // 8 << 3 | (k.bit_length() - 1) << 6


def _vector(operand: Operand, count: int, wide: bool = False) -> Fragment:
    """Returns the words of a vector of `count` registers."""
    items = operand.items if isinstance(operand, Vec) else (operand,)
    if len(items) != count:
        raise Unsupported
    halves = (False, True) if wide else (False,)
    return tuple(Word(item, high, wide) for item in items for high in halves)


def _registers(element: str, rows: int, columns: int) -> int:
    """Returns the number of a thread's registers for its share of a matrix."""
    return rows * columns * _BITS[element] // 32 // (64 if element == "f64" else 32)


def _wmma_registers(element: str, rows: int, columns: int) -> int:
    """The same for wmma, whose fragments of halves have the size that sm_70 needs: some hold
    elements twice."""
    return 8 if element == "f16" else _registers(element, rows, columns)


# ---- products ------------------------------------------------------------------------------------


def _types(words: list[str]) -> list[str]:
    return [word for word in words if word in _ELEMENTS]


def _mma(words: list[str], args: tuple[Operand, ...]) -> Described:
    d, a, b, c = _types(words)
    shape = _take(words, *_MMA[a])
    layouts = [word for word in words if word in ("row", "col")]
    others = {word for word in words if word not in _ELEMENTS} - {"row", "col"}
    quads = shape == "m8n8k4" and a == "f16"
    if len(layouts) != 2 or not (a == b or any({a, b} <= alike for alike in _ALIKE)):
        raise Unsupported
    if quads:
        if (c, d) == ("f32", "f16"):
            raise Unsupported
    elif layouts != ["row", "col"] or c != d:
        raise Unsupported
    m, n, k = _sizes(shape)
    count_a = 2 if quads else _registers(a, m, k)
    count_b = 2 if quads else _registers(b, n, k)
    counts = {"f16": 4, "f32": 8} if quads else {each: _registers(each, m, n) for each in (c, d)}
    flags = _flags(a, others)
    if quads:
        flags |= _COLUMN_A * (layouts[0] == "col") | _COLUMN_B * (layouts[1] == "col")
    return _product(shape, (d, a, b, c), flags, args, (counts[d], count_a, count_b, counts[c]))


def _wmma(words: list[str], args: tuple[Operand, ...]) -> Described:
    """Describes wmma.mma. Both layouts state how the fragments were loaded, which does not matter
    here."""
    types = _types(words)
    if len(types) == 2:
        types = [types[0], "f16", "f16", types[1]]
    elif types[1] == "f16":
        raise Unsupported
    d, a, b, c = types
    shape = _take(words, *_WMMA[a])
    others = {word for word in words if word not in _ELEMENTS}
    if a != b or (a in ("s4", "u4", "b1") and "row" not in others) or not others & {"row", "col"}:
        raise Unsupported
    m, n, k = _sizes(shape)
    counts = (
        _registers(d, m, n),
        _wmma_registers(a, m, k),
        _wmma_registers(b, n, k),
        _registers(c, m, n),
    )
    return _product(shape, (d, a, b, c), _flags(a, others - {"row", "col"}), args, counts)


def _flags(element: str, words: set[str]) -> int:
    """Returns the flags for the modifiers other than shape, layouts and types."""
    if element == "f64":
        rounding = words & set(_ROUNDINGS)
        if len(words) > 1 or words != rounding:
            raise Unsupported
        return _ROUNDINGS[rounding.pop()] << 4 if rounding else 0
    if element == "b1":
        if words not in ({"xor", "popc"}, {"and", "popc"}):
            raise Unsupported
        return _AND * ("and" in words)
    if words - ({"satfinite"} if element in ("s8", "u8", "s4", "u4") else set()):
        raise Unsupported
    return _SATURATES * ("satfinite" in words)


def _product(
    shape: str,
    types: tuple[str, str, str, str],
    flags: int,
    args: tuple[Operand, ...],
    counts: tuple[int, int, int, int],
) -> Described:
    """Describes a product; types, operands and registers are those of d, a, b, c."""
    d, a, b, c = types
    if {c, d} - set(_SUMS[a]) or len(args) != 4:
        raise Unsupported
    code = _packed(shape) | flags << 26
    for place, element in ((10, a), (14, b), (18, c), (22, d)):
        code |= _ELEMENTS[element] << place
    held = [_vector(*each, a == "f64") for each in zip(args, counts, strict=True)]
    return "mma", code, held[1:], held[0]


# ---- memory --------------------------------------------------------------------------------------


def _address(operand: Operand, space: int) -> Fragment:
    if not isinstance(operand, Mem) or (isinstance(operand.base, Sym) and not space):
        raise Unsupported
    return Word(operand, False, True), Word(operand, True, True)


def _space(words: list[str]) -> int:
    """Removes the state space from the modifiers and returns it; 0: generic."""
    spaces = [word for word in words if word in _SPACES]
    if len(spaces) > 1:
        raise Unsupported
    for word in spaces:
        words.remove(word)
    return _SPACES[spaces[0]] if spaces else 0


def _tile(stores: bool, words: list[str], args: tuple[Operand, ...]) -> Described:
    space, part = _space(words), _take(words, *("d" if stores else "abc"))
    columns = _take(words, "row", "col") == "col"
    element = _take(words, *_ELEMENTS)
    (shape,) = words
    m, n, k = _sizes(shape)
    rows, across = {"a": (m, k), "b": (n, k)}.get(part, (m, n))
    if part in ("a", "b"):
        if shape not in _WMMA[element]:
            raise Unsupported
        if element in ("s4", "u4", "b1") and columns != (part == "b"):
            raise Unsupported
        count = _wmma_registers(element, rows, across)
    else:
        # ptxas accepts sums of any type, even if no product of the shape has them
        shapes = _WMMA["f64"] if element == "f64" else {each for a in _WMMA for each in _WMMA[a]}
        if shape not in shapes or element not in ("f16", "f32", "s32", "f64"):
            raise Unsupported
        count = _registers(element, rows, across)
    pointer, held = (args[0], args[1]) if stores else (args[1], args[0])
    default = {"a": m if columns else k, "b": k if columns else n}.get(part, m if columns else n)
    stride = args[2] if len(args) > 2 else Int(default)
    fragment = _vector(held, count, element == "f64")
    number = {"a": 0, "b": 1}.get(part, 2)
    code = _packed(shape) | _ELEMENTS[element] << 10 | number << 14 | columns << 16
    code |= stores << 17 | space << 18 | len(fragment) << 20
    memory = [_address(pointer, space), (Word(stride),)]
    return ("tile", code, [*memory, fragment], ()) if stores else ("tile", code, memory, fragment)


def _rows(stores: bool, words: list[str], args: tuple[Operand, ...]) -> Described:
    space = _space(words)
    shape, number, *trans, kind = words
    if shape != "m8n8" or kind != "b16" or trans not in ([], ["trans"]) or space == 1:
        raise Unsupported
    count = {"x1": 1, "x2": 2, "x4": 4}[number]
    pointer, held = (args[0], args[1]) if stores else (args[1], args[0])
    fragment, address = _vector(held, count), _address(pointer, space)
    code = count | bool(trans) << 3 | stores << 4 | space << 5
    if stores:
        return "rows", code, [address, fragment], ()
    return "rows", code, [address], fragment


# ---- the words that a segment writes and reads ---------------------------------------------------


def read(c: MemoryContext, word: Word) -> Value:
    """Reads a word of an operand, as 32 bits."""
    if not word.wide:
        return c.read(word.of, "b32")
    whole = c.address_of(word.of) if isinstance(word.of, Mem) else c.read(word.of, "b64")
    if word.high:
        whole = c.e.bin("lshr", whole, const("i64", 32))
    return c.e.resize(whole, "i32")


def write(c: MemoryContext, results: Iterable[Word], values: Iterable[Value]) -> None:
    """Writes the result's registers from its words."""
    low: Value | None = None
    for word, value in zip(results, values, strict=True):
        if not word.wide:
            c.write(word.of, value)
        elif low is None:
            low = c.e.resize(value, "i64")
        else:
            high = c.e.bin("shl", c.e.resize(value, "i64"), const("i64", 32))
            c.write(word.of, c.e.bin("or", high, low))
            low = None

"""Reads one instruction and its operands, with the names of its scope."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

from . import constants
from .errors import INVALID_PTX, ModuleError
from .model import (
    TYPE_BYTES,
    Body,
    Float,
    Instr,
    Int,
    Mem,
    Not,
    Operand,
    Pair,
    Part,
    Reg,
    Sink,
    Special,
    Sym,
    Vec,
)


def split(text: str) -> list[str]:
    """Split at commas that are not in brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char in "[{(":
            depth += 1
        elif char in ")}]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return parts


class Scope:
    """Names of one brace scope; names in an inner scope become unique by its number."""

    def __init__(self, number: int, outer: Scope | None, body: Body):
        self.number, self.outer, self.body = number, outer, body
        self.names: dict[str, str] = {}

    def declare(self, name: str) -> str:
        self.names[name] = f"{name}#{self.number}" if self.outer else name
        return self.names[name]

    def find(self, name: str) -> str | None:
        scope: Scope | None = self
        while scope:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None


_INSTR = re.compile(r"(?:@\s*(!?)\s*([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_TYPE = re.compile(r"[bsuf]\d+(x\d)?|pred|bf16(x2)?|tf32|e\dm\d(x\d)?")
_VIDEO = re.compile(r"v(?!ote)\w+")


_COMPARISONS = frozenset("eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan".split())
_COMBINED = (_COMPARISONS, frozenset(("and", "or", "xor")))
_TILES = (frozenset(("m8n8",)), frozenset(("x1", "x2", "x4")), frozenset(("trans",)))
# The modifiers that come first in the PTX ISA, where their order has a meaning for us.
_FIRST = {
    **dict.fromkeys(("set", "setp"), _COMBINED),
    **dict.fromkeys(("vset", "vset2", "vset4"), (_COMPARISONS,)),
    **dict.fromkeys(("ld", "st"), (frozenset(("param", "param_entry", "param_func")),)),
    **dict.fromkeys(("ldmatrix", "stmatrix", "movmatrix"), _TILES),
}


def _words(op: str) -> tuple[str, ...]:
    """The words of an opcode in the order of the PTX ISA: types last, in video instructions first.

    ptxas accepts modifiers in any order, and CUDA's own headers write min.s32.relu.
    """
    name, *words = op.replace("::", "_").split(".")
    first, types_last = _FIRST.get(name, ()), not _VIDEO.fullmatch(name)

    def place(word: str) -> tuple[bool, int]:
        rank = next((n for n, group in enumerate(first) if word in group), len(first))
        return bool(_TYPE.fullmatch(word)) == types_last, rank

    words.sort(key=place)
    return (name, *words)


def parse_instr(text: str, scope: Scope, function: str) -> Instr:
    match = _INSTR.match(text)
    if not match:
        raise ModuleError(INVALID_PTX, f"{function}: cannot read {text!r}", text)
    negated, pred, op, rest = match.groups()
    instr = Instr(_words(op), text=" ".join(text.split()))
    if pred:
        instr.pred, instr.negated = Reg(scope.find(pred) or pred), bool(negated)
    if instr.op[0] == "call":
        _call(instr, rest, scope)
    elif instr.op[0] == "bra":
        instr.target = scope.find(rest.strip()) or rest.strip()
    elif instr.op[0] == "brx":
        index, table = rest.split(",")
        instr.args = (parse_operand(index, scope),)
        instr.target = scope.find(table.strip()) or table.strip()
    else:
        try:
            instr.args = tuple(parse_operand(p, scope) for p in split(rest)) if rest.strip() else ()
        except ValueError:
            instr.args = ()  # an operand form that no known instruction has
    if instr.op[0] in ("ld", "ldu", "st"):  # ld a, array[i]
        at = instr.op[0] != "st"
        instr.args = tuple(
            Mem(arg) if i == at and isinstance(arg, Reg | Sym) else arg
            for i, arg in enumerate(instr.args)
        )
    return instr


def _call(instr: Instr, rest: str, scope: Scope | None) -> None:
    """Read a call's operands: Vec of returned variables, Vec of parameters.

    A third one is the address of an indirect call.
    """
    parts = [part.strip() for part in split(rest)]
    returned: tuple[Operand, ...] = ()
    if parts and parts[0].startswith("("):
        returned = _arguments(parts.pop(0), scope)
    instr.target = parts.pop(0) if parts else ""
    params: tuple[Operand, ...] = ()
    if parts and parts[0].startswith("("):
        params = _arguments(parts.pop(0), scope)
    instr.args = (Vec(returned), Vec(params))
    callee = scope.find(instr.target) if scope else None
    if scope and callee in scope.body.registers:
        instr.args += (Reg(callee),)


def _arguments(text: str, scope: Scope | None) -> tuple[Operand, ...]:
    """The arguments or results of a call. A vector of registers is its elements."""
    parts = filter(None, (part.strip() for part in text.strip("() \n\t").split(",")))
    operands = [parse_operand(part, scope) for part in parts]
    return tuple(
        item for each in operands for item in (each.items if isinstance(each, Vec) else (each,))
    )


_FLOAT = re.compile(
    r"([+-]?)\s*(0[fF][\da-fA-F]{8}|0[dD][\da-fA-F]{16}|"
    r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)$"
)
_CONSTANT = re.compile(r"[-+~(!\s]*(?:\d|WARP_SZ\s*[^\w\s])")
_PLUS = re.compile(r"([A-Za-z_$%][\w$.#]*)\s*\+(.+)$", re.S)
_SELECTED = re.compile(r"([\w$%]+)\.([bh]\d+)")
_INDEXED = re.compile(r"([A-Za-z_$%][\w$.#]*)\s*\[(.+)\]$", re.S)


def parse_operand(text: str, scope: Scope | None) -> Operand:
    """Read an operand. Raises ValueError if it is none."""
    text = text.strip()
    first = text[:1]
    if first == "[":
        return _memory(text[1:-1].strip(), scope)
    if first == "{":
        return Vec(tuple(parse_operand(p, scope) for p in text[1:-1].split(",")))
    if number := _FLOAT.match(text):
        return _float(-1 if number[1] == "-" else 1, number[2].lower())
    if _CONSTANT.match(text):
        return Int(constants.evaluate(text))
    if first == "!":
        return Not(parse_operand(text[1:], scope))
    if first == "-":
        return replace(_part(text[1:].strip(), scope), negated=True)
    if "|" in text:
        left, right = text.split("|")
        return Pair(parse_operand(left, scope), parse_operand(right, scope))
    if text == "_":
        return Sink()
    if indexed := _INDEXED.match(text):
        return _element(indexed[1], indexed[2], scope)
    plus = _PLUS.match(text)
    name, offset = (plus[1], constants.evaluate(plus[2])) if plus else (text, 0)
    if not re.fullmatch(r"[\w$.#%]+", name):
        raise ValueError(f"no operand: {text!r}")
    declared = scope.find(name) if scope else None
    if scope and declared in scope.body.registers and not plus:
        return Reg(declared)
    if scope and declared in scope.body.vectors:
        return Vec(scope.body.vectors[declared])
    if scope and _SELECTED.fullmatch(name):
        return _part(name, scope)
    if first == "%":
        return Special(name[1:])
    return Sym(declared or name, offset)


def _part(text: str, scope: Scope | None) -> Part:
    match = _SELECTED.fullmatch(text)
    name, selector = match.groups() if match else (text, "")
    declared = scope.find(name) if scope else None
    if not scope or declared is None or declared not in scope.body.registers:
        raise ValueError(f"no register: {text!r}")
    return Part(Reg(declared), selector)


def _element(array: str, index: str, scope: Scope | None) -> Reg | Sym:
    """The address of ``array[index]``, the index a constant, or a register plus a constant.

    The instruction that computes it is inserted before the current one.
    """
    name = scope.find(array) if scope else None
    if not scope:
        if constants.evaluate(index):
            raise ValueError(f"an element of {array}")
        return Sym(array)
    body, variable = scope.body, scope.body.variables.get(name or "")
    size = variable.element if variable else body.elements.get(array, 0)
    if not size:
        raise ValueError(f"{array} is no array")
    plus = _PLUS.match(index)
    register = scope.find(plus[1] if plus else index.strip())
    if register not in body.registers:
        return Sym(name or array, size * constants.evaluate(index))
    offset = size * constants.evaluate(plus[2]) if plus else 0
    wide = TYPE_BYTES[body.registers[register]] == 8
    op = ("mad", "lo", "u64") if wide else ("mad", "wide", "u32")
    address = Reg(f"%element#{len(body.instrs)}.{len(body.registers)}")
    body.registers[address.name] = "u64"
    operands = (address, Reg(register), Int(size), Sym(name or array, offset))
    body.instrs.append(Instr(op, operands, text=f"{'.'.join(op)} {array}[{index}]"))
    return address


def _float(sign: int, digits: str) -> Float:
    if digits.startswith("0f"):
        bits = int(digits[2:], 16) ^ (0x80000000 if sign < 0 else 0)
        return Float(struct.unpack("<f", struct.pack("<I", bits))[0], bits)
    if digits.startswith("0d"):
        return Float(sign * struct.unpack("<d", struct.pack("<Q", int(digits[2:], 16)))[0])
    return Float(sign * float(digits))


def _memory(text: str, scope: Scope | None) -> Mem:
    match = _PLUS.match(text)
    base, offset = (match[1], constants.evaluate(match[2])) if match else (text, 0)
    operand = parse_operand(base, scope)
    if isinstance(operand, Special):
        raise ValueError(f"unknown register %{operand.name}")
    if not isinstance(operand, Reg | Sym | Int):
        raise ValueError(f"no address: {text!r}")
    return Mem(operand, offset)

"""Reads a function's body into one flat list of instructions, when a kernel is compiled.

Names inside nested scopes are made unique here.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from .errors import INVALID_PTX, ModuleError
from .model import TYPE_BYTES, Body, Function, Instr, Mem, Param, Reg, Sym
from .module import spread, variables, vector_elements
from .operands import Scope, parse_instr

_STATEMENT = re.compile(
    r"\s*(?:(?P<open>\{)|(?P<close>\})|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)|"
    r"(?P<text>[^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);)",
    re.S,
)


def parse_body(function: Function, elements: dict[str, int] | None = None) -> Body:
    """The instructions of a function, `elements` as in Body. Raises ModuleError."""
    body = Body(elements=elements or {})
    outermost = Scope(0, None, body)
    scope: Scope | None = outermost
    for formals in (function.returns, function.params):
        registers = [p for p in formals if p.register]
        for name, members in itertools.groupby(registers, lambda p: p.name.partition(".")[0]):
            first, *others = members
            if first.name == name:
                body.registers[outermost.declare(name)] = first.register
            else:
                _vector(name, 1 + len(others), first.register, outermost, body)
    body.instrs = [_parameter("ld", p) for p in function.params if p.register]
    text, offset, scopes = function.body_text or "", 0, 0
    tables: dict[str, tuple[str, ...]] = {}
    pending: str | None = None
    while True:
        match = _STATEMENT.match(text, offset)
        if not match:
            if text[offset:].strip():
                about = text[offset : offset + 60]
                raise ModuleError(INVALID_PTX, f"{function.name}: cannot read {about!r}", about)
            break
        offset = match.end()
        assert scope is not None
        if match["open"]:
            scopes += 1
            scope = Scope(scopes, scope, body)
            _declare_labels(text, offset, scope)
        elif match["close"]:
            scope = scope.outer
            if scope is None:
                raise ModuleError(INVALID_PTX, f"{function.name}: a brace too many")
        elif match["label"]:
            pending = scope.find(match["label"]) or match["label"]
            body.instrs.append(Instr(("label",), target=pending))
        else:
            _statement(match["text"].strip(), scope, body, tables, pending, function.name)
    for instr in body.instrs:
        if instr.op[0] == "brx":
            instr.targets = tables.get(instr.target, ())
    if results := [_parameter("st", p) for p in function.returns if p.register]:
        ends = [*body.instrs, Instr(("ret",))]
        body.instrs = [i for end in ends for i in (*(results if end.op[0] == "ret" else ()), end)]
    return body


def _parameter(name: str, param: Param) -> Instr:
    """The load or store between a device function's parameter and the register declared for it."""
    place, register = Mem(Sym(param.name)), Reg(param.name)
    operands = (register, place) if name == "ld" else (place, register)
    op = (name, "param", param.register)
    return Instr(op, operands, text=f"{'.'.join(op)} {param.name}")


def _declare_labels(text: str, offset: int, scope: Scope) -> None:
    """Declare the labels of a nested scope, which may be used before they appear."""
    depth = 0
    for match in re.compile(r"[{}]|(?<![\w$.%])([A-Za-z_$][\w$]*)\s*:(?!:)").finditer(text, offset):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth < 0:
                return
        elif depth == 0:
            scope.declare(match.group(1))


def _statement(
    text: str,
    scope: Scope,
    body: Body,
    tables: dict[str, tuple[str, ...]],
    label: str | None,
    name: str,
) -> None:
    if not text:
        return
    if text.startswith(".reg"):
        _registers(spread(text), scope, body)
    elif text.startswith(".branchtargets"):
        targets = (t.strip() for t in text[len(".branchtargets") :].split(","))
        tables[label or ""] = tuple(scope.find(t) or t for t in targets)
    elif text.startswith(".callprototype"):
        pass
    elif text.startswith("."):
        for variable in variables(spread(text)):
            unique = scope.declare(variable.name)
            body.variables[unique] = replace(variable, name=unique, initial=b"", pointers=())
    else:
        body.instrs.append(parse_instr(text, scope, name))


def _registers(text: str, scope: Scope, body: Body) -> None:
    match = re.match(r"\.reg\s+(?:\.(v[24])\s+)?\.(\w+)\s+(.*)$", text, re.S)
    if not match or match[2] not in TYPE_BYTES:
        raise ModuleError(INVALID_PTX, f"cannot read {text!r}", text)
    for part in match[3].split(","):
        family = re.match(r"\s*([\w$%]+)\s*<\s*(\d+)\s*>\s*$", part)
        names = [f"{family[1]}{i}" for i in range(int(family[2]))] if family else [part.strip()]
        for each in names:
            if match[1]:
                _vector(each, int(match[1][1]), match[2], scope, body)
            else:
                body.registers[scope.declare(each)] = match[2]


def _vector(name: str, count: int, kind: str, scope: Scope, body: Body) -> None:
    """Declare a vector of registers: v, its elements v.x …, and their other names v.r …"""
    parts = [scope.declare(each) for each in vector_elements(name, count)]
    scope.names |= {f"{name}.{e}": p for e, p in zip("rgba", parts, strict=False)}
    body.vectors[scope.declare(name)] = tuple(map(Reg, parts))
    body.registers |= dict.fromkeys(parts, kind)

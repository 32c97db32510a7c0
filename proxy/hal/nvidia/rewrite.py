"""Removes a module's variables from its PTX: they are in the rank's own memory instead.

The driver would place them anywhere, once for all ranks that share the context. Therefore no kernel
names a variable any more: each gets an additional parameter, the address of the rank's globals
area, in the layout that the software GPU also uses. Constants become ordinary memory. Device
functions, whose parameters their callers determine, read the address from eight bytes of shared
memory that each thread writes at the kernel's beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rankfold.proxy.ptx import layout
from rankfold.proxy.ptx.errors import INVALID_PTX, NOT_SUPPORTED, ModuleError
from rankfold.proxy.ptx.model import Module
from rankfold.proxy.ptx.outline import strip

PARAMETER, SHARED, REGISTER = "__rankfold_globals", "__rankfold_base", "%__rankfold"

_HEADER = re.compile(r"\.(entry|func)\s*(?:\([^)]*\)\s*)?([\w$%]+)\s*(\([^)]*\))?")
_MOVED = re.compile(r"^(?:\.(?:visible|extern|weak|common)\s+)*\.(?:global|const)\b")
_CONSTANT = re.compile(r"\b(ld|cvta|cvta\.to)\.const\b")


@dataclass(frozen=True)
class Rewritten:
    """The result. `entries`: kernels that take the address of the globals as a last parameter."""

    text: str
    entries: frozenset[str]


def rewrite(text: str, module: Module) -> Rewritten:
    """Returns PTX that the driver accepts. `module` is `text`, parsed. Raises ModuleError."""
    offsets = {n: o for n, o in layout.globals_layout(module).offsets.items() if n != layout.SETUP}
    if not offsets:
        return Rewritten(text, frozenset())
    _refuse_code_addresses(module)
    statements = list(_statements(strip(text)))
    names = re.compile(
        r"(?<![\w$.%])(" + "|".join(map(re.escape, offsets)) + r")(?![\w$])(?:\s*\+\s*(\d+))?"
    )
    deep = any(_kind(s) == "func" and names.search(_body(s)[1]) for s in statements)
    out, entries = [], set()
    for statement in statements:
        kind = _kind(statement)
        if kind and "{" in statement:
            header, body = _body(statement)
            if names.search(body) or (deep and kind == "entry"):
                if kind == "entry":
                    header = _with_parameter(header)
                    entries.add(_name(header))
                body = _prologue(kind, deep) + _instructions(body, names, offsets)
            statement = f"{header}{{{body}}}"
        elif not kind and _MOVED.match(statement):
            continue
        out.append(_CONSTANT.sub(r"\1.global", statement))
    if deep:
        place = next(i for i, s in enumerate(out) if _kind(s))
        out.insert(place, f".shared .align 8 .u64 {SHARED};")
    return Rewritten("\n".join(out) + "\n", frozenset(entries))


def _refuse_code_addresses(module: Module) -> None:
    for variable in module.variables.values():
        for _place, to, _addend in variable.pointers:
            if to in module.functions:
                raise ModuleError(
                    NOT_SUPPORTED,
                    f"variable {variable.name} begins as the address of function {to}, which "
                    "devices of type nvidia cannot give it",
                )


def _statements(text: str) -> Iterator[str]:
    """Yields the statements at module scope; directives are lines."""
    offset = 0
    while match := re.compile(r"\S").search(text, offset):
        offset = match.start()
        if re.match(r"\.(version|target|address_size)\b", text[offset:]):
            end = text.find("\n", offset)
            end = len(text) if end < 0 else end
        else:
            end = _end(text, offset)
        if text[offset:end].strip(" \t\n;"):
            yield text[offset:end].strip()
        offset = end


def _end(text: str, offset: int) -> int:
    """Returns the end after the semicolon or, for a function or section, after the closing
    brace."""
    depth = 0
    braced = text.startswith(".section", offset)
    for match in re.compile(r"[{};]").finditer(text, offset):
        if match.group() == "{":
            braced |= depth == 0 and bool(_HEADER.search(text, offset, match.start()))
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0 and braced:
                return match.end()
        elif depth == 0:
            return match.end()
    raise ModuleError(INVALID_PTX, f"unexpected end after {text[offset : offset + 40]!r}")


def _kind(statement: str) -> str:
    match = _HEADER.search(statement.split("{", 1)[0])
    return match[1] if match else ""


def _name(header: str) -> str:
    match = _HEADER.search(header)
    assert match
    return match[2]


def _body(statement: str) -> tuple[str, str]:
    header, brace, rest = statement.partition("{")
    return header, rest[: rest.rfind("}")] if brace else ""


def _with_parameter(header: str) -> str:
    match = _HEADER.search(header)
    assert match
    mine = f".param .u64 {PARAMETER}"
    if match[3] is None:
        return f"{header[: match.end()]}({mine}){header[match.end() :]}"
    inside = match[3][1:-1].strip()
    return (
        header[: match.start(3)]
        + f"({inside}, {mine})" * bool(inside)
        + (f"({mine})" * (not inside))
        + header[match.end(3) :]
    )


def _prologue(kind: str, deep: bool) -> str:
    lines = [f"\n.reg .b64 {REGISTER};"]
    if kind == "func":
        lines.append(f"ld.shared.u64 {REGISTER}, [{SHARED}];")
    else:
        lines.append(f"ld.param.u64 {REGISTER}, [{PARAMETER}];")
        if deep:
            lines.append(f"st.shared.u64 [{SHARED}], {REGISTER};")
    return "\n".join(lines)


def _instructions(body: str, names: re.Pattern[str], offsets: Mapping[str, int]) -> str:
    """Puts each instruction that names variables into a scope with registers for them."""
    out = []
    for piece in re.split(r"(?<=[;{}])", body):
        used: list[int] = []

        def register(match: re.Match[str], used: list[int] = used) -> str:
            used.append(offsets[match[1]] + int(match[2] or 0))
            return f"{REGISTER}_{len(used) - 1}"

        changed = names.sub(register, piece)
        if used:
            label = re.match(r"\s*(?:[\w$]+:\s*)*", changed)
            assert label
            setup = "".join(
                f" .reg .b64 {REGISTER}_{i}; add.s64 {REGISTER}_{i}, {REGISTER}, {offset};"
                for i, offset in enumerate(used)
            )
            changed = f"{label[0]}{{{setup} {changed[label.end() :]} }}"
        out.append(changed)
    return "".join(out)

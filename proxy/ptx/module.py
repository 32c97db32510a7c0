"""Reads module scope: variables, and functions whose bodies remain text until a kernel needs them.

PTX ISA, chapters 4 (syntax) and 5 (state spaces, types, variables).
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Sequence

from . import constants
from .errors import INVALID_PTX, NOT_FOUND, NOT_SUPPORTED, ModuleError, line_at, place_of
from .model import TYPE_BYTES, Float, Function, Int, Module, Param, Variable
from .operands import parse_operand, split
from .outline import MARK, outline, strip

_DIRECTIVE = re.compile(r"(?<=[\w$%)\]])\.(?=[a-z])")
_FUNC = re.compile(r"(?<![\w$.%])\.(entry|func)\b")
_IDENT = r"[A-Za-z_$%][\w$]*|[_$%]"


def spread(declaration: str) -> str:
    """Insert a space before every directive: ``.visible.entry`` and ``.param.u64`` have none.

    The initial value of a variable is unchanged.
    """
    head, equals, initial = declaration.partition("=")
    return _DIRECTIVE.sub(" .", head) + equals + initial


def parse_module(text: str) -> Module:
    """Read module scope. Raises ModuleError(INVALID_PTX), with its line."""
    return parse_outline(*outline(text))


def parse_outline(text: str, bodies: Sequence[str]) -> Module:
    """As `parse_module`, of what `outline` returns. No body is read."""
    text = strip(text)  # bodies that the outline has taken out remain as they are written
    version = re.search(r"^\s*\.version\s+(\d+\.\d+)", text)
    targets = re.search(r"\.target\s+\w+(?:\s*,\s*\w+)*", text)
    target = re.search(r"\b(?:sm|compute)_(\d+)", targets.group()) if targets else None
    if not version or not targets or not target:
        raise _located(ModuleError(INVALID_PTX, "not PTX: no .version or .target"), text, 0)
    module = Module(version.group(1), int(target.group(1)), {}, {}, "")
    if narrow := re.search(r"\.address_size\s+32\b", text):
        error = ModuleError(INVALID_PTX, "PTX with 32-bit addresses is not supported")
        raise _located(error, text, narrow.start())
    declarations: list[str] = []
    offset = targets.end()
    while True:
        offset = _skip(text, offset)
        if offset >= len(text):
            break
        try:
            offset = _top_level(text, offset, module, declarations, bodies)
        except ModuleError as error:
            raise _located(error, text, offset) from error.__cause__
        except ValueError as error:  # the statement ends too early
            bad = ModuleError(INVALID_PTX, f"cannot read {text[offset : offset + 40]!r}")
            raise _located(bad, text, offset) from error
    module.declarations = "".join(text + ";\n" for text in declarations)
    return module


def _located(error: ModuleError, text: str, offset: int) -> ModuleError:
    """Set an error's line: of its `about` in the statement that starts at `at`, or of `at`."""
    place = place_of(text, error.about, offset)
    error.line = error.line or line_at(text, offset if place is None else place)
    return error


def _skip(text: str, offset: int) -> int:
    while offset < len(text) and (text[offset].isspace() or text[offset] == ";"):
        offset += 1
    return offset


def _closing(text: str, offset: int) -> int:
    """The position of the brace that closes the one at `at`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, offset):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    raise _located(ModuleError(INVALID_PTX, "a brace is not closed"), text, offset)


def _top_level(
    text: str, offset: int, module: Module, declarations: list[str], bodies: Sequence[str]
) -> int:
    if text.startswith(".address_size", offset):
        size = re.compile(r"\.address_size\s+64\b").match(text, offset)
        if not size:
            raise ModuleError(INVALID_PTX, f"cannot read {text[offset:].splitlines()[0]!r}")
        return size.end()
    if text.startswith(".section", offset):
        return _closing(text, text.index("{", offset)) + 1
    end = re.compile(r"[;{]").search(text, offset)
    if not end:
        about = text[offset : offset + 40]
        raise ModuleError(INVALID_PTX, f"unexpected end after {about!r}", about)
    header = spread(text[offset : end.start()])
    if _FUNC.search(header):
        if end.group() == "{":
            close = _closing(text, end.start())
            body = text[end.start() + 1 : close]
            read: Callable[[], str] | None = functools.partial(str, body)
            if bodies and body.startswith(MARK):
                read = functools.partial(bodies.__getitem__, int(body.split(MARK)[1]))
            stop = close + 1
        else:
            read, stop = None, end.end()
        function = _function(header, text[offset : end.start()], read)
        old = module.functions.get(function.name)
        if _counts(header, function.name, read is None, not old.defined if old else None):
            module.functions[function.name] = function
        return stop
    stop = text.index(";", offset)
    statement = spread(text[offset:stop])
    if not statement.startswith(".alias"):
        for variable in variables(statement):
            declared = module.variables.get(variable.name)
            if _counts(
                statement, variable.name, variable.extern, declared.extern if declared else None
            ):
                module.variables[variable.name] = variable
        declarations.append(statement)
    return stop + 1


def _counts(header: str, name: str, declared: bool, known_declared: bool | None) -> bool:
    """Decide whether this replaces what is known of `name` (None: nothing).

    A linked module may declare and define a name in any order, but may define it only once, or
    weakly.
    """
    if known_declared is None or known_declared:
        return known_declared is None or not declared
    if not declared and not re.search(r"\.(?:weak|common)\b", header):
        raise ModuleError(INVALID_PTX, f"{name} is defined twice")
    return False


def _function(header: str, text: str, read: Callable[[], str] | None) -> Function:
    match = re.search(rf"\.(entry|func)\s*(\([^)]*\))?\s*({_IDENT})\s*(\([^)]*\))?", header)
    if not match:
        raise ModuleError(INVALID_PTX, f"bad function header {header.strip()[:80]!r}", text[:80])
    kind, returns, name, params = match.groups()
    limit = re.search(r"\.(?:maxntid|reqntid)\s+([\d,\s]+)", header)
    threads = 1024
    if limit:
        threads = 1
        for number in re.findall(r"\d+", limit.group(1)):
            threads *= int(number)
    blocks = re.search(r"\.minnctapersm\s+(\d+)", header)
    return Function(
        name,
        kind == "entry",
        _params(params or ""),
        _params(returns or ""),
        text,
        read,
        threads,
        int(blocks.group(1)) if blocks else 1,
    )


_PARAM = re.compile(
    rf"\.(param|reg)\s+((?:\.[\w]+(?:\s+\d+)?\s*)*?)({_IDENT})\s*(?:\[([^\]]*)\])?\s*$"
)


def _params(text: str) -> tuple[Param, ...]:
    params = []
    offset = 0
    for part in filter(str.strip, text.strip("() \n\t").split(",")):
        match = _PARAM.match(part.strip())
        if not match:
            raise ModuleError(INVALID_PTX, f"bad parameter {part.strip()!r}", part)
        space, modifiers, name, count = match.groups()
        vector = re.match(r"\.v([24])\b", modifiers)
        names = [name]
        if space == "reg" and vector:
            names = vector_elements(name, int(vector[1]))
            modifiers = modifiers[vector.end() :].strip()
        size, align = _layout(modifiers, 1 if count is None else _count(count))
        register = modifiers.split()[-1].strip(".") if space == "reg" else ""
        for each in names:
            offset = (offset + align - 1) // align * align
            params.append(Param(each, offset, size, register))
            offset += size
    return tuple(params)


def vector_elements(name: str, count: int) -> list[str]:
    """The registers of a vector of registers, which is passed as so many parameters."""
    return [f"{name}.{element}" for element in "xyzw"[:count]]


def _count(text: str) -> int:
    """The number of elements; 0 for an array without a size."""
    try:
        return constants.number(text.strip()) if text.strip() else 0
    except ValueError:
        raise ModuleError(INVALID_PTX, f"no size of an array: [{text}]", f"[{text}]") from None


def _layout(modifiers: str, count: int = 1) -> tuple[int, int]:
    """Size and alignment in bytes of a declaration."""
    words = re.findall(r"\.(\w+)(?:\s+(\d+))?", modifiers)
    kinds = [word for word, _ in words if word in TYPE_BYTES]
    if not kinds:
        problem = f"a declaration without a type: {modifiers.strip()!r}"
        raise ModuleError(INVALID_PTX, problem, modifiers)
    size = TYPE_BYTES[kinds[-1]]
    vector = next((int(word[1]) for word, _ in words if word in ("v2", "v4")), 1)
    align = size * vector
    pointer = False  # after .ptr, .align describes the memory pointed to
    for word, number in words:
        pointer |= word == "ptr"
        if word == "align" and not pointer:
            align = int(number)
    return size * vector * count, align


_VARIABLE = re.compile(r"((?:\.\w+(?:\([^)]*\))?(?:\s+\d+)?\s+)*)(.*)$", re.S)
_DECLARATOR = re.compile(rf"\s*({_IDENT})((?:\s*\[[^\]]*\])*)\s*(?:=\s*(.*))?$", re.S)


def variables(statement: str) -> list[Variable]:
    match = _VARIABLE.match(statement.strip())
    assert match
    modifiers, rest = match.groups()
    words = set(re.findall(r"\.(\w+)", modifiers))
    space = next(
        (s for s in ("global", "const", "shared", "local", "param", "tex") if s in words), ""
    )
    if not space or space == "tex":
        raise ModuleError(INVALID_PTX, f"cannot read {statement.strip()[:80]!r}")
    result = []
    for part in split(rest):
        declarator = _DECLARATOR.match(part)
        if not declarator:
            raise ModuleError(INVALID_PTX, f"cannot read {statement.strip()[:80]!r}")
        name, dimensions, initial = declarator.groups()
        count = 1
        for number in re.findall(r"\[([^\]]*)\]", dimensions):
            count *= _count(number)
        size, align = _layout(modifiers, count)
        kind = [w for w in re.findall(r"\.(\w+)", modifiers) if w in TYPE_BYTES][-1]
        data, pointers = _initial(initial, kind, name) if initial else (b"", ())
        element, _ = _layout(modifiers)
        extern, managed = "extern" in words, "managed" in words
        result.append(Variable(name, space, align, size, data, extern, pointers, element, managed))
    return result


_ADDRESS = re.compile(
    rf"(?:(0[xX][0-9A-Fa-f]+)\(|(?:generic\()?)({_IDENT})\)?\s*(?:\+\s*(\d+))?\)?$"
)


_INTEGERS = re.compile(r"\s*\{\s*(?:0|-?[1-9]\d{0,18})(?:\s*,\s*(?:0|-?[1-9]\d{0,18}))*\s*\}\s*")


def _initial(text: str, kind: str, name: str) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
    """The bytes of an initial value, and the addresses in it.

    A variable of bytes names an address byte by byte, ``0xFF(a), 0xFF00(a)`` …: its first byte
    represents all.
    """
    size = TYPE_BYTES[kind]
    values = text.replace("{", " ").replace("}", " ").split(",")
    if _INTEGERS.fullmatch(text) and kind[0] in "bsu":  # a table may have 100,000 of them
        mask = (1 << 8 * size) - 1
        return b"".join((int(v) & mask).to_bytes(size, "little") for v in values), ()
    out = bytearray()
    pointers = []
    for value in filter(None, map(str.strip, values)):
        address = _ADDRESS.match(value)
        if address and (size == 8 or (size == 1 and address[1])):
            mask = int(address[1] or "0xFF", 16)
            if mask == 0xFF:
                pointers.append((len(out), address[2], int(address[3] or 0)))
            out += bytes(size)
            continue
        operand = parse_operand(value, None)
        if isinstance(operand, Int):
            out += (operand.value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif isinstance(operand, Float) and size in (4, 8):
            if size == 4 and operand.single is not None:
                out += operand.single.to_bytes(4, "little")
            else:
                out += struct.pack("<f" if size == 4 else "<d", operand.value)
        else:
            problem = f"variable {name}: the initial value {value!r} is not supported"
            raise ModuleError(NOT_SUPPORTED, problem, value)
    return bytes(out), tuple(pointers)


def find(module: Module, name: str) -> Function:
    """The kernel of that name. Raises ModuleError(NOT_FOUND) if there is none with a body."""
    function = module.functions.get(name)
    if function is None or not function.entry or not function.defined:
        raise ModuleError(NOT_FOUND, f"the module has no kernel {name}")
    return function

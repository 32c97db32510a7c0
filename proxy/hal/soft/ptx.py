"""Parses PTX: modules into variables and functions, function bodies into instructions.

Module scope is read at once, bodies only when a kernel is compiled. Names inside nested scopes
are made unique here, so that later stages see one flat list of instructions.
PTX ISA, chapters 4 (syntax) and 5 (state spaces, types, variables).
"""

from __future__ import annotations

import functools
import re
import struct
from dataclasses import dataclass, field, replace

from . import constants
from .errors import INVALID_PTX, ModuleError

TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "u16x2": 4, "s16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip


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
    """A floating-point constant, by its bits as f64 (`single`: it was written as f32 bits)."""

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
    """``_``: the result is not wanted."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes or half-words of a register (``r.b2``, ``r.h10``), or all of it, negated or not: in
    video instructions."""

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
    pointers: tuple[tuple[int, str, int], ...] = ()  # place in it, symbol, what is added
    element: int = 1  # bytes


@dataclass(frozen=True)
class Param:
    name: str
    offset: int
    bytes: int
    register: str = ""  # its type, if a device function has it in a register


@dataclass
class Body:
    """A parsed body: flat instructions, registers with their types, variables."""

    instrs: list[Instr] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    vectors: dict[str, tuple[Reg, ...]] = field(default_factory=dict)  # of registers
    elements: dict[str, int] = field(default_factory=dict)  # bytes, of the module's arrays


@dataclass
class Function:
    name: str
    entry: bool
    params: tuple[Param, ...]
    returns: tuple[Param, ...]
    text: str  # header and body
    body_text: str | None  # None: only declared
    max_threads: int = 1024
    min_blocks: int = 1  # that a multiprocessor must hold

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.bytes for p in self.params), default=0)


@dataclass
class Module:
    version: str
    target: int
    variables: dict[str, Variable]
    functions: dict[str, Function]
    declarations: str  # all text outside of functions

    @functools.cached_property
    def held_by_kernels(self) -> list[str]:
        """The functions whose address some kernel takes, which another one may call."""
        names = {f.name for f in self.functions.values() if f.body_text and not f.entry}
        if not names:
            return []
        kernels = (f.body_text or "" for f in self.functions.values() if f.entry)
        return sorted(names & {name for text in kernels for name in _MOVED.findall(text)})


_COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|("(?:[^"\\]|\\.)*")', re.S)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*(?:\.(?:loc|file)\b|#)[^\n]*$", re.M)
_PRAGMA = re.compile(r'\.pragma\s*"[^"]*"(?:\s*,\s*"[^"]*")*\s*;')
_DIRECTIVE = re.compile(r"(?<=[\w$%)\]])\.(?=[a-z])")
_FUNC = re.compile(r"(?<![\w$.%])\.(entry|func)\b")
_IDENT = r"[A-Za-z_$%][\w$]*|[_$%]"
_MOVED = re.compile(r"\bmov\.[bu]64\s+[^,;]+,\s*([A-Za-z_$%][\w$]*)\s*;")


def strip(text: str) -> str:
    """Without comments, source positions and pragmas."""
    text = _COMMENT.sub(lambda m: m.group(1) or " ", text)
    return _PRAGMA.sub("", _LINE_DIRECTIVE.sub("", text))


def _spread(declaration: str) -> str:
    """With a space before every directive: ``.visible.entry`` and ``.param.u64`` have none. What a
    variable begins with is left alone."""
    head, equals, initial = declaration.partition("=")
    return _DIRECTIVE.sub(" .", head) + equals + initial


def parse_module(text: str) -> Module:
    """Read module scope. Raises ModuleError(INVALID_PTX)."""
    text = strip(text)
    version = re.search(r"^\s*\.version\s+(\d+\.\d+)", text)
    targets = re.search(r"\.target\s+\w+(?:\s*,\s*\w+)*", text)
    target = re.search(r"\b(?:sm|compute)_(\d+)", targets.group()) if targets else None
    if not version or not targets or not target:
        raise ModuleError(INVALID_PTX, "not PTX: no .version or .target")
    module = Module(version.group(1), int(target.group(1)), {}, {}, "")
    if re.search(r"\.address_size\s+32\b", text):
        raise ModuleError(INVALID_PTX, "PTX with 32-bit addresses is not supported")
    declarations: list[str] = []
    at = targets.end()
    while True:
        at = _skip(text, at)
        if at >= len(text):
            break
        if text.startswith(".address_size", at):
            at = text.index("64", at) + 2
            continue
        if text.startswith(".section", at):
            at = _closing(text, text.index("{", at)) + 1
            continue
        at = _top_level(text, at, module, declarations)
    module.declarations = "".join(text + ";\n" for text in declarations)
    return module


def _skip(text: str, at: int) -> int:
    while at < len(text) and (text[at].isspace() or text[at] == ";"):
        at += 1
    return at


def _closing(text: str, at: int) -> int:
    """The brace that closes the one at `at`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    raise ModuleError(INVALID_PTX, "a brace is not closed")


def _top_level(text: str, at: int, module: Module, declarations: list[str]) -> int:
    end = re.compile(r"[;{]").search(text, at)
    if not end:
        raise ModuleError(INVALID_PTX, f"unexpected end after {text[at : at + 40]!r}")
    header = _spread(text[at : end.start()])
    if _FUNC.search(header):
        if end.group() == "{":
            close = _closing(text, end.start())
            body: str | None = text[end.start() + 1 : close]
            stop = close + 1
        else:
            body, stop = None, end.end()
        function = _function(header, text[at:stop], body)
        old = module.functions.get(function.name)
        if _counts(header, function.name, body is None, old.body_text is None if old else None):
            module.functions[function.name] = function
        return stop
    stop = text.index(";", at)
    statement = _spread(text[at:stop])
    if not statement.startswith(".alias"):
        for variable in _variables(statement):
            seen = module.variables.get(variable.name)
            if _counts(statement, variable.name, variable.extern, seen.extern if seen else None):
                module.variables[variable.name] = variable
        declarations.append(statement)
    return stop + 1


def _counts(header: str, name: str, declared: bool, known_declared: bool | None) -> bool:
    """Whether this replaces what is known of `name` (None: nothing). A linked module may declare
    and define it in any order, but define it once, or weakly."""
    if known_declared is None or known_declared:
        return known_declared is None or not declared
    if not declared and not re.search(r"\.(?:weak|common)\b", header):
        raise ModuleError(INVALID_PTX, f"{name} is defined twice")
    return False


def _function(header: str, text: str, body: str | None) -> Function:
    match = re.search(rf"\.(entry|func)\s*(\([^)]*\))?\s*({_IDENT})\s*(\([^)]*\))?", header)
    if not match:
        raise ModuleError(INVALID_PTX, f"bad function header {header.strip()[:80]!r}")
    kind, returns, name, params = match.groups()
    limit = re.search(r"\.(?:maxntid|reqntid)\s+([\d,\s]+)", header)
    threads = 1024
    if limit:
        threads = 1
        for number in re.findall(r"\d+", limit.group(1)):
            threads *= int(number)
    blocks = re.search(r"\.minnctapersm\s+(\d+)", header)
    return Function(
        name, kind == "entry", _params(params or ""), _params(returns or ""), text, body, threads,
        int(blocks.group(1)) if blocks else 1,
    )  # fmt: skip


_PARAM = re.compile(
    rf"\.(param|reg)\s+((?:\.[\w]+(?:\s+\d+)?\s*)*?)({_IDENT})\s*(?:\[([^\]]*)\])?\s*$"
)


def _params(text: str) -> tuple[Param, ...]:
    params = []
    offset = 0
    for part in filter(str.strip, text.strip("() \n\t").split(",")):
        match = _PARAM.match(part.strip())
        if not match:
            raise ModuleError(INVALID_PTX, f"bad parameter {part.strip()!r}")
        space, modifiers, name, count = match.groups()
        size, align = _layout(modifiers, 1 if count is None else _count(count))
        offset = (offset + align - 1) // align * align
        register = modifiers.split()[-1].strip(".") if space == "reg" else ""
        params.append(Param(name, offset, size, register))
        offset += size
    return tuple(params)


def _count(text: str) -> int:
    """How many elements; 0 for those of an array without a size."""
    try:
        return constants.number(text.strip()) if text.strip() else 0
    except ValueError:
        raise ModuleError(INVALID_PTX, f"no size of an array: [{text}]") from None


def _layout(modifiers: str, count: int = 1) -> tuple[int, int]:
    """Size and alignment in bytes of a declaration."""
    words = re.findall(r"\.(\w+)(?:\s+(\d+))?", modifiers)
    kinds = [word for word, _ in words if word in TYPE_BYTES]
    if not kinds:
        raise ModuleError(INVALID_PTX, f"a declaration without a type: {modifiers.strip()!r}")
    size = TYPE_BYTES[kinds[-1]]
    vector = next((int(word[1]) for word, _ in words if word in ("v2", "v4")), 1)
    align = size * vector
    pointer = False  # .ptr .align N speaks of what is pointed to
    for word, number in words:
        pointer |= word == "ptr"
        if word == "align" and not pointer:
            align = int(number)
    return size * vector * count, align


_VARIABLE = re.compile(r"((?:\.\w+(?:\([^)]*\))?(?:\s+\d+)?\s+)*)(.*)$", re.S)
_DECLARATOR = re.compile(rf"\s*({_IDENT})((?:\s*\[[^\]]*\])*)\s*(?:=\s*(.*))?$", re.S)


def _variables(statement: str) -> list[Variable]:
    match = _VARIABLE.match(statement.strip())
    assert match
    modifiers, rest = match.groups()
    words = set(re.findall(r"\.(\w+)", modifiers))
    space = next(
        (s for s in ("global", "const", "shared", "local", "param", "tex") if s in words), ""
    )
    if not space or space == "tex":
        raise ModuleError(INVALID_PTX, f"cannot read {statement.strip()[:80]!r}")
    found = []
    for part in _split(rest):
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
        found.append(Variable(name, space, align, size, data, "extern" in words, pointers, element))
    return found


_ADDRESS = re.compile(
    rf"(?:(0[xX][0-9A-Fa-f]+)\(|(?:generic\()?)({_IDENT})\)?\s*(?:\+\s*(\d+))?\)?$"
)


def _initial(text: str, kind: str, name: str) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
    """The bytes, and where they are addresses. A variable of bytes names an address byte by byte,
    ``0xFF(a), 0xFF00(a)`` …: its first one stands for all."""
    values = text.replace("{", " ").replace("}", " ").split(",")
    out = bytearray()
    pointers = []
    size = TYPE_BYTES[kind]
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
            raise ModuleError(801, f"variable {name}: the initial value {value!r} is not supported")
    return bytes(out), tuple(pointers)


def _split(text: str) -> list[str]:
    """At commas that are in no bracket."""
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


# ---- bodies -------------------------------------------------------------------------------

_STATEMENT = re.compile(
    r"\s*(?:(?P<open>\{)|(?P<close>\})|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)|"
    r"(?P<text>[^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);)",
    re.S,
)


class _Scope:
    """Names of one brace scope; those that hide or repeat an outer name get a new one."""

    def __init__(self, number: int, outer: _Scope | None, body: Body):
        self.number, self.outer, self.body = number, outer, body
        self.names: dict[str, str] = {}

    def declare(self, name: str) -> str:
        self.names[name] = f"{name}#{self.number}" if self.outer else name
        return self.names[name]

    def find(self, name: str) -> str | None:
        scope: _Scope | None = self
        while scope:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None


def parse_body(function: Function, elements: dict[str, int] | None = None) -> Body:
    """The instructions of a function, `elements` as in Body. Raises ModuleError."""
    body = Body(elements=elements or {})
    outermost = _Scope(0, None, body)
    scope: _Scope | None = outermost
    for param in (*function.returns, *function.params):
        if param.register:
            body.registers[outermost.declare(param.name)] = param.register
    body.instrs = [_parameter("ld", p) for p in function.params if p.register]
    text, at, scopes = function.body_text or "", 0, 0
    tables: dict[str, tuple[str, ...]] = {}
    pending: str | None = None
    while True:
        match = _STATEMENT.match(text, at)
        if not match:
            if text[at:].strip():
                raise ModuleError(
                    INVALID_PTX, f"{function.name}: cannot read {text[at : at + 60]!r}"
                )
            break
        at = match.end()
        assert scope is not None
        if match["open"]:
            scopes += 1
            scope = _Scope(scopes, scope, body)
            _declare_labels(text, at, scope)
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
    """A parameter of a device function, to or from the register that it is declared as."""
    place, register = Mem(Sym(param.name)), Reg(param.name)
    operands = (register, place) if name == "ld" else (place, register)
    op = (name, "param", param.register)
    return Instr(op, operands, text=f"{'.'.join(op)} {param.name}")


def _declare_labels(text: str, at: int, scope: _Scope) -> None:
    """Labels of a nested scope are local to it and may be used before they stand."""
    depth = 0
    for match in re.compile(r"[{}]|(?<![\w$.%])([A-Za-z_$][\w$]*)\s*:(?!:)").finditer(text, at):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth < 0:
                return
        elif depth == 0:
            scope.declare(match.group(1))


def _statement(
    text: str, scope: _Scope, body: Body, tables: dict[str, tuple[str, ...]],
    label: str | None, name: str,
) -> None:  # fmt: skip
    if not text:
        return
    if text.startswith(".reg"):
        _registers(_spread(text), scope, body)
    elif text.startswith(".branchtargets"):
        targets = (t.strip() for t in text[len(".branchtargets") :].split(","))
        tables[label or ""] = tuple(scope.find(t) or t for t in targets)
    elif text.startswith(".callprototype"):
        pass
    elif text.startswith("."):
        for variable in _variables(_spread(text)):
            unique = scope.declare(variable.name)
            body.variables[unique] = replace(variable, name=unique, initial=b"", pointers=())
    else:
        body.instrs.append(parse_instr(text, scope, name))


def _registers(text: str, scope: _Scope, body: Body) -> None:
    match = re.match(r"\.reg\s+(?:\.(v[24])\s+)?\.(\w+)\s+(.*)$", text, re.S)
    if not match or match[2] not in TYPE_BYTES:
        raise ModuleError(INVALID_PTX, f"cannot read {text!r}")
    for part in match[3].split(","):
        family = re.match(r"\s*([\w$%]+)\s*<\s*(\d+)\s*>\s*$", part)
        names = [f"{family[1]}{i}" for i in range(int(family[2]))] if family else [part.strip()]
        for each in names:
            if match[1]:
                parts = [scope.declare(f"{each}.{e}") for e in "xyzw"[: int(match[1][1])]]
                scope.names |= {f"{each}.{e}": p for e, p in zip("rgba", parts, strict=False)}
                body.vectors[scope.declare(each)] = tuple(map(Reg, parts))
            else:
                parts = [scope.declare(each)]
            body.registers |= dict.fromkeys(parts, match[2])


_INSTR = re.compile(r"(?:@\s*(!?)\s*([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_TYPE = re.compile(r"[bsuf]\d+(x\d)?|pred|bf16(x2)?|tf32|e\dm\d(x\d)?")
_VIDEO = re.compile(r"v(?!ote)\w+")


def _words(op: str) -> tuple[str, ...]:
    """Types last, as the PTX ISA spells it: ptxas takes modifiers in any order, and CUDA's own
    headers write min.s32.relu. Packed video instructions have them in the middle."""
    name, *words = op.replace("::", "_").split(".")
    if not _VIDEO.fullmatch(name):
        words.sort(key=lambda word: bool(_TYPE.fullmatch(word)))
    return (name, *words)


def parse_instr(text: str, scope: _Scope, function: str) -> Instr:
    match = _INSTR.match(text)
    if not match:
        raise ModuleError(INVALID_PTX, f"{function}: cannot read {text!r}")
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
            instr.args = (
                tuple(parse_operand(p, scope) for p in _split(rest)) if rest.strip() else ()
            )
        except ValueError:
            instr.args = ()  # an operand of a form that no instruction we know has
    if instr.op[0] in ("ld", "ldu", "st"):  # ld a, array[i]
        at = instr.op[0] != "st"
        instr.args = tuple(
            Mem(arg) if i == at and isinstance(arg, Reg | Sym) else arg
            for i, arg in enumerate(instr.args)
        )
    return instr


def _call(instr: Instr, rest: str, scope: _Scope | None) -> None:
    """args: (Vec of returned variables, Vec of parameters), and the address of an indirect call."""
    parts = [part.strip() for part in _split(rest)]
    returned: tuple[Operand, ...] = ()
    if parts and parts[0].startswith("("):
        returned = tuple(parse_operand(p, scope) for p in _list(parts.pop(0)))
    instr.target = parts.pop(0) if parts else ""
    params: tuple[Operand, ...] = ()
    if parts and parts[0].startswith("("):
        params = tuple(parse_operand(p, scope) for p in _list(parts.pop(0)))
    instr.args = (Vec(returned), Vec(params))
    callee = scope.find(instr.target) if scope else None
    if scope and callee in scope.body.registers:
        instr.args += (Reg(callee),)


def _list(text: str) -> list[str]:
    return [part for part in (p.strip() for p in text.strip("() \n\t").split(",")) if part]


_FLOAT = re.compile(r"([+-]?)\s*(0[fF][\da-fA-F]{8}|0[dD][\da-fA-F]{16}|"
                    r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)$")  # fmt: skip
_CONSTANT = re.compile(r"[-+~(!\s]*(?:\d|WARP_SZ\s*[^\w\s])")
_PLUS = re.compile(r"([A-Za-z_$%][\w$.#]*)\s*\+(.+)$", re.S)
_SELECTED = re.compile(r"([\w$%]+)\.([bh]\d+)")
_INDEXED = re.compile(r"([A-Za-z_$%][\w$.#]*)\s*\[(.+)\]$", re.S)


def parse_operand(text: str, scope: _Scope | None) -> Operand:
    """Raises ValueError for what is no operand."""
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
    found = scope.find(name) if scope else None
    if scope and found in scope.body.registers and not plus:
        return Reg(found)
    if scope and found in scope.body.vectors:
        return Vec(scope.body.vectors[found])
    if scope and _SELECTED.fullmatch(name):
        return _part(name, scope)
    if first == "%":
        return Special(name[1:])
    return Sym(found or name, offset)


def _part(text: str, scope: _Scope | None) -> Part:
    match = _SELECTED.fullmatch(text)
    name, selector = match.groups() if match else (text, "")
    found = scope.find(name) if scope else None
    if not scope or found is None or found not in scope.body.registers:
        raise ValueError(f"no register: {text!r}")
    return Part(Reg(found), selector)


def _element(array: str, index: str, scope: _Scope | None) -> Reg | Sym:
    """The address of ``array[index]``, the index a constant, or a register plus one. What that
    takes is computed here, before the instruction."""
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


def _memory(text: str, scope: _Scope | None) -> Mem:
    match = _PLUS.match(text)
    base, offset = (match[1], constants.evaluate(match[2])) if match else (text, 0)
    operand = parse_operand(base, scope)
    if isinstance(operand, Special):
        raise ValueError(f"unknown register %{operand.name}")
    if not isinstance(operand, Reg | Sym | Int):
        raise ValueError(f"no address: {text!r}")
    return Mem(operand, offset)

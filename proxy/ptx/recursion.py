"""Device functions that can call themselves, and memory that a thread allocates as it runs.

Such a function exists once in the kernel and is branched to. Each thread has a stack in its local
memory: a call pushes the number of the return place and, before it, if the callee can lead back to
the caller, everything that the caller holds. Variables of the function are on the stack too,
because their addresses may be passed on. `alloca` takes memory from the same stack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from .model import TYPE_BYTES, Instr, Int, Mem, Operand, Reg, Sym, Variable

STACK_BYTES = 31 << 10  # per thread; with its other local memory mostly below 32 KiB
_SLACK = 64  # a check may come late by this much
_STEP = 16
STACK, TOP = "%stack", "%stack top"


class Flat(Protocol):
    """The kernel that is being built: inline.py's."""

    instrs: list[Instr]
    registers: dict[str, str]
    variables: dict[str, Variable]


def instr(op: str, *args: Operand, text: str = "") -> Instr:
    """Make an instruction: ``instr("add.u64", d, a, b)``"""
    return Instr(tuple(op.split(".")), args, text=text or op)


def rounded(size: int) -> int:
    return (size + _STEP - 1) // _STEP * _STEP


@dataclass
class Shared:
    """A function that exists once.

    `prefix` begins its own names. `frame`: offsets of its variables in its part of the stack.
    `chosen`: as in inline.py.
    """

    prefix: str
    chosen: bool
    frame: dict[str, int] = field(default_factory=dict)
    frame_bytes: int = 0
    returns: list[str] = field(default_factory=list)  # the labels to which calls return

    @property
    def entry(self) -> str:
        return self.prefix + "entry"

    @property
    def base(self) -> Reg:
        return Reg(self.prefix + "%frame")


def reachable(calls: dict[str, set[str]], name: str) -> set[str]:
    """The functions to which a call of `name` can lead, including itself if it is recursive."""
    names: set[str] = set()
    todo = list(calls.get(name, ()))
    while todo:
        callee = todo.pop()
        if callee not in names:
            names.add(callee)
            todo += calls.get(callee, ())
    return names


class Stack:
    """Appends instructions that use the stack to the kernel."""

    def __init__(self, flat: Flat):
        self.flat, self.used, self._checks = flat, False, 0

    def top(self) -> Reg:
        if not self.used:
            self.used = True
            self.flat.registers[TOP] = "u64"
            self.flat.variables[STACK] = Variable(STACK, "local", _STEP, STACK_BYTES + _SLACK)
        return Reg(TOP)

    def begin(self) -> None:
        """At the start of the kernel the stack is empty."""
        if self.used:
            self.flat.instrs.insert(0, instr("mov.u64", Reg(TOP), Sym(STACK)))

    def grow(self, size: Operand) -> None:
        """Allocate `size` bytes; ends the launch if there are not as many."""
        top, over, fits = self.top(), f"{STACK} {self._checks}", Reg(f"{STACK} fits")
        self._checks += 1
        self.flat.registers[fits.name] = "pred"
        self.flat.instrs += [
            instr("add.u64", top, top, size),
            instr("setp.le.u64", fits, top, Sym(STACK, STACK_BYTES)),
            Instr(("bra",), pred=fits, target=over),
            Instr(("trap", "stack"), text="trap"),
            Instr(("label",), target=over),
        ]

    def shrink(self, size: int) -> None:
        self.flat.instrs.append(instr("sub.u64", self.top(), self.top(), Int(size)))

    def alloca(self, call: Instr) -> None:
        """alloca.type address, bytes[, alignment]; stacksave address; stackrestore address."""
        name, top = call.op[0], self.top()
        if name == "stackrestore":
            self.flat.instrs.append(instr("mov.u64", top, call.args[0]))
            return
        if name == "alloca":
            alignment = call.args[2] if len(call.args) > 2 else Int(8)
            align = alignment.value if isinstance(alignment, Int) else 8
            self.flat.instrs += [
                instr("add.u64", top, top, Int(align - 1)),
                instr("and.b64", top, top, Int(-align)),
            ]
        self.flat.instrs.append(instr("mov.u64", call.args[0], top))
        if name == "alloca":
            self.grow(call.args[1])
            self.flat.instrs += [
                instr("add.u64", top, top, Int(_STEP - 1)),
                instr("and.b64", top, top, Int(-_STEP)),
            ]

    # ---- calls

    def enter(self, callee: Shared) -> None:
        self.flat.registers[callee.base.name] = "u64"
        self.flat.instrs += [
            Instr(("label",), target=callee.entry),
            instr("mov.u64", callee.base, self.top()),
        ]
        self.grow(Int(callee.frame_bytes))

    def leave(self, callee: Shared) -> None:
        where = Reg(callee.prefix + "%return")
        self.flat.registers[where.name] = "u32"
        self.flat.instrs += [
            Instr(("label",), target=callee.prefix + "return"),
            instr("sub.u64", self.top(), callee.base, Int(_STEP)),
            instr("ld.local.u32", where, Mem(self.top())),
            Instr(("brx", "idx"), (where,), targets=tuple(callee.returns), text="ret"),
        ]

    def jump(self, callee: Shared, back: str) -> None:
        """Branch to the function, which returns to the label after this."""
        number = Reg(f"{STACK} number")
        self.flat.registers[number.name] = "u32"
        self.flat.instrs += [
            instr("mov.u32", number, Int(len(callee.returns))),
            instr("st.local.u32", Mem(self.top()), number),
        ]
        callee.returns.append(back)
        self.grow(Int(_STEP))
        self.flat.instrs += [
            Instr(("bra",), target=callee.entry),
            Instr(("label",), target=back),
        ]

    def save(self, caller: Shared) -> None:
        """Save the registers and variables of the caller.

        They are known only when its parameters have become registers or memory: see expand().
        """
        self.flat.instrs.append(Instr(("save",), target=caller.prefix))

    def restore(self, caller: Shared) -> None:
        self.flat.instrs.append(Instr(("restore",), target=caller.prefix))

    def expand(self, in_memory: Iterable[str]) -> None:
        """Replace every save and restore by instructions."""
        instrs, memory = self.flat.instrs, sorted(in_memory)
        out: list[Instr] = []
        self.flat.instrs = out
        for each in instrs:
            if each.op[0] not in ("save", "restore"):
                out.append(each)
                continue
            values = self._live_values(each.target, memory)
            size = rounded(sum(TYPE_BYTES[kind] for _, kind in values))
            if each.op[0] == "save":
                self.grow(Int(size))
                out += self._transfer(values, size, store=True)
            else:
                out += self._transfer(values, size, store=False)
                self.shrink(size)

    def _live_values(self, prefix: str, memory: list[str]) -> list[tuple[Reg | Mem, str]]:
        """The registers and variables in memory whose names begin with `prefix`, widest first."""
        own = [(Reg(n), k) for n, k in self.flat.registers.items() if n.startswith(prefix)]
        values: list[tuple[Reg | Mem, str]] = [(r, "u32" if k == "pred" else k) for r, k in own]
        for name in memory:
            if name.startswith(prefix):
                values += pieces(Sym(name), self.flat.variables[name].size)
        return sorted(values, key=lambda item: -TYPE_BYTES[item[1]])

    def _transfer(self, values: list[tuple[Reg | Mem, str]], size: int, store: bool) -> list[Instr]:
        out: list[Instr] = []
        offset = -size
        for operand, kind in values:
            bits = f"b{8 * TYPE_BYTES[kind]}"
            slot = Mem(self.top(), offset)
            offset += TYPE_BYTES[kind]
            word = Reg(f"{STACK} {bits}")
            self.flat.registers[word.name] = bits
            if isinstance(operand, Mem):
                to, source = (slot, operand) if store else (operand, slot)
                out += [
                    instr(f"ld.local.{bits}", word, source),
                    instr(f"st.local.{bits}", to, word),
                ]
            elif self.flat.registers[operand.name] == "pred":
                out += (
                    [
                        instr("selp.b32", word, Int(1), Int(0), operand),
                        instr("st.local.b32", slot, word),
                    ]
                    if store
                    else [
                        instr("ld.local.b32", word, slot),
                        instr("setp.ne.u32", operand, word, Int(0)),
                    ]
                )
            else:
                out.append(
                    instr(f"st.local.{bits}", slot, operand)
                    if store
                    else instr(f"ld.local.{bits}", operand, slot)
                )
        return out


def pieces(where: Sym, size: int) -> list[tuple[Reg | Mem, str]]:
    """A variable as words that cover it."""
    result: list[tuple[Reg | Mem, str]] = []
    offset = 0
    while offset < size:
        width = next(w for w in (8, 4, 2, 1) if offset + w <= size)
        result.append((Mem(where, offset), f"b{8 * width}"))
        offset += width
    return result

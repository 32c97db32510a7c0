"""Services that a kernel requests from the device: printing, allocation, stopping, and hints."""

from __future__ import annotations

from rankfold.proxy.ptx.model import Instr, Special, Sym

from .emit import Value, const
from .memory import MemoryContext
from .ops import Context

ERRORS = {"stack": 714, "refused": 801}  # CUresults of our traps; a program's own trap is 719


def trap(c: Context, instr: Instr) -> None:
    """Ends the launch."""
    c.e.do(f"call void @rankfold_soft_trap(i32 {ERRORS.get(instr.op[-1], 719)})")


def vprintf(c: Context, instr: Instr) -> None:
    """vprintf d, format, arguments: generic addresses. Implemented in print.c."""
    m: MemoryContext = c  # type: ignore[assignment]
    arguments = [
        Value("ptr", "%block"),
        Value("ptr", m.pointers["local"]),
        const("i32", m.local_stride),
        c.read(Sym("__rankfold"), "u64"),
        *(c.read(a, "u64") for a in instr.args[1:3]),
    ]
    kinds = ", ".join(a.type for a in arguments)
    c.e.declared.add(f"declare i32 @rankfold_soft_print({kinds})")
    text = ", ".join(f"{a.type} {a.ref}" for a in arguments)
    c.write(instr.args[0], c.e.op("i32", f"call i32 @rankfold_soft_print({text})"))


def assertfail(c: Context, instr: Instr) -> None:
    """assertfail message, file, line, function: addresses, except the line. Implemented in
    print.c."""
    m: MemoryContext = c  # type: ignore[assignment]
    message, file, line, function = instr.args
    arguments = [
        Value("ptr", "%block"),
        Value("ptr", m.pointers["local"]),
        const("i32", m.local_stride),
        *(c.read(Special(f"tid.{dimension}"), "u32") for dimension in "xyz"),
        c.read(message, "u64"),
        c.read(file, "u64"),
        c.read(line, "u32"),
        c.read(function, "u64"),
    ]
    c.e.declared.add(f"declare void @rankfold_soft_assert({', '.join(a.type for a in arguments)})")
    text = ", ".join(f"{a.type} {a.ref}" for a in arguments)
    c.e.do(f"call void @rankfold_soft_assert({text})")


def allocation(c: Context, instr: Instr) -> None:
    """malloc d, bytes; free _, address. Implemented in heap.c."""
    m: MemoryContext = c  # type: ignore[assignment]
    setup, given = m.read(Sym("__rankfold"), "u64"), c.read(instr.args[1], "u64")
    name, result = instr.op[0], "i64" if instr.op[0] == "malloc" else "void"
    c.e.declared.add(f"declare {result} @rankfold_soft_{name}(ptr, i64, i64)")
    call = f"call {result} @rankfold_soft_{name}(ptr %block, i64 {setup.ref}, i64 {given.ref})"
    if result == "void":
        c.e.do(call)
    else:
        c.write(instr.args[0], c.e.op("i64", call))


def nothing(c: Context, instr: Instr) -> None:
    """Ignores instructions that only make a device faster, or let other threads run."""


def fence(c: Context, instr: Instr) -> None:
    c.e.do("fence seq_cst")

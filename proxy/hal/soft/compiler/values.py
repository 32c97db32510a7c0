"""The values that handlers of instructions use: registers, variables, parameters, special
registers, and the base addresses of memory.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rankfold.proxy.ptx.errors import INVALID_PTX, ModuleError
from rankfold.proxy.ptx.model import (
    TYPE_BYTES,
    Float,
    Int,
    Mem,
    Not,
    Operand,
    Reg,
    Sink,
    Special,
    Sym,
)

from . import memory
from .emit import Emitter, Value, const, float_bits, float_const, llvm_type
from .ops import Unsupported

if TYPE_CHECKING:
    from .lower import Kernel

RESERVED_SHARED = 1024
BLOCK = {
    "base": 0,
    "shared": 8,
    "local": 16,
    "frame": 24,
    "params": 32,
    "globals": 40,
    "next": 48,
    "ntid.x": 56,
    "ntid.y": 60,
    "ntid.z": 64,
    "nctaid.x": 68,
    "nctaid.y": 72,
    "nctaid.z": 76,
    "ctaid.x": 80,
    "ctaid.y": 84,
    "ctaid.z": 88,
    "stride": 92,
    "dynamic_shared": 96,
    "grid": 104,
}
POINTERS = ("base", "shared", "local", "frame", "params", "next", "grid")
_CONSTANT = {
    "nsmid": 1,
    "smid": 0,
    "gridid": 0,
    "nwarpid": 32,
    # each block is its own cluster
    "cluster_ctarank": 0,
    "cluster_nctarank": 1,
    "is_explicit_cluster": 0,
    **{f"cluster_ctaid.{d}": 0 for d in "xyz"},
    **{f"cluster_nctaid.{d}": 1 for d in "xyz"},
    # cooperative groups' reserved shared memory is at its beginning
    "reserved_smem_offset_begin": 0,
    "reserved_smem_offset_0": 0,
    "reserved_smem_offset_1": 32,
    "reserved_smem_offset_end": RESERVED_SHARED,
    "reserved_smem_offset_cap": RESERVED_SHARED,
}
_CLOCKS = ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi")


class Values:
    """Reads and writes values for handlers; Segment adds the function around them."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.e = Emitter()
        self.generic = kernel.generic
        self.local_stride = kernel.local_stride
        self.param_bytes = kernel.function.param_bytes
        self.pointers = {name: f"%{name}" for name in ("base", "shared", "params", "grid")}
        self.pointers["local"] = "%mylocal"
        self.current = "loop"
        self.places: dict[str, str] = {}
        self.params: dict[tuple[int, str], Value] = {}
        self.uses_coordinates = False
        self.parts: set[str] = set()  # stack slots of the parts of addresses

    def kind_of(self, operand: Operand) -> str:
        assert isinstance(operand, Reg)
        return self.kernel.registers[operand.name]

    def read(self, operand: Operand, kind: str) -> Value:
        type_ = llvm_type(kind)
        match operand:
            case Reg(name):
                have = llvm_type(self.kernel.registers[name])
                return self.e.coerce(self.e.op(have, f"load {have}, ptr {self.place(name)}"), type_)
            case Int(value):
                return const(type_, value)
            case Float(value, single):
                return _float_operand(value, single, type_)
            case Special(name):
                return self.e.coerce(self.special(name), type_)
            case Sym(name, offset):
                return self.e.coerce(self.address(name, offset), type_)
            case Not(inner):
                return self.e.not_(self.read(inner, kind))
        raise Unsupported

    def write(self, operand: Operand, value: Value, signed: bool = False) -> None:
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Reg):
            raise Unsupported
        type_ = llvm_type(self.kernel.registers[operand.name])
        value = self.e.coerce(value, type_, signed)
        self.e.do(f"store {type_} {value.ref}, ptr {self.place(operand.name)}")

    def place(self, name: str) -> str:
        """Returns the stack slot of a register."""
        if name not in self.places:
            if name not in self.kernel.registers:
                raise ModuleError(
                    INVALID_PTX, f"kernel {self.kernel.function.name}: no register {name}"
                )
            self.places[name] = f"%r{len(self.places)}"
        return self.places[name]

    def address(self, name: str, offset: int) -> Value:
        if name == "WARP_SZ":
            return const("i64", 32 + offset)
        if name not in self.kernel.addresses:
            raise Unsupported
        space, at = self.kernel.addresses[name]
        if space != "global":
            return const("i64", at + offset)
        return self.e.bin("add", Value("i64", "%globals"), const("i64", at + offset))

    def address_of(self, where: Mem) -> Value:
        return memory.address_of(self, where)

    def variable_space(self, name: str) -> str:
        return self.kernel.addresses[name][0] if name in self.kernel.addresses else ""

    def param(self, offset: int, kind: str) -> Value:
        """Returns a parameter, read before the loop."""
        key = (offset, llvm_type(kind))
        if key not in self.params:
            at = self.e.in_head("ptr", f"getelementptr i8, ptr %params, i64 {offset}")
            text = f"load {key[1]}, ptr {at.ref}, align {TYPE_BYTES[kind]}, !invariant.load !9"
            self.params[key] = self.e.in_head(key[1], text)
        return self.params[key]

    def branch_to(self, label: str) -> None:
        self.e.do(f"br label %{label}")

    def start(self, label: str) -> None:
        self.e.at(label)
        self.current = label

    def special(self, name: str) -> Value:
        e = self.e
        if name in ("tid.x", "tid.y", "tid.z"):
            self.uses_coordinates = True
            return Value("i32", {"x": "%tx", "y": "%ty", "z": "%tz"}[name[-1]])
        if name.startswith(("clusterid.", "nclusterid.")):
            name = name.replace("clusterid", "ctaid")
        if name in BLOCK:
            return Value("i32", f"%{name}")
        lane = (
            e.bin("and", Value("i32", "%t"), const("i32", 31)) if "lane" in name else Value("", "")
        )
        if name == "laneid":
            return lane
        if name == "warpid":
            return e.bin("lshr", Value("i32", "%t"), const("i32", 5))
        if name.startswith("lanemask_"):
            return self._lanemask(name[9:], lane)
        if name in _CONSTANT:
            return const("i32", _CONSTANT[name])
        if name in _CLOCKS:
            self.e.declared.add("declare i64 @rankfold_soft_nanoseconds()")
            now = e.op("i64", "call i64 @rankfold_soft_nanoseconds()")
            return e.bin("lshr", now, const("i64", 32)) if name.endswith("_hi") else now
        if name == "dynamic_smem_size":
            return Value("i32", "%dynamic_shared")
        if name in ("total_smem_size", "aggr_smem_size"):
            size = const("i32", self.kernel.static_shared)
            return e.bin("add", Value("i32", "%dynamic_shared"), size)
        if name in ("envreg1", "envreg2"):
            return self._grid_workspace(high=name == "envreg1")
        raise Unsupported

    def constant_ranges(self) -> list[tuple[Value, int]]:
        variables = self.kernel.module.variables.values()
        return [(self.address(v.name, 0), v.size) for v in variables if v.space == "const"]

    def _grid_workspace(self, high: bool) -> Value:
        """Returns half of the address of a cooperative launch's workspace, which nvcc's code for
        grid.sync() reads from these registers; 0 in other launches."""
        e = self.e
        there = e.in_head("i1", "icmp ne ptr %grid, null")
        half = memory.TAGS["grid"] << 8 if high else 0
        return e.in_head("i32", f"select i1 {there.ref}, i32 {half}, i32 0")

    def _lanemask(self, comparison: str, lane: Value) -> Value:
        e = self.e
        bit = e.bin("shl", const("i32", 1), lane)
        below = e.bin("sub", bit, const("i32", 1))
        if comparison == "eq":
            return bit
        if comparison == "lt":
            return below
        if comparison == "le":
            return e.bin("or", below, bit)
        if comparison == "gt":
            return e.not_(e.bin("or", below, bit))
        if comparison == "ge":
            return e.not_(below)
        raise Unsupported

    def _parts(self, name: str) -> tuple[Value, Value]:
        base, offset = (self.e.op("i64", f"load i64, ptr {self._part(name, p)}") for p in "bo")
        return base, offset

    def _part(self, name: str, part: str) -> str:
        self.parts.add(f"{self.place(name)}.{part}")
        return f"{self.place(name)}.{part}"

    def split_address(self, name: str) -> tuple[Value, Value, int] | None:
        """Returns the two parts, and what the second one is a multiple of."""
        if name not in self.kernel.splits:
            return None
        return (*self._parts(name), self.kernel.splits[name].multiple)


def _float_operand(value: float, single: int | None, type_: str) -> Value:
    if type_ == "float":
        return float_bits(single) if single is not None else float_const("float", value)
    if type_ == "double":
        return float_const("double", value)
    if type_ == "i32" and single is not None:
        return const("i32", single)
    if type_ == "i64":
        return const("i64", struct.unpack("<q", struct.pack("<d", value))[0])
    raise Unsupported

"""Kernels written in PTX that apply many instructions to each element of some arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.harness import Space

Array = np.ndarray[Any, Any]

_KIND = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
DTYPE = {
    "u8": np.uint8,
    "s8": np.int8,
    "u16": np.uint16,
    "s16": np.int16,
    "b16": np.uint16,
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "pred": np.uint32,
}


@dataclass(frozen=True)
class Case:
    """`code`: one or more instructions; {d} is the result, {a} {b} {c} the operands, {p} a
    predicate, {t} {u} scratch registers of the result's type."""

    code: str
    result: str
    operands: tuple[str, ...]


def _register(kind: str, name: str) -> str:
    declared = {"f32": "f32", "f64": "f64"}.get(kind)
    return f".reg .{declared or _KIND[np.dtype(DTYPE[kind]).itemsize]} {name};"


def source(cases: list[Case]) -> str:
    """One kernel: out_j[i] = case_j(a[i], b[i], c[i]); operands of a kind share their arrays."""
    lines = []
    params = [".param .u32 n"]
    for j, case in enumerate(cases):
        size = np.dtype(DTYPE[case.result]).itemsize
        names = {}
        for letter, kind in zip("abc", case.operands, strict=False):
            register = f"%{letter}{j}"
            names[letter] = register
            width = np.dtype(DTYPE[kind]).itemsize
            params.append(f".param .u64 p{letter}{j}")
            lines += [
                _register(kind if width > 1 else "b16", register),
                f"ld.param.u64 %base, [p{letter}{j}];",
                f"mul.wide.u32 %offset, %i, {width};",
                "add.u64 %base, %base, %offset;",
                f"ld.global.{kind if kind != 'f16' else 'b16'} {register}, [%base];",
            ]
        wide = "b16" if size == 1 else case.result
        names |= {"d": f"%d{j}", "p": f"%p{j}", "q": f"%q{j}", "t": f"%t{j}", "u": f"%u{j}"}
        if case.result == "pred":
            lines += [f".reg .pred %p{j};", f".reg .pred %q{j};", f".reg .b32 %d{j};"]
            lines += [case.code.format(**names), f"selp.u32 %d{j}, 1, 0, %p{j};"]
        else:
            lines += [_register(wide, names[x]) for x in "dtu"]
            lines += [f".reg .pred %p{j};", case.code.format(**names)]
        params.append(f".param .u64 po{j}")
        store = {"pred": "u32", "f16": "b16"}.get(case.result, case.result)
        lines += [
            f"ld.param.u64 %base, [po{j}];",
            f"mul.wide.u32 %offset, %i, {size};",
            "add.u64 %base, %base, %offset;",
            f"st.global.{store} [%base], %d{j};",
        ]
    body = "\n    ".join(lines)
    return f"""
.version 8.6
.target sm_90
.address_size 64
.visible .entry cases({", ".join(params)})
{{
    .reg .b32 %i; .reg .b32 %n; .reg .b32 %x<4>; .reg .pred %end;
    .reg .b64 %base; .reg .b64 %offset;
    mov.u32 %x1, %ctaid.x; mov.u32 %x2, %ntid.x; mov.u32 %x3, %tid.x;
    mad.lo.u32 %i, %x1, %x2, %x3;
    ld.param.u32 %n, [n];
    setp.ge.u32 %end, %i, %n;
    @%end bra DONE;
    {body}
DONE:
    ret;
}}
"""


def run(kernels: Loader, space: Space, cases: list[Case], inputs: list[list[Array]]) -> list[Array]:
    """The results of all cases; inputs[j] are the operand arrays of case j, all of one length."""
    function = kernels.function(kernels.module(source(cases).encode(), 1), "cases")
    count = len(inputs[0][0])
    arguments: list[int] = [count]
    outputs = []
    for case, arrays in zip(cases, inputs, strict=True):
        arguments += [
            space.put(a.astype(DTYPE[k])) for a, k in zip(arrays, case.operands, strict=True)
        ]
        outputs.append(space.alloc(count * np.dtype(DTYPE[case.result]).itemsize))
        arguments.append(outputs[-1])
    space.launch(function, (count + 63) // 64, 64, *arguments)
    space.check()
    return [
        space.read(address, count, DTYPE[case.result])
        for address, case in zip(outputs, cases, strict=True)
    ]

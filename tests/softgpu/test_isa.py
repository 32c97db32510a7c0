"""isa.yaml is what the compiler can do, all of it is tested, and the rest is refused by name."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import cuda
import pytest
import yaml

from rankfold.proxy.hal.soft.compiler import instructions
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.body import parse_body
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.module import parse_module
from softgpu import (
    bytewise,
    elementwise,
    test_atomic_rows,
    test_barrier_rows,
    test_bit_rows,
    test_calls,
    test_conformance,
    test_control_rows,
    test_integer_rows,
    test_kernels,
    test_matrix_rows,
    test_mbarrier_rows,
    test_memory_rows,
    test_select_rows,
    test_tile_rows,
    test_video_rows,
    test_warp_rows,
)

ISA = yaml.safe_load(Path(__file__).with_name("isa.yaml").read_text())
TRANSLATED = [name for family in ISA["translated"].values() for name in family]
REFUSED = [name for family in ISA["refused"].values() for name in family]
APPROXIMATE = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry approximate() {
    .reg .f32 %f; .reg .b32 %r;
    sin.approx.f32 %f, %f; cos.approx.f32 %f, %f; lg2.approx.f32 %f, %f; ex2.approx.f32 %f, %f;
    tanh.approx.f32 %f, %f; rsqrt.approx.f32 %f, %f;
    setmaxnreg.inc.sync.aligned.u32 40;
    ret;
}
"""  # computed in test_instructions.py


def of_elements(module: Any) -> list[str]:
    return [
        elementwise.source([elementwise.Case(r.code, r.result, r.operands) for r in rows])
        for rows in module.FAMILIES.values()
    ]


def of_floats() -> list[str]:
    stored = {"bf16": "b16"}
    return [
        elementwise.source(
            [
                elementwise.Case(
                    code, stored.get(kind, kind), tuple(stored.get(s, s) for s in sources)
                )
                for code, kind, sources, _ in rows
            ]
        )
        for rows in test_conformance.FAMILIES.values()
    ]


@cache
def programs() -> dict[str, list[str]]:
    """The PTX of the rows, by test."""
    memory = test_memory_rows.DECLARATIONS
    return {
        "integers": of_elements(test_integer_rows),
        "bits": of_elements(test_bit_rows),
        "video": of_elements(test_video_rows),
        "selections": of_elements(test_select_rows),
        "floats": of_floats(),
        "memory": [bytewise.source(r, memory) for r in test_memory_rows.FAMILIES.values()],
        "mbarriers": [bytewise.source(r) for r in test_mbarrier_rows.FAMILIES.values()],
        "atomics": [bytewise.source(r) for r in test_atomic_rows.FAMILIES.values()],
        "warps": [test_warp_rows.source(), test_warp_rows.old_source()],
        "blocks": [test_barrier_rows.source(), test_barrier_rows.special_source()],
        "control": [test_control_rows.SOURCE],
        "matrices": [*test_matrix_rows.sources(), *test_tile_rows.sources()],
    }


@cache
def exercised() -> set[tuple[str, ...]]:
    """The instructions in them, and in the kernels that nvcc makes."""
    compiled = [cuda.ptx(test_calls.SOURCE), cuda.ptx(test_kernels.SOURCE, args=["-DNO_REDUX"])]
    found = set()
    for text in [APPROXIMATE, *compiled, *(t for texts in programs().values() for t in texts)]:
        for function in parse_module(text).functions.values():
            if function.body_text is not None:
                found |= {instr.op for instr in parse_body(function).instrs}
    return found


def test_the_table_is_what_the_compiler_knows() -> None:
    known = instructions.known()
    first = {name.split(".")[0] for name in TRANSLATED}
    assert first == {name for name, what in known.items() if what == "translated"}
    assert set(ISA["no effect"]) == {name for name, what in known.items() if what == "no effect"}
    assert len(set(TRANSLATED + ISA["no effect"] + REFUSED)) == len(
        TRANSLATED + ISA["no effect"] + REFUSED
    )


@pytest.mark.parametrize("name", [*TRANSLATED, *ISA["no effect"]])
def test_each_instruction_has_a_row(name: str) -> None:
    first, *words = name.split(".")
    assert any(op[0] == first and set(words) <= set(op) for op in exercised())


@pytest.mark.parametrize("name", REFUSED)
def test_refused_instructions_are_named(kernels: Loader, name: str) -> None:
    text = f"""
.version 8.6
.target sm_90
.address_size 64
.visible .entry strange()
{{
    .reg .b32 %r<2>;
    {name}.b32 %r0, %r1;
    ret;
}}
"""
    with pytest.raises(ModuleError) as caught:
        kernels.function(kernels.module(text.encode(), 1), "strange")
    assert caught.value.code == 801
    assert f"'{name}.b32" in caught.value.message and "strange" in caught.value.message


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in programs() if name != "floats"])
def test_the_rows_are_ptx(family: str, tmp_path: Path) -> None:
    """NVIDIA's assembler takes them: no row tests a form that does not exist."""
    for index, text in enumerate(programs()[family]):
        source = tmp_path / f"{index}.ptx"
        source.write_text(text)
        done = subprocess.run(
            [cuda.NVCC, "-cubin", "-arch=sm_90", "-Xptxas", "-O0", "-o", tmp_path / "out", source],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

"""Module variables leave the PTX: what is left is PTX that NVIDIA's assembler takes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import cuda
import pytest

from rankfold.interpose import carried
from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.nvidia.rewrite import PARAMETER, SHARED, Rewritten, rewrite
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.module import parse_module

HEAD = ".version 8.0\n.target sm_75\n.address_size 64\n"
# Those with variables; the others take time only.
VARIABLES = ("symbols", "printing")
NEWER = {"matrices": 80}  # which need more than compute_75
PROGRAMS = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in VARIABLES else pytest.mark.slow)
    for folder in ("tests/programs", "examples/gpt")
    for path in sorted((REPOSITORY / folder).glob("*.cu"))
    if path.stem not in ("pointers", "linked")  # refused; one of two files that are linked
]


def rewritten(text: str) -> Rewritten:
    return rewrite(text, parse_module(text))


def assemble(tmp_path: Path, text: str, capability: int = 75) -> str:
    """Assembles the text with ptxas, which must accept it. Returns its report on each kernel's
    registers and memory."""
    source, target = tmp_path / "a.ptx", tmp_path / "a.cubin"
    source.write_text(text)
    command: list[str | Path] = [
        cuda.NVCC,
        f"-arch=sm_{capability}",
        "-Xptxas",
        "-v",
        "-cubin",
        "-o",
        target,
        source,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + text
    return done.stderr


# Kernels that docs/nvidia.md says are refused: here a class's table of virtual functions.
REFUSED = {"kernel_heap": "begins as the address of function .* which devices of type nvidia"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_still_assembles_and_has_no_variables(tmp_path: Path, program: Path) -> None:
    capability = NEWER.get(program.stem, 75)
    text = cuda.ptx(program, args=[f"-arch=compute_{capability}"])
    if program.stem in REFUSED:
        with pytest.raises(ModuleError, match=REFUSED[program.stem]):
            rewritten(text)
        return
    done = rewritten(text)
    names = [v for v in parse_module(text).variables.values() if v.space in ("global", "const")]
    assert bool(done.entries) <= bool(names)
    left = parse_module(done.text)
    assert [v.name for v in left.variables.values() if v.space in ("global", "const")] == []
    assert left.functions.keys() == parse_module(text).functions.keys()
    said = assemble(tmp_path, done.text, capability)
    assert re.findall(r"(\d+) bytes gmem", said) in ([], ["0"])


def test_without_variables_nothing_changes() -> None:
    text = HEAD + ".visible .entry f(.param .u64 p)\n{\nret;\n}\n"
    assert rewritten(text) == Rewritten(text, frozenset())


DEEP = (
    HEAD
    + """
.global .align 4 .u32 counter = 41;
.const .align 8 .b8 table[16] = {1, 2, 3};
.visible .global .align 8 .u64 to = generic(counter);
.func (.param .b32 out) next()
{
.reg .b32 %r<2>;
atom.global.add.u32 %r1, [counter], 1;
st.param.b32 [out], %r1;
ret;
}
.visible .entry first(.param .u64 p, .param .u32 n)
{
.reg .b32 %r<3>; .reg .b64 %rd<4>; .reg .pred %p<2>;
ld.param.u64 %rd1, [p];
LOOP: @%p1 ld.const.u8 %r1, [table+3];
mov.u64 %rd2, table+8;
{ .param .b32 out; call (out), next, (); ld.param.b32 %r2, [out]; }
st.u32 [%rd1], %r2;
ret;
}
.visible .entry second()
{
ret;
}
"""
)


def test_device_functions_find_the_address_in_shared_memory(tmp_path: Path) -> None:
    done = rewritten(DEEP)
    assert done.entries == {"first", "second"}, "any kernel may call the function"
    assert f"st.shared.u64 [{SHARED}]" in done.text and "ld.const" not in done.text
    assert re.search(r"LOOP:\s*\{.*add\.s64 \S+ \S+ 19;.*ld\.global\.u8", done.text)
    assert re.search(r"add\.s64 \S+ \S+ 24;\s*mov\.u64", done.text)
    assert done.text.count(f".param .u64 {PARAMETER}") == 2
    assemble(tmp_path, done.text)


def test_a_functions_address_in_a_variable_is_refused() -> None:
    """As tests/programs/pointers.cu has it."""
    text = HEAD + (
        ".func f() { ret; }\n.global .align 8 .u64 table[1] = {f};\n"
        ".visible .entry k() { .reg .b64 %rd1; mov.u64 %rd1, table; ret; }\n"
    )
    with pytest.raises(ModuleError, match="variable table begins as the address of function f"):
        rewritten(text)


@pytest.mark.parametrize(
    "kept", [c.path(kind) for c in carried.ALL for kind in c.types], ids=lambda path: path.name
)
def test_our_own_kernels_go_to_the_driver_as_they_are(kept: Path) -> None:
    text = kept.read_text()
    assert rewritten(text) == Rewritten(text, frozenset())

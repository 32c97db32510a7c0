"""PTX texts that are linked: each finds what others export, and nothing else of them."""

from __future__ import annotations

import struct

import pytest

from rankfold.proxy.ptx import fatbin
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.link import link
from rankfold.proxy.ptx.module import parse_module

OLD = ".version 8.0\n.target sm_75\n.address_size 64\n"
NEW = "// newer\n.version 9.0\n.target sm_90a, debug\n.address_size 64\n"
FIRST = """
.extern .func (.param .b32 result) shared_by_name(.param .b32 x);
.extern .const .align 4 .b8 bias[16];
.extern .func vprintf(.param .b64 text);
.global .align 1 .b8 $str[3] = {104, 105, 0};
.func local(.param .b32 first) { ret; }
.weak .func inlined(.param .b32 x) { ret; }
.weak .entry instance() { ret; }
.visible .entry first() { mov.u64 %rd1, $str; mov.u64 %rd2, $str$1; call local, (p); }
"""
SECOND = """
.file 1 "second.cu"
.extern .func vprintf(.param .b64 text);
.visible .const .align 4 .b8 bias[16] = {1, 2};
.global .align 1 .b8 $str[3] = {104, 111, 0};
.global .align 8 .u64 table[1] = {local};
.func local(.param .b32 second);
.func local(.param .b32 second) { ret; }
.weak .func inlined(.param .b32 x) { trap; }
.weak .entry instance() { trap; }
.visible .func (.param .b32 result) shared_by_name(.param .b32 x) { ret; }
.visible .entry second() { mov.u64 %rd1, $str; call local, (p); }
.section .debug_str { .b8 1 }
"""


def test_one_text_stays_as_it_is() -> None:
    assert link([OLD + FIRST]) == OLD + FIRST


def test_the_newest_version_and_architecture_are_needed() -> None:
    module = parse_module(link([OLD + FIRST, NEW + SECOND]))
    assert (module.version, module.target) == ("9.0", 90)


def test_exported_names_are_defined_once_and_others_are_kept_apart() -> None:
    linked = link([OLD + FIRST, NEW + SECOND])
    module = parse_module(linked)
    bodies = {name: f.body_text for name, f in module.functions.items() if f.body_text}
    assert sorted(bodies) == sorted(
        ["first", "second", "inlined", "instance", "local$in0", "local$in1", "shared_by_name"]
    )
    assert "trap" not in linked  # the first of weak definitions is taken
    assert "$str$in0;" in bodies["first"] and "$str$1;" in bodies["first"]
    assert "call local$in1," in bodies["second"]
    assert module.variables["$str$in0"].initial == b"hi\0"
    assert module.variables["$str$in1"].initial == b"ho\0"
    assert (
        module.variables["bias"].initial.startswith(b"\1\2") and not module.variables["bias"].extern
    )
    assert module.variables["table"].pointers == ((0, "local$in1", 0),)
    assert linked.index("shared_by_name") < linked.index("first")  # declared before it is called
    assert linked.count(" vprintf") == 1


def test_a_strong_definition_replaces_a_weak_one() -> None:
    weak = ".weak .func f() { trap; }\n.weak .global .u32 v = 1;"
    strong = ".visible .func f() { ret; }\n.visible .global .u32 v = 2;"
    for texts in ([weak, strong], [strong, weak]):
        module = parse_module(link([OLD + text for text in texts]))
        assert module.functions["f"].body_text == " ret; "
        assert module.variables["v"].initial == b"\2\0\0\0"


@pytest.mark.parametrize(
    "twice", [".visible .func f() { ret; }", ".visible .global .u32 f;", ".entry f() { ret; }"]
)
def test_two_strong_definitions_are_an_error(twice: str) -> None:
    with pytest.raises(ModuleError, match="f is defined in two linked objects"):
        link([OLD + twice, OLD + twice])


def test_invalid_ptx_is_an_error() -> None:
    with pytest.raises(ModuleError, match="not PTX"):
        link([OLD + FIRST, "text"])


def entry(text: str, arch: int, kind: int = 1) -> bytes:
    data = text.encode() + bytes(-len(text) % 8)
    fields = (kind, 0x101, 64, len(data), 0, 0, 0, 9, arch, 0, 0, 0, 0, 0)
    return struct.pack("<HHIQIIHHIIIQQQ", *fields).ljust(64, b"\0") + data


def fatbinary(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", fatbin.MAGIC, 1, 16, len(body)) + body


def test_fatbins_are_linked_each_by_the_text_that_fits_best() -> None:
    first = fatbinary(entry(OLD + ".visible .entry old() { ret; }", 70), entry(OLD + FIRST, 75))
    runtime = fatbinary(entry("machine code", 75, kind=2))  # of libcudadevrt.a
    second = fatbinary(entry(NEW + SECOND, 90), entry(NEW + SECOND, 120))
    linked = fatbin.ptx_of(first + runtime + second, (9, 0))
    assert linked == link([OLD + FIRST, NEW + SECOND])


def test_all_inputs_of_the_drivers_linker_are_linked() -> None:
    texts = [OLD + FIRST, NEW + SECOND]  # the second is for 9.0 alone, as it says
    image = fatbinary(*(entry(text, fatbin.ARCH_LINKED) for text in texts))
    assert fatbin.ptx_of(image, (12, 0)) == link(texts)

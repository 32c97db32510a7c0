"""Bodies that are read only when they are used: the same module as if all were read at once."""

from __future__ import annotations

import pytest

from rankfold.proxy.hal.soft.compiler.objects import kernel_source
from rankfold.proxy.ptx import module, outline
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.model import Function

pytestmark = pytest.mark.unit

HEAD = """.version 8.0
.target sm_75
.address_size 64
.global .align 4 .b8 numbers[3] = {1, 2, 3};
.func (.param .b32 out) twice(.param .b32 in)
{
    ret;
}
"""
GOOD = """
.visible .entry %s(.param .u64 p)
{
    .reg .b64 %%rd<2>; // a comment
    { // callseq 0, 0
    .reg .b32 temp_param_reg;
    mov.b64 {%%r0, %%r1}, %%rd0;
    }
    .pragma "nounroll";
    ret;
}
"""


def text(kernels: int) -> str:
    names = [f"k{i}" for i in range(kernels)]
    return HEAD + "".join(GOOD % name for name in names)


def plain(found: Function) -> tuple[object, ...]:
    return (found.text, found.body_text, found.entry, found.params, found.defined)


def test_an_outlined_module_is_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    source = text(3)
    found = module.parse_module(source)
    assert len(outline.outline(source)[1]) == 4
    monkeypatch.setattr(module, "outline", lambda text: (text, []))
    whole = module.parse_module(source)
    assert {n: plain(f) for n, f in found.functions.items()} == {
        n: plain(f) for n, f in whole.functions.items()
    }
    assert (found.variables, found.declarations) == (whole.variables, whole.declarations)
    for name in ("k0", "k2"):
        assert kernel_source(found, name) == kernel_source(whole, name)


def test_only_the_kernels_that_are_launched_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(text: str) -> str:
        read.append(text)
        return outline.strip(text)

    monkeypatch.setattr("rankfold.proxy.ptx.model.strip", counted)
    found = module.parse_module(text(100))
    assert read == [] and len(found.functions) == 101
    source = kernel_source(found, "k7")
    assert len(read) == 2 and "a comment" not in source  # k7 and twice


def test_kernels_that_name_a_function_are_read_for_its_address() -> None:
    moves = "    { mov.u64 %rd0, // its address\n    twice; }\n    ret;\n}\n"
    source = text(3) + (GOOD % "taker").replace("    ret;\n}\n", moves)
    assert module.parse_module(source).address_taken_in_kernels == ["twice"]
    assert module.parse_module(text(3)).address_taken_in_kernels == []


@pytest.mark.parametrize(
    "odd",
    [
        "// a } in a comment",
        "/* a comment { */",
        '.pragma "a } in a string";',
        "#line {",
        "\x01",
        "mov.u32 %r0, %r1;" + 4096 * " " + "{ }",
    ],
)
def test_where_braces_do_not_show_the_bodies_all_is_read(odd: str) -> None:
    source = HEAD + (GOOD % "k").replace("    ret;", f"    {odd}\n    ret;")
    assert outline.outline(source) == (source, [])


@pytest.mark.parametrize("unbalanced", ["}", "{"])
def test_unbalanced_braces_are_errors_with_their_line(unbalanced: str) -> None:
    with pytest.raises(ModuleError):
        module.parse_module(HEAD + GOOD % "k" + unbalanced)


def test_an_error_at_module_scope_has_the_line_of_the_text() -> None:
    source = text(5) + ".global .u32;\n"
    with pytest.raises(ModuleError) as caught:
        module.parse_module(source)
    assert caught.value.line == source.count("\n")


def test_a_comment_that_looks_like_a_header_takes_no_initial_value_out() -> None:
    comment = "// first; then .func f follows\n.global .align 4 .b8 more[3] = {4, 5, 6};\n"
    found = module.parse_module(text(1).replace(".func", comment + ".func"))
    assert found.variables["more"].initial == bytes([4, 5, 6])


@pytest.mark.parametrize("mark", ["\x010\x01", "\x017\x01", "\x01"])
def test_a_mark_in_a_program_is_no_number_of_a_body(mark: str) -> None:
    source = HEAD + f".visible .entry k() {{{mark}}}\n" + GOOD % "other"
    assert module.parse_module(source).functions["k"].body == mark

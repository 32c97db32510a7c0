"""Lists of buffers among the parameters: what a launch reaches through them, and which bytes of its
parameters it reads.

The parameter `s`, at 16, has a list of eight pointers at 0, of eight lengths at 64, a byte for each
of 16 blocks at 128, and 8 bytes that nothing reads. A launch has 4 blocks of 32 threads.
"""

from __future__ import annotations

import struct

import pytest
from ptx.launches import DEV_BASE, Core, Launch, Reach, Span

from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.module import parse_module
from rankfold.proxy.ptx.sets import Sets, sets_of

HEAD = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 p, .param .u64 n, .param .align 8 .b8 s[152]) {
    .reg .b64 %a<20>, %p, %n, %s; .reg .b32 %i<20>, %t, %b; .reg .pred %c; .reg .f32 %f<3>;
    ld.param.u64 %p, [p]; mov.b64 %s, s; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x;
"""
SLOT = """cvt.u64.u32 %a0, %b; add.s64 %a1, %s, %a0; ld.param.u8 %i0, [%a1+128];
mul.wide.u32 %a2, %i0, 8; add.s64 %a3, %s, %a2; ld.param.u64 %a4, [%a3];
ld.param.u64 %a5, [%a3+64];"""
STORE = """cvt.u64.u32 %a6, %t; setp.ge.u64 %c, %a6, %a5; @%c bra done; shl.b64 %a7, %a6, 2;
add.s64 %a8, %a4, %a7; st.global.u32 [%a8], 1; done:"""
BUFFERS = [DEV_BASE + (n + 1 << 32) for n in range(8)]
LENGTHS = [5, 10, 15, 20, 25, 30, 35, 40]
PARAMS = struct.Struct("<QQ8Q8Q16B8s")


def sets(body: str) -> Sets:
    module = parse_module(f"{HEAD}{body}\nret; }}")
    found = sets_of(module, module.functions["kernel"], True)
    assert found.closed, found.why_open
    return found


def params(blocks: list[int], buffers: list[int] = BUFFERS, rest: bytes = bytes(8)) -> bytes:
    """`blocks`: the number in the lists that each block takes."""
    taken = (blocks + [0] * 16)[:16]
    return PARAMS.pack(DEV_BASE, 7, *buffers, *LENGTHS, *taken, rest)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return Core(tmp_path_factory.mktemp("slots"))


def launch(core: Core, body: str, given: bytes, grid: tuple[int, int, int] = (4, 1, 1)) -> Launch:
    found = sets(body)
    with core.loaded(found, len(given)) as reaches:
        said = core.launch(reaches, given, grid, (32, 1, 1))
    assert said
    return said


def written(said: Launch) -> dict[int, Span | None]:
    """The bytes that are written through each word, by its offset in `s`."""
    return {w.at - 16: w.reach.written for w in said.words if w.use & Use.WRITTEN}


def test_each_block_takes_one_of_a_list(core: Core) -> None:
    said = launch(core, SLOT + STORE, params([3, 1, 1, 6]))
    assert written(said) == {24: Span(0, 80), 8: Span(0, 40), 48: Span(0, 128)}


def test_two_blocks_of_one_buffer(core: Core) -> None:
    further = STORE.replace("add.s64 %a8", "mul.wide.u32 %a9, %b, 256; add.s64 %a4, %a4, %a9;"
                            "add.s64 %a8")  # fmt: skip
    said = launch(core, SLOT + further, params([2, 2, 2, 0]))
    assert written(said) == {16: Span(0, 2 * 256 + 60), 0: Span(3 * 256, 3 * 256 + 20)}


def test_only_what_is_taken_is_read(core: Core) -> None:
    said = launch(core, SLOT + STORE, params([3, 1, 1, 6]))
    assert said.read == [
        (0, 8),
        *[(16 + at, 8) for at in (8, 24, 48, 64 + 8, 64 + 24, 64 + 48)],
        (16 + 128, 4),
    ]


def test_bytes_that_are_not_read_do_not_matter(core: Core) -> None:
    """Bounds that were computed before serve launches that differ elsewhere, and no others."""
    found = sets(SLOT + STORE)
    other = [each + (1 << 31) for each in BUFFERS]
    with core.loaded(found, PARAMS.size) as reaches:

        def said(given: bytes, grid: int = 4) -> dict[int, Span | None]:
            launch = core.launch(reaches, given, (grid, 1, 1), (32, 1, 1))
            assert launch
            return written(launch)

        before = said(params([3, 1, 1, 6]))
        assert before == said(params([3, 1, 1, 6], other, b"garbage!"))
        assert said(params([3, 1, 1, 6, 7])) == before
        assert said(params([3, 1, 1, 6, 7]), 5) == {**before, 56: Span(0, 128)}
        assert said(params([3, 1, 0, 6])) == {**before, 0: Span(0, 20)}
        null = [*other[:3], 0, *other[4:]]
        assert said(params([3, 1, 1, 6], null)) == dict.fromkeys((24, 8, 48))


def test_a_second_coordinate(core: Core) -> None:
    body = (SLOT + STORE).replace("%b;", "%i9;", 1).replace("ld.param.u8", "ld.param.u8", 1)
    body = f"mov.u32 %i9, %ctaid.y; {body}"
    said = launch(core, body, params([5, 4]), (1 << 20, 2, 1))
    assert written(said) == {40: Span(0, 120), 32: Span(0, 100)}


def test_an_element_that_differs_between_threads(core: Core) -> None:
    """All words of the parameter count, without bounds."""
    body = (SLOT + STORE).replace("%a0, %b;", "%a0, %t;", 1)
    said = launch(core, body, params([3, 1]))
    assert written(said) == dict.fromkeys(range(0, 145, 8))
    assert said.read == [(0, 168)]


def test_an_index_from_memory(core: Core) -> None:
    index = "ld.global.u8 %i0, [%p]; mul.wide.u32 %a2, %i0, 8; add.s64 %a3, %s, %a2;"
    said = launch(core, index + "ld.param.u64 %a4, [%a3]; st.global.u32 [%a4], 1;", params([]))
    assert written(said) == dict.fromkeys(range(0, 145, 8))
    assert said.read == [(0, 168)]


def test_more_blocks_than_are_taken_one_by_one(core: Core) -> None:
    said = launch(core, SLOT + STORE, params([3, 1]), (1 << 30, 1, 1))
    assert written(said) == dict.fromkeys(range(0, 145, 8))


def test_an_element_beyond_the_parameters(core: Core) -> None:
    said = launch(core, SLOT + STORE, params([255, 1]))
    assert written(said) == dict.fromkeys(range(0, 145, 8))


def test_an_element_at_a_known_place_is_the_same_word(core: Core) -> None:
    """All uses of a word count, whichever instruction makes them."""
    known = "ld.param.u64 %a10, [s+8]; ld.global.u32 %i5, [%a10+400]; cvt.u32.u64 %i6, %a10;" + (
        "st.global.u32 [%p], %i6;"
    )
    said = launch(core, SLOT + known + STORE, params([1, 1, 1, 1]))
    found = {w.at - 16: w for w in said.words}
    assert found[8].reach == Reach(Span(400, 404), Span(0, 40))
    assert found[8].use == Use.READ | Use.WRITTEN | Use.VALUE


def test_a_value_that_matters_at_an_unknown_place(core: Core) -> None:
    """Another load of the same element stores it: the address itself matters."""
    again = "add.s64 %a11, %s, 8; cvt.u64.u32 %a0, %b; mul.lo.u64 %a12, %a0, 0;" + (
        "add.s64 %a11, %a11, %a12; ld.param.u64 %a13, [%a11]; st.global.u64 [%p], %a13;"
    )
    said = launch(core, SLOT + STORE.replace("done:", "") + again + "done:", params([1, 1, 1, 1]))
    (word,) = [w for w in said.words if w.at == 24]
    assert word.use == Use.WRITTEN | Use.VALUE


def test_other_types_of_a_list(core: Core) -> None:
    body = "mul.wide.u32 %a0, %b, 4; add.s64 %a1, %s, %a0; ld.param.f32 %f0, [%a1+64];" + (
        "st.global.f32 [%p], %f0;"
    )
    said = launch(core, body, params([]))
    assert said.read == [(0, 8), (16 + 64, 16)]


def test_excluded_parts_are_not_read(core: Core) -> None:
    guard = "ld.param.u64 %n, [n]; setp.ne.s64 %c, %n, 7; @%c bra skip; bra.uni on; skip:"
    body = guard + SLOT.replace("%a", "%a") + "st.global.u32 [%a4], 1; bra.uni done; on: done:"
    said = launch(core, body, params([3]))
    assert written(said) == {}
    assert said.read == [(0, 16)]


UNALIGNED = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 p, .param .u32 n, .param .align 4 .b8 s[20]) {
    .reg .b64 %a<4>, %p; .reg .b32 %i<4>; .shared .align 8 .b8 kept[8];
    ld.param.u64 %p, [p]; mov.u32 %i0, %tid.x; mov.b64 %a0, s; mad.wide.u32 %a0, %i0, 4, %a0;
    st.shared.u64 [kept], %a0; ld.shared.u64 %a1, [kept];
"""


def test_the_whole_parameter_is_read_where_its_words_begin_later(core: Core) -> None:
    """The parameter begins at 12, and its first word of 8 bytes at 16."""
    body = "ld.param.u32 %i1, [%a1]; st.global.u32 [%p], %i1; ret; }"
    module = parse_module(UNALIGNED + body)
    found = sets_of(module, module.functions["kernel"], True)
    assert found.closed
    with core.loaded(found, 32) as reaches:
        said = core.launch(reaches, bytes(32), (1, 1, 1), (1, 1, 1))
    assert said and said.read == [(0, 8), (12, 20)]


def test_numbers_of_128_bits_are_read(core: Core) -> None:
    body = ".reg .b128 %q; cvt.u64.u32 %a0, %b; add.s64 %a1, %s, %a0;"
    said = launch(core, body + "ld.param.b128 %q, [%a1]; st.global.b128 [%p], %q;", params([]))
    assert said.read == [(0, 8), (16, 152)]

"""Rows of the instructions that move matrices between memory and the registers of a warp: wmma's
loads and stores, with a product between them, and ldmatrix, stmatrix, movmatrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.test_matrix_rows import (
    BITS,
    HEADER,
    REGISTER,
    WARP,
    Row,
    expected,
    operand,
    sizes_of,
    sums,
)

REGION = 2048  # bytes, of each matrix of a row


@dataclass(frozen=True)
class Tiles:
    """A product whose matrices are in memory, by columns or by rows. `pad`: elements (of 32 bits at
    least) between the lines; None: no stride is given."""

    row: Row
    shape: str
    columns: tuple[bool, bool, bool, bool]  # d, a, b, c
    space: str
    pad: int | None

    def strides(self) -> list[int]:
        """In elements."""
        found = []
        for (rows, across), columns, element in zip(
            self.row.sizes(), self.columns, self.row.elements, strict=True
        ):
            pad = (self.pad or 0) * max(1, 32 // BITS[element])
            found.append((rows if columns else across) + pad)
        return found

    def code(self) -> str:
        """Memory at %in: a, b, c; at %out: d."""
        m, n, k = self.row.shape
        d, a, b, c = self.row.elements
        half = a == "f16"
        counts = {
            "a": 8 if half else -(-m * k * BITS[a] // 1024),
            "c": m * n * BITS[c] // 1024,
            "b": 8 if half else -(-n * k * BITS[b] // 1024),
            "d": m * n * BITS[d] // 1024,
        }
        lines, vectors = [], {}
        for letter, element in zip("dabc", self.row.elements, strict=True):
            count = counts[letter] // (2 if element == "f64" else 1)
            vectors[letter] = "{" + ", ".join(f"{letter}{i}" for i in range(count)) + "}"
            lines.append(f".reg .{REGISTER.get(element, 'b32')} {letter}<{count}>;")
        strides = dict(zip("dabc", self.strides(), strict=True))
        tails = {x: "" if self.pad is None else f", {strides[x]}" for x in "dabc"}
        layouts = {
            x: "col" if columns else "row" for x, columns in zip("dabc", self.columns, strict=True)
        }
        for place, letter in enumerate("abc"):
            element = self.row.elements["dabc".index(letter)]
            lines.append(
                f"wmma.load.{letter}.sync.aligned.{layouts[letter]}.{self.shape}{self.space}."
                f"{element} {vectors[letter]}, [%from+{place * REGION}]{tails[letter]};"
            )
        order = ", ".join(vectors[letter] for letter in "dabc")
        lines.append(f"{self.row.name} {order};")
        lines.append(
            f"wmma.store.d.sync.aligned.{layouts['d']}.{self.shape}{self.space}.{d} "
            f"[%to], {vectors['d']}{tails['d']};"
        )
        return "\n".join(lines)


def tiles() -> Iterator[Tiles]:
    oblong = ("m16n16k16", "m32n8k16", "m8n32k16")
    kinds = [
        *(((d, "f16", "f16", c), oblong) for d, c in product(("f16", "f32"), repeat=2)),
        (("f32", "bf16", "bf16", "f32"), oblong),
        (("f32", "tf32", "tf32", "f32"), ("m16n16k8",)),
        (("f64",) * 4, ("m8n8k4",)),
        *((("s32", each, each, "s32"), oblong) for each in ("s8", "u8")),
        *((("s32", each, each, "s32"), ("m8n8k32",)) for each in ("s4", "u4")),
        (("s32", "b1", "b1", "s32"), ("m8n8k128",)),
    ]
    spaces, pads = (".global", "", ".shared", ".shared::cta"), (4, None, 8)
    for kind, (elements, shapes) in enumerate(kinds):
        for number, shape in enumerate(shapes):
            way = (kind + number) % 4  # each shape with some of the layouts
            a, b = bool(way & 1), bool(way & 2)
            if elements[1] in ("s4", "u4", "b1"):
                a, b = False, True
            mode = (kind + 2 * number) % 4
            row = Row(
                wmma_name(shape, elements, a, b, mode), sizes_of(shape), elements, (sums,) * 4
            )
            columns = (bool(mode & 1), a, b, bool(mode & 2))
            yield Tiles(row, shape, columns, spaces[mode % 4], pads[mode % 3])


def wmma_name(shape: str, elements: tuple[str, ...], a: bool, b: bool, mode: int) -> str:
    d, left_, right_, c = elements
    layouts = ".".join("col" if columns else "row" for columns in (a, b))
    tail = f"{d}.{c}" if left_ == "f16" else f"{d}.{left_}.{right_}.{c}"
    if left_ == "f64":
        tail += ("", ".rz", ".rn", ".rp")[mode]
    if left_ in ("s8", "u4"):
        tail += ".satfinite"
    operation = "and.popc." if left_ == "b1" else ""
    return f"wmma.mma.{operation}sync.aligned.{layouts}.{shape}.{tail}"


XOR = Row(
    "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32",
    (8, 8, 128),
    ("s32", "b1", "b1", "s32"),
    (sums,) * 4,
)
TILES = [*tiles(), Tiles(XOR, "m8n8k128", (False, False, True, True), ".shared", 4)]
TILES.sort(key=lambda each: ".shared" not in each.space)
KERNELS = 2


def copied(count: str, to: str, source_: str) -> str:
    """A loop: each lane copies words."""
    return f"""{{ .reg .b32 i, x; .reg .b64 f, t; .reg .pred p;
    mov.u64 f, {source_}; mov.u64 t, {to}; cvt.u64.u32 %offset, %lane; shl.b64 %offset, %offset, 2;
    add.u64 f, f, %offset; add.u64 t, t, %offset; mov.u32 i, 0;
    AGAIN: ld.b32 x, [f]; st.b32 [t], x; add.u64 f, f, 128; add.u64 t, t, 128;
    add.u32 i, i, 128; setp.lt.u32 p, i, {count}; @p bra AGAIN; bar.warp.sync 0xffffffff; }}"""


def tiles_source(rows: list[Tiles]) -> str:
    """Those that work in shared memory come first."""
    count, parts = sum(".shared" in each.space for each in rows), []
    for index, each in enumerate(rows):
        bases = ("%held", "%kept") if index < count else ("%in", "%out")
        parts.append(
            f"{{ add.u64 %from, {bases[0]}, {3 * REGION * index}; "
            f"add.u64 %to, {bases[1]}, {REGION * index};\n{each.code()}\n}}"
        )
    return f"""{HEADER}
.extern .shared .align 128 .b8 held[];
.visible .entry tiles(.param .u64 in, .param .u64 out)
{{
    .reg .b32 %lane;
    .reg .b64 %in, %out, %offset, %from, %to, %held, %kept, %shared, %results;
    mov.u32 %lane, %tid.x;
    mov.u64 %held, held;
    cvta.shared.u64 %shared, %held;
    add.u64 %kept, %held, {3 * REGION * count};
    add.u64 %results, %shared, {3 * REGION * count};
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    {copied(str(3 * REGION * count), "%shared", "%in")}
    {copied(str(REGION * count), "%results", "%out")}
    {"".join(parts)}
    bar.warp.sync 0xffffffff;
    {copied(str(REGION * count), "%out", "%results")}
    ret;
}}
"""


def stored(matrix: Array, element: str, columns: bool, stride: int, area: Array) -> Array:
    """The memory of a region with the matrix in it."""
    lines, bits = matrix.T if columns else matrix, BITS[element]
    at = stride * np.arange(len(lines))[:, None] + np.arange(lines.shape[1])
    if bits >= 8:
        after = area.copy()
        after.view(f"u{bits // 8}")[at] = lines
        return after
    kept = np.unpackbits(area, bitorder="little")
    for bit in range(bits):
        kept[at * bits + bit] = lines >> np.uint64(bit) & np.uint64(1)
    return np.packbits(kept, bitorder="little")


@pytest.mark.parametrize("part", range(KERNELS))
def test_tiles(kernels: Loader, space: Space, part: int) -> None:
    rng, tiles_ = np.random.default_rng(part), TILES[part::KERNELS]
    areas, wanted = [], []
    before = rng.integers(0, 256, REGION, np.uint8)
    for each in tiles_:
        elements, strides = each.row.elements, each.strides()
        matrices = [
            operand(rng, shape, element, False)
            for shape, element in zip(each.row.sizes()[1:], elements[1:], strict=True)
        ]
        for matrix, element, columns, stride in zip(
            matrices, elements[1:], each.columns[1:], strides[1:], strict=True
        ):
            areas.append(stored(matrix, element, columns, stride, before))
        with np.errstate(all="ignore"):
            result = expected(each.row, *matrices)
        wanted.append(stored(result, elements[0], each.columns[0], strides[0], before))
    function = kernels.function(kernels.module(tiles_source(tiles_).encode(), 1), "tiles")
    out = space.put(np.tile(before, len(tiles_)))
    space.launch(
        function,
        1,
        WARP,
        space.put(np.concatenate(areas)),
        out,
        shared=4 * REGION * sum(".shared" in each.space for each in tiles_),
    )
    space.check()
    got = space.read(out, len(tiles_) * REGION, np.uint8).reshape(-1, REGION)
    for each, have, want in zip(tiles_, got, wanted, strict=True):
        assert (have == want).all(), f"{each}: differs at {np.argwhere(have != want)[:4]}"


# ---- rows of eight elements to registers and back ------------------------------------------------


MEMORY = 4096  # bytes of shared memory
COUNTS = (("x1", 1), ("x2", 2), ("x4", 4))
MOVES = [*product(COUNTS, ("", ".trans"), ("", ".shared", ".shared::cta"))]


def moves_source() -> str:
    """Loads into the words at `out`, one area of 128 bytes for each register; stores from the words
    of `in` behind the memory, one copy of shared memory behind the other."""
    parts, at = [], 0
    for (name, count), trans, space_ in MOVES:
        vector = "{" + ", ".join(f"r{i}" for i in range(count)) + "}"
        address = "%place" if space_ else "%generic"
        parts.append(
            f"{{ .reg .b32 r<4>; ldmatrix.sync.aligned.m8n8.{name}{trans}{space_}.b16 "
            f"{vector}, [{address}];"
        )
        for i in range(count):
            parts.append(f"st.global.b32 [%mine+{at + 128 * i}], r{i};")
        parts.append("}")
        at += 128 * count
    parts.append(f"""{{ .reg .b32 x; ld.global.b32 x, [%words];
        movmatrix.sync.aligned.m8n8.trans.b16 x, x; st.global.b32 [%mine+{at}], x; }}""")
    at += 128
    for (name, count), trans, space_ in MOVES:
        vector = "{" + ", ".join(f"r{i}" for i in range(count)) + "}"
        address = "%place" if space_ else "%generic"
        loads = "".join(f"ld.global.b32 r{i}, [%words+{128 * i}];" for i in range(count))
        parts.append(f"""{copied(str(MEMORY), "%shared", "%in")}
        {{ .reg .b32 r<4>; {loads}
        stmatrix.sync.aligned.m8n8.{name}{trans}{space_}.b16 [{address}], {vector}; }}
        add.u64 %to, %out, {at}; {copied(str(MEMORY), "%to", "%shared")}""")
        at += MEMORY
    return f"""{HEADER}
.visible .entry moves(.param .u64 in, .param .u64 places, .param .u64 out)
{{
    .shared .align 128 .b8 held[{MEMORY}];
    .reg .b32 %lane, %place;
    .reg .b64 %in, %out, %offset, %mine, %words, %shared, %generic, %places, %to;
    mov.u32 %lane, %tid.x;
    mov.u64 %shared, held;
    cvta.shared.u64 %shared, %shared;
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    ld.param.u64 %places, [places];
    mul.wide.u32 %offset, %lane, 4;
    add.u64 %mine, %out, %offset;
    add.u64 %words, %in, %offset;
    add.u64 %words, %words, {MEMORY};
    add.u64 %places, %places, %offset;
    ld.global.b32 %place, [%places];
    cvt.u64.u32 %generic, %place;
    add.u64 %generic, %generic, %shared;
    {{ .reg .b32 base; mov.u32 base, held; add.u32 %place, %place, base; }}
    {copied(str(MEMORY), "%shared", "%in")}
    {chr(10).join(parts)}
    ret;
}}
"""


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_matrices(kernels: Loader, space: Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory = rng.integers(0, 2**16, MEMORY // 2, np.uint16)
    words = rng.integers(0, 2**16, (4, 8, 8), np.uint16)
    places_ = 8 * rng.permutation(MEMORY // 16)[:WARP].reshape(4, 8)  # in elements
    wanted = []
    for (_, count), trans, _ in MOVES:
        for i in range(count):
            rows = np.array([memory[at : at + 8] for at in places_[i]])
            wanted.append(rows.T if trans else rows)
    wanted.append(words[0].T)
    for (_, count), trans, _ in MOVES:
        after = memory.copy()
        for i, row in product(range(count), range(8)):
            at = places_[i][row]
            after[at : at + 8] = words[i].T[row] if trans else words[i][row]
        wanted.append(after)
    flat = np.concatenate([np.ravel(each) for each in wanted])
    function = kernels.function(kernels.module(moves_source().encode(), 1), "moves")
    out = space.put(np.zeros(flat.size, np.uint16))
    given_ = space.put(np.concatenate([memory, words.ravel()]))
    addresses = space.put((2 * places_).astype(np.uint32).ravel())
    space.launch(function, 1, WARP, given_, addresses, out)
    space.check()
    got = space.read(out, flat.size, np.uint16)
    assert (got == flat).all(), f"differs at {np.argwhere(got != flat)[:4]}"


def sources() -> list[str]:
    """All kernels of the rows."""
    return [*(tiles_source(TILES[i::KERNELS]) for i in range(KERNELS)), moves_source()]

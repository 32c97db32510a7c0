"""Matrix operations of a warp: products of fragments.

A fragment's layout is the PTX ISA's (9.7.14): element i of lane l is in row and column of the
matrix that `left`, `right`, `sums` and `quads` say. A product sums in the one order that
matrix.c promises: from C on, k upwards, one fused multiply-add each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.errors import ModuleError
from softgpu.elementwise import Array
from softgpu.harness import DEV_BASE, Space

WARP = 32
HEADER = ".version 9.0\n.target sm_90\n.address_size 64\n"
BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f32": 32,
    "f64": 64,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
    "s32": 32,
}
REGISTER = {"f32": "f32", "f64": "f64"}  # others are .b32
Layout = Callable[[int, int], tuple[int, int]]  # lane, element: row, column


# ---- numbers: what bits are worth ----------------------------------------------------------------


def values(bits: Array, element: str) -> Array:
    """As float64, int64 or bits."""
    if element == "f64":
        return bits.view(np.float64)
    if element in ("f32", "tf32"):
        kept = bits.astype(np.uint32) & (0xFFFFE000 if element == "tf32" else 0xFFFFFFFF)
        return kept.astype(np.uint32).view(np.float32).astype(np.float64)
    if element == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if element == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    if element == "e5m2":
        return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    if element == "e4m3":
        return np.array([e4m3(int(x)) for x in bits.flat]).reshape(bits.shape)
    whole = bits.astype(np.int64)
    half = 1 << (BITS[element] - 1)
    return (whole ^ half) - half if element[0] == "s" else whole


def e4m3(x: int) -> float:
    exponent, mantissa = x >> 3 & 15, x & 7
    if x & 127 == 127:
        return float("nan")
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -size if x & 128 else size


def patterns(numbers: Array, element: str) -> Array:
    """The bits of sums; every NaN is the canonical one."""
    if element == "f64":
        numbers = numbers.astype(np.float64)
        return np.where(np.isnan(numbers), (1 << 63) - 1, numbers.view(np.uint64))
    if element == "s32":
        return (numbers & 0xFFFFFFFF).astype(np.uint64)
    single = numbers.astype(np.float32)
    if element == "f32":
        return np.where(np.isnan(single), 0x7FFFFFFF, single.view(np.uint32)).astype(np.uint64)
    with np.errstate(over="ignore"):
        half = single.astype(np.float16)
    return np.where(np.isnan(half), 0x7FFF, half.view(np.uint16)).astype(np.uint64)


# ---- places of elements --------------------------------------------------------------------------


def left(m: int, element: str) -> Layout:
    per = max(1, 32 // BITS[element])  # elements of a register

    def place(lane: int, i: int) -> tuple[int, int]:
        group, thread = lane >> 2, lane % 4
        if m == 8:
            return group, thread * per + i
        return group + 8 * (i // per % 2), thread * per + i % per + 4 * per * (i // (2 * per))

    return place


def right(element: str) -> Layout:
    per = max(1, 32 // BITS[element])
    return lambda lane, i: (lane % 4 * per + i % per + 4 * per * (i // per), lane >> 2)


def sums(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + 8 * (i // 2), lane % 4 * 2 + i % 2


def quads(element: str, columns: bool, part: str) -> Layout:
    """The layout of mma.m8n8k4 with halves: rows of its four products are numbered
    consecutively."""

    def place(lane: int, i: int) -> tuple[int, int]:
        high, low = 4 * (lane >= 16), lane % 4
        if part == "c" and element == "f32":
            return high + (low & 1) + (i & 2), (i & 4) + (low & 2) + (i & 1)
        if part == "c":
            return low + high, i
        if part == "a":
            return (i + high, low) if columns else (low + high, i)
        return (i, low + high) if columns else (low, i + high)

    def of_quad(lane: int, i: int) -> tuple[int, int]:
        row, column = place(lane, i)
        return row + (8 if part != "b" else 4) * (lane // 4 % 4), column

    return of_quad


@cache
def places(layout: Layout, count: int) -> tuple[Array, Array]:
    """Rows and columns, [element, lane]."""
    found = [[layout(lane, i) for lane in range(WARP)] for i in range(count)]
    rows, columns = np.moveaxis(np.array(found), 2, 0)
    return rows, columns


def fragment(matrix: Array, layout: Layout, element: str) -> Array:
    """The words of the lanes, [word, lane], from the bits of a matrix."""
    held, bits = matrix[places(layout, matrix.size // WARP)], BITS[element]
    if bits == 64:
        return np.stack([held & 0xFFFFFFFF, held >> 32], 1).reshape(-1, WARP).astype(np.uint32)
    per = 32 // bits
    shifts = np.uint64(bits) * np.arange(per, dtype=np.uint64)
    words: Array = (held.reshape(-1, per, WARP) << shifts[:, None]).sum(1)
    return words.astype(np.uint32)


# ---- products ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A product d = a * b + c of `count` matrices, by its name and its fragments' layouts."""

    name: str
    shape: tuple[int, int, int]
    elements: tuple[str, str, str, str]  # d, a, b, c
    layouts: tuple[Layout, Layout, Layout, Layout]
    count: int = 1

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of d, a, b, c."""
        m, n, k = self.shape
        return (self.count * m, n), (self.count * m, k), (self.count * k, n), (self.count * m, n)

    def words(self) -> list[int]:
        return [
            rows * columns * BITS[element] // WARP // 32
            for (rows, columns), element in zip(self.sizes(), self.elements, strict=True)
        ]


def form(shape: str, d: str, a: str, b: str, c: str, tail: str = "", mode: str = "") -> Row:
    m, n, k = sizes_of(shape)
    name = f"mma.sync.aligned.{shape}.row.col{mode}.{d}.{a}.{b}.{c}{tail}"
    return Row(name, (m, n, k), (d, a, b, c), (sums, left(m, a), right(b), sums))


def sizes_of(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def quad_form(d: str, c: str, a_columns: bool, b_columns: bool) -> Row:
    layouts = ".".join("col" if columns else "row" for columns in (a_columns, b_columns))
    return Row(
        f"mma.sync.aligned.m8n8k4.{layouts}.{d}.f16.f16.{c}",
        (8, 8, 4),
        (d, "f16", "f16", c),
        (
            quads(d, False, "c"),
            quads("f16", a_columns, "a"),
            quads("f16", b_columns, "b"),
            quads(c, False, "c"),
        ),
        4,
    )


def floats() -> Iterator[Row]:
    for shape in ("m16n8k8", "m16n8k16"):
        yield form(shape, "f16", "f16", "f16", "f16")
        yield form(shape, "f32", "f16", "f16", "f32")
        yield form(shape, "f32", "bf16", "bf16", "f32")
    for shape in ("m16n8k4", "m16n8k8"):
        yield form(shape, "f32", "tf32", "tf32", "f32")
    for shape, a, b in product(("m16n8k16", "m16n8k32"), ("e4m3", "e5m2"), ("e4m3", "e5m2")):
        yield form(shape, "f16", a, b, "f16")
        yield form(shape, "f32", a, b, "f32")
    for d, c in (("f16", "f16"), ("f32", "f16"), ("f32", "f32")):
        for a_columns, b_columns in product((False, True), repeat=2):
            yield quad_form(d, c, a_columns, b_columns)


def doubles() -> Iterator[Row]:
    for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"):
        yield form(shape, "f64", "f64", "f64", "f64")
    for rounding in (".rn", ".rz", ".rm", ".rp"):
        yield form("m8n8k4", "f64", "f64", "f64", "f64", mode=rounding)


def integers() -> Iterator[Row]:
    small = (("8", ("m8n8k16", "m16n8k16", "m16n8k32")), ("4", ("m8n8k32", "m16n8k32", "m16n8k64")))
    for bits, shapes in small:
        for shape, a, b, mode in product(shapes, "su", "su", ("", ".satfinite")):
            yield form(shape, "s32", a + bits, b + bits, "s32", mode=mode)
    for shape, name in product(("m8n8k128", "m16n8k128", "m16n8k256"), ("xor", "and")):
        yield form(shape, "s32", "b1", "b1", "s32", tail=f".{name}.popc")


FAMILIES = {"floats": [*floats()], "doubles": [*doubles()], "integers": [*integers()]}


def source(rows: list[Row]) -> str:
    """Each row's words one after the other: those of a, b, c at `in`, those of d at `out`."""
    parts, at, to = [], 0, 0
    for row in rows:
        fragments = list(zip("dabc", row.elements, row.words(), strict=True))
        parts.append("{ .reg .b32 low, high;")
        for letter, element, words in fragments:
            count = words // (2 if element == "f64" else 1)
            parts.append(f".reg .{REGISTER.get(element, 'b32')} {letter}<{count}>;")
            if letter != "d":
                parts.append(transfers(letter, element, count, at, loads=True))
                at += 128 * words
        vectors = [names(letter, words, element) for letter, element, words in fragments]
        parts.append(f"{row.name} {', '.join(vectors)};")
        letter, element, words = fragments[0]
        count = words // (2 if element == "f64" else 1)
        parts.append(transfers(letter, element, count, to, loads=False) + "}")
        to += 128 * words
    return f"""{HEADER}
.visible .entry products(.param .u64 in, .param .u64 out)
{{
    .reg .b32 %lane;
    .reg .b64 %in, %out, %offset;
    mov.u32 %lane, %tid.x;
    mul.wide.u32 %offset, %lane, 4;
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    add.u64 %in, %in, %offset;
    add.u64 %out, %out, %offset;
    {chr(10).join(parts)}
    ret;
}}
"""


def names(letter: str, words: int, element: str) -> str:
    count = words // (2 if element == "f64" else 1)
    return "{" + ", ".join(f"{letter}{i}" for i in range(count)) + "}"


def transfers(letter: str, element: str, count: int, at: int, loads: bool) -> str:
    """Code that loads a fragment's registers from %in, or stores them to %out."""
    lines = []
    for i in range(count):
        name = f"{letter}{i}"
        if element == "f64":
            low, high = at + 256 * i, at + 256 * i + 128
            lines.append(
                f"ld.global.b32 low, [%in+{low}]; ld.global.b32 high, [%in+{high}]; "
                f"mov.b64 {name}, {{low, high}};"
                if loads
                else f"mov.b64 {{low, high}}, {name}; st.global.b32 [%out+{low}], low; "
                f"st.global.b32 [%out+{high}], high;"
            )
        else:
            kind, place = REGISTER.get(element, "b32"), at + 128 * i
            lines.append(
                f"ld.global.{kind} {name}, [%in+{place}];"
                if loads
                else f"st.global.{kind} [%out+{place}], {name};"
            )
    return "\n".join(lines)


def operand(rng: np.random.Generator, shape: tuple[int, int], element: str, wild: bool) -> Array:
    """The bits of a matrix: any (`wild`), or numbers whose sums stay finite, many of them alike
    in size."""
    bits = BITS[element]
    if wild or element not in ("f16", "bf16", "tf32", "f32", "f64", "e5m2"):
        made = rng.integers(0, 2**64 - 1, shape, np.uint64, endpoint=True) >> np.uint64(64 - bits)
        if element == "s32":  # some at the ends of their range
            made = np.where(rng.random(shape) < 0.5, 0x7FFFFF00 + (made & 0x1FF), made)
        return made
    near = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, shape)
    if element == "f64":
        return near.view(np.uint64)
    if element in ("f16", "e5m2"):
        return near.astype(np.float16).view(np.uint16).astype(np.uint64) >> np.uint64(16 - bits)
    return near.astype(np.float32).view(np.uint32).astype(np.uint64) >> np.uint64(32 - bits)


def expected(row: Row, a: Array, b: Array, c: Array) -> Array:
    """The bits of d."""
    m, _, k = row.shape
    d_element, *elements = row.elements
    parts = []
    for q in range(row.count):
        whole = (a[q * m : (q + 1) * m], b[q * k : (q + 1) * k], c[q * m : (q + 1) * m])
        x, y, z = (values(bits, each) for bits, each in zip(whole, elements, strict=True))
        if elements[0] == "b1":
            combined = x[:, :, None] & y if ".and" in row.name else x[:, :, None] ^ y
            parts.append(z + combined.sum(1))
        elif d_element == "s32":
            total = z + x @ y
            low, high = -(2**31), 2**31 - 1
            parts.append(np.clip(total, low, high) if "satfinite" in row.name else total)
        elif d_element == "f64":
            mode = next((w for w in (".rz", ".rm", ".rp") if w in row.name), ".rn")
            parts.append(in_doubles(x, y, z, mode))
        else:
            for p in range(k):  # a product has 22 bits at most: nothing is rounded twice
                z = (x[:, p, None] * y[p] + z).astype(np.float32).astype(np.float64)
            parts.append(z)
    return patterns(np.concatenate(parts), d_element)


def in_doubles(x: Array, y: Array, z: Array, mode: str) -> Array:
    out = z.copy()
    for i, j in np.ndindex(*z.shape):
        total = float(z[i, j])
        for p in range(x.shape[1]):
            total = rounded(Fraction(x[i, p]) * Fraction(y[p, j]) + Fraction(total), mode)
        out[i, j] = total
    return out


def rounded(exact: Fraction, mode: str) -> float:
    near = float(exact)
    if mode == ".rn" or Fraction(near) == exact:
        return near
    below = near if Fraction(near) < exact else float(np.nextafter(near, -np.inf))
    above = float(np.nextafter(below, np.inf))
    down = mode == ".rm" or (mode == ".rz" and exact > 0)
    return below if down else above


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_products(kernels: Loader, space: Space, family: str, seed: int, wild: bool) -> None:
    rows, rng = FAMILIES[family], np.random.default_rng(seed)
    given_, words = [], []
    for row in rows:
        matrices = [
            operand(rng, shape, element, wild and family != "doubles")
            for shape, element in zip(row.sizes()[1:], row.elements[1:], strict=True)
        ]
        given_.append(matrices)
        for matrix, layout, element in zip(
            matrices, row.layouts[1:], row.elements[1:], strict=True
        ):
            words.append(fragment(matrix, layout, element))
    function = kernels.function(kernels.module(source(rows).encode(), 1), "products")
    results = [row.words()[0] for row in rows]
    out = space.put(np.zeros((sum(results), WARP), np.uint32))
    space.launch(function, 1, WARP, space.put(np.concatenate(words)), out)
    space.check()
    got = space.read(out, sum(results) * WARP, np.uint32).reshape(-1, WARP)
    at = 0
    for row, matrices, count in zip(rows, given_, results, strict=True):
        with np.errstate(all="ignore"):
            result = expected(row, *matrices)
        wanted = fragment(result, row.layouts[0], row.elements[0])
        have, at = got[at : at + count], at + count
        assert (have == wanted).all(), f"{row.name}: differs at {np.argwhere(have != wanted)[:4]}"


def sources() -> list[str]:
    """All kernels of the rows."""
    return [source(rows) for rows in FAMILIES.values()]


# ---- who takes part, and where it leads ----------------------------------------------------------


SOME = f"""{HEADER}
.visible .entry some(.param .u64 out, .param .u64 a)
{{
    .reg .b32 %me, %lane, %warp, %one, %r<2>; .reg .b64 %out, %a, %o; .reg .f32 %f<4>;
    .reg .pred %p;
    mov.u32 %me, %tid.x;
    and.b32 %lane, %me, 31;
    shr.u32 %warp, %me, 5;
    ld.param.u64 %out, [out];
    ld.param.u64 %a, [a];
    mul.wide.u32 %o, %me, 16;
    add.u64 %out, %out, %o;
    mov.b32 %one, 0x3c003c00;
    setp.eq.u32 %p, %warp, 1;
    cvt.rn.f32.u32 %f0, %me;
    mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
    @%p bra OTHER;
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32
        {{%f0, %f1, %f2, %f3}}, {{%one, %one}}, {{%one}}, {{%f0, %f1, %f2, %f3}};
    bra DONE;
OTHER:
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
        {{%f0, %f1, %f2, %f3}}, {{%one, %one, %one, %one}}, {{%one, %one}}, {{%f0, %f1, %f2, %f3}};
DONE:
    st.global.v4.f32 [%out], {{%f0, %f1, %f2, %f3}};
    ret;
}}
"""


def test_each_warp_for_itself(kernels: Loader, space: Space) -> None:
    """Warps take different ways; in one that is not whole, the missing lanes hold zeros."""
    threads = 32 * 2 + 16
    function = kernels.function(kernels.module(SOME.encode(), 1), "some")
    out = space.put(np.zeros((threads, 4), np.float32))
    space.launch(function, 1, threads, out, 0)
    space.check()
    got = space.read(out, threads * 4, np.float32).reshape(threads, 4)
    added = np.full((threads, 4), 8.0)
    added[32:64] = 16
    added[64:, 2:] = 8  # rows 4 to 7 and 12 to 15 are missing, and columns 4 to 7 of B
    added[64:] = np.where(np.arange(16)[:, None] % 4 * 2 + [0, 1, 0, 1] < 4, 8, 0)
    assert (got == np.arange(threads)[:, None] + added).all()


@pytest.mark.parametrize(
    ("code", "address", "error"),
    [
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%a];", 8, 716),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%a];", 1 << 20, 700),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%a];", 1 << 40, 700),
        ("stmatrix.sync.aligned.m8n8.x1.b16 [%a], {%r0};", DEV_BASE, 700),  # not mapped
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {%r0, %r1}, [%a], 16;", 64, 700),
        (
            "wmma.load.a.sync.aligned.row.m16n16k16.s8 {%r0, %r1}, [%a], 0x7fffffff;",
            DEV_BASE + (1 << 40) - (1 << 21),
            700,
        ),
        (
            "wmma.store.d.sync.aligned.row.m8n8k32.global.s32 [%a], {%r0, %r1}, 8;",
            DEV_BASE + (1 << 40) - 128,
            700,
        ),
    ],
)
def test_addresses_are_checked(
    kernels: Loader, space: Space, code: str, address: int, error: int
) -> None:
    text = SOME.replace("cvt.rn.f32", f"{code}\ncvt.rn.f32").replace("some(", "wrong(")
    function = kernels.function(kernels.module(text.encode(), 1), "wrong")
    space.launch(function, 1, 32, space.put(np.zeros(128, np.float32)), address)
    assert space.error()[0] == error


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, "
            "{%r0, %r1}, "
            "{%r0, %r1}, {%f0, %f1, %f2, %f3}, %r0, 0x0;",
            "give zeros too",
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32 {%f0, "
            "%f1, %f2, %f3}, "
            "{%r0, %r1, %r0, %r1}, {%r0, %r1}, {%f0, %f1, %f2, %f3};",
            "mma.sync",
        ),
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0}, {%r1}, "
            "{%f0, %f1, %f2, %f3};",
            "mma.sync",
        ),  # too few registers
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%a];", "ldmatrix"),
        ("wgmma.fence.sync.aligned;", "not compute_90a"),
    ],
)
def test_other_forms_are_refused(kernels: Loader, code: str, says: str) -> None:
    text = SOME.replace("cvt.rn.f32", f"{code}\ncvt.rn.f32").replace("some(", "strange(")
    with pytest.raises(ModuleError) as caught:
        kernels.function(kernels.module(text.encode(), 1), "strange")
    assert caught.value.code == 801
    assert code.rstrip(";") in caught.value.message and says in caught.value.message

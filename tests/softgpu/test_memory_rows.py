"""Loads and stores: every space, width, vector, qualifier; copies. PTX ISA, 9.7.9."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.bytewise import SLOT, Row, always, check, first_bytes, inputs
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES

Reference = Callable[[bytes], bytes]
WIDTH = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
}
SPACES = {  # where a slot is reached through which space
    "global": "%out",
    "shared": "%sh",
    "local": "%lo",
    "shared::cta": "%sh",
    "shared::cluster": "%sh",
}
GENERIC = {"global": "%gout", "shared": "%gsh", "local": "%glo"}
TABLE = bytes((37 * i + 11) % 256 for i in range(64))
NUMBERS = ", ".join(map(str, TABLE))
DECLARATIONS = f"""
.const .align 16 .b8 table[{len(TABLE)}] = {{{NUMBERS}}};
.global .align 16 .b8 variable[{len(TABLE)}] = {{{NUMBERS}}};
"""


def register(kind: str, count: int = 1) -> tuple[str, str]:
    """A declaration, and the operand."""
    declared = kind if WIDTH[kind] > 1 else "b16"
    names = [f"x{i}" for i in range(count)]
    operand = "{" + ", ".join(names) + "}" if count > 1 else names[0]
    return f".reg .{declared} {', '.join(names)};", operand


def there_and_back(space: str, slot: str, kind: str, count: int = 1) -> Row:
    """Stored into the space, and loaded from it."""
    declared, x = register(kind, count)
    suffix = f".v{count}.{kind}" if count > 1 else f".{kind}"
    dot = f".{space}" if space else ""
    at = SLOT - WIDTH[kind] * count
    return Row(
        f"{declared} ld.global{suffix} {x}, [%in]; st{dot}{suffix} [{slot}+{at}], {x};"
        f" ld{dot}{suffix} {x}, [{slot}+{at}]; st.global{suffix} [%out+{at}], {x};",
        first_bytes(SLOT - at, at),
    )


def vectors() -> list[tuple[str, int]]:
    return [(kind, n) for kind, w in WIDTH.items() for n in (2, 4) if w * n <= 16]


def in_spaces() -> list[Row]:
    rows = []
    for space, slot in SPACES.items():
        rows += [there_and_back(space, slot, kind) for kind in WIDTH]
        rows += [there_and_back(space, slot, kind, n) for kind, n in vectors()]
    for slot in GENERIC.values():
        rows += [there_and_back("", slot, kind) for kind in WIDTH]
        rows += [there_and_back("", slot, kind, 2) for kind in ("u8", "f32", "u64")]
    rows += [there_and_back("shared", "%dyn", kind) for kind in ("u8", "b64", "b128")]
    return rows


def widened(have: int, want: int, signed: bool) -> Callable[[bytes], bytes]:
    def reference(data: bytes) -> bytes:
        value = int.from_bytes(data[:have], "little", signed=signed)
        return value.to_bytes(want, "little", signed=signed)

    return reference


def extended() -> list[Row]:
    """A register that is wider than what is loaded: extended by the type. And cut when stored."""
    rows = []
    for kind, wide in (
        ("u8", "b32"),
        ("s8", "b32"),
        ("b8", "b32"),
        ("u16", "b32"),
        ("s16", "b32"),
        ("u8", "b64"),
        ("s8", "b64"),
        ("s16", "b64"),
        ("u32", "b64"),
        ("s32", "b64"),
        ("s8", "b16"),
    ):
        have, want = WIDTH[kind], WIDTH[wide]
        for space, slot in (("global", "%in"), ("", "%gin")):
            dot = f".{space}" if space else ""
            rows.append(
                Row(
                    f".reg .{wide} x; ld{dot}.{kind} x, [{slot}]; st.global.{wide} [%out], x;",
                    widened(have, want, kind[0] == "s"),
                )
            )
    cut = ".reg .b64 x; ld.global.b64 x, [%in]; st.global.u16 [%out], x; st.global.b8 [%out+8], x;"
    rows.append(Row(cut, lambda d: d[:2] + bytes(6) + d[:1]))
    return rows


LOADS = (
    "ld.volatile.global",
    "ld.relaxed.gpu.global",
    "ld.acquire.sys.global",
    "ld.acquire.cta.global",
    "ld.relaxed.cluster.global",
    "ld.global.ca",
    "ld.global.cg",
    "ld.global.cs",
    "ld.global.lu",
    "ld.global.cv",
    "ld.global.nc",
    "ld.weak.global",
    "ld.global.nc.L1::no_allocate",
    "ld.global.L1::evict_first",
    "ld.global.L1::evict_last",
    "ld.global.L1::evict_unchanged",
    "ld.global.L1::evict_normal",
    "ld.global.L2::128B",
    "ld.global.nc.L1::evict_last.L2::256B",
    "ldu.global",
    "ld.mmio.relaxed.sys.global",
    "ld.global.ca.nc.L2::64B",
)
STORES = (
    "st.volatile.global",
    "st.relaxed.gpu.global",
    "st.release.sys.global",
    "st.release.cta.global",
    "st.global.wb",
    "st.global.cg",
    "st.global.cs",
    "st.global.wt",
    "st.weak.global",
    "st.global.L1::no_allocate",
    "st.global.L1::evict_first",
    "st.mmio.relaxed.sys.global",
)


def qualified() -> list[Row]:
    rows = []
    for kind in ("u8", "u32", "f64"):
        declared, x = register(kind)
        copied = WIDTH[kind]
        for load in LOADS:
            load = load.replace(".nc.L2::64B", f".nc.L2::64B.{kind}") if ".nc.L2" in load else load
            whole = load if load.endswith(kind) else f"{load}.{kind}"
            rows.append(
                Row(
                    f"{declared} {whole} {x}, [%in]; st.global.{kind} [%out], {x};",
                    first_bytes(copied),
                )
            )
        rows += [
            Row(
                f"{declared} ld.global.{kind} {x}, [%in]; {store}.{kind} [%out], {x};",
                first_bytes(copied),
            )
            for store in STORES
        ]
    return [*rows, *hinted()]


def hinted() -> list[Row]:
    """With a cache policy, which only a real device minds; and hints by themselves."""
    policies = (
        "createpolicy.fractional.L2::evict_last.b64 p, 1.0;",
        "createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 p, 0.5;",
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 p, [%gin], 128, 256;",
    )
    code = (
        " ld.global.L2::cache_hint.v2.b32 {x, y}, [%in], p;"
        " st.global.L2::cache_hint.v2.b32 [%out], {y, x}, p;"
    )
    rows = [
        Row(f".reg .b64 p; .reg .b32 x, y; {policy} {code}", lambda d: d[4:8] + d[:4])
        for policy in policies
    ]
    hints = (
        "prefetch.global.L1 [%in]; prefetch.global.L2 [%in]; prefetchu.L1 [%gin];"
        " prefetch.local.L1 [%lo]; prefetch.global.L2::evict_last [%in];"
        " nanosleep.u32 20; membar.cta; membar.gl; membar.sys;"
        " fence.sc.gpu; fence.acq_rel.sys; fence.proxy.alias; pmevent 1;"
        " griddepcontrol.launch_dependents; griddepcontrol.wait;"
        " fence.proxy.async; fence.acquire.sync_restrict::shared::cluster.cluster;"
        " applypriority.global.L2::evict_normal [%aligned], 128; discard.global.L2 [%spare], 128;"
    )
    aligned = (
        ".reg .b64 %aligned, %spare; .reg .b32 x; and.b64 %aligned, %in, -128;"
        " and.b64 %spare, %out, -128; "
    )
    return [
        *rows,
        Row(f"{aligned}{hints} ld.global.b32 x, [%in]; st.global.b32 [%out], x;", lambda d: d[:4]),
    ]


def read_only() -> list[Row]:
    """Constants, module variables and parameters, each by name and by address."""
    rows = []
    index = "and.b32 i, i, 3; mul.wide.u32 a, i, 16;"
    for kind, width in WIDTH.items():
        declared, x = register(kind)
        declared += f" .reg .b32 i; .reg .b64 a, b; ld.global.b32 i, [%in]; {index}"
        store = f"st.global.{kind} [%out], {x};"

        def entry(data: bytes, width: int = width) -> bytes:
            at = 16 * (data[0] & 3)
            return TABLE[at : at + width]

        for space, name in (("const", "table"), ("global", "variable")):
            rows += [
                Row(
                    f"{declared} ld.{space}.{kind} {x}, [{name}+16]; {store}",
                    always(TABLE[16 : 16 + width]),
                ),
                Row(
                    f"{declared} mov.u64 b, {name}; add.u64 a, a, b; ld.{space}.{kind} {x}, [a]; "
                    f"{store}",
                    entry,
                ),
                Row(
                    f"{declared} mov.u64 b, {name}; cvta.{space}.u64 b, b; add.u64 a, a, b; "
                    f"ld.{kind} {x}, [a]; {store}",
                    entry,
                ),
            ]
    return rows


def asynchronous() -> list[Row]:
    """cp.async: bytes beyond the source's size are zero and are not read."""
    done = " cp.async.commit_group; cp.async.wait_group 0; "
    back = "ld.shared.v4.b32 {x, y, z, w}, [%sh]; st.global.v4.b32 [%out], {x, y, z, w};"
    regs = ".reg .b32 x, y, z, w, n; .reg .pred p; .reg .b64 q, nowhere; mov.b64 nowhere, 0; "
    clear = "mov.b32 x, -1; st.shared.v4.b32 [%sh], {x, x, x, x}; "

    def row(copy: str, reference: Reference, before: str = "", finish: str = done) -> Row:
        return Row(f"{regs}{clear}{before}{copy};{finish}{back}", reference)

    def first_bytes_of(size: int) -> Reference:
        return lambda d: d[:size].ljust(16, b"\xff")

    def some(size: int, count: int | None = None) -> Reference:
        def reference(data: bytes) -> bytes:
            wanted = data[16] % (size + 1) if count is None else count
            return data[:wanted].ljust(size, b"\0").ljust(16, b"\xff")

        return reference

    def unless(size: int) -> Reference:
        return lambda d: (bytes(size) if d[16] < 99 else d[:size]).ljust(16, b"\xff")

    rows = []
    for size in (4, 8, 16):
        count = f"ld.global.u8 n, [%in+16]; rem.u32 n, n, {size + 1}; "
        to = "cp.async.ca.shared.global [%sh], [%in]"
        rows += [
            row(f"{to}, {size}", first_bytes_of(size)),
            row(f"{to}, {size}, n", some(size), count),
            row(f"{to}, {size}, {size - 3}", some(size, size - 3)),
            row(f"cp.async.ca.shared.global [%sh], [nowhere], {size}, 0", some(size, 0)),
            row(
                f"{to}, {size}, p", unless(size), "ld.global.u8 n, [%in+16]; setp.lt.u32 p, n, 99; "
            ),
        ]
    hint = "createpolicy.fractional.L2::evict_last.b64 q, 1.0; "
    return [
        *rows,
        row(
            "cp.async.cg.shared.global [%sh], [%in], 16",
            first_bytes_of(16),
            finish=" cp.async.wait_all; ",
        ),
        row("cp.async.cg.shared::cta.global.L2::128B [%sh], [%in], 16, 16", first_bytes_of(16)),
        row("cp.async.ca.shared.global.L2::cache_hint [%sh], [%in], 4, q", first_bytes_of(4), hint),
        row("cp.async.cg.shared.global.L2::cache_hint [%sh], [%in], 16, 8, q", some(16, 8), hint),
    ]


def addresses() -> list[Row]:
    """cvta both ways, isspacep, mapa: bit i of the result is the i-th question's answer."""
    spaces = ("global", "shared", "local", "const", "shared::cta", "shared::cluster", "param")
    rows = []
    answers = {"%gin": {0}, "%gsh": {1, 4, 5}, "%glo": {2}, "k": {3}, "s": {6}}
    regs = (
        ".reg .b64 k, s, t; .reg .b32 x, y; .reg .pred p; mov.u64 k, table; cvta.const.u64 k, k;"
        " mov.b64 s, struct; cvta.param.u64 s, s; mov.b32 y, 0; "
    )
    for register_, yes in answers.items():
        code = regs
        for place, space in enumerate(spaces):
            code += f"isspacep.{space} p, {register_}; selp.b32 x, {1 << place}, 0, p;"
            code += " or.b32 y, y, x; "
        value = sum(1 << place for place in yes)
        rows.append(Row(f"{code} st.global.b32 [%out], y;", always(bytes([value]))))
    for space, generic in GENERIC.items():
        specific = {"global": "%out", "shared": "%sh", "local": "%lo"}[space]
        rows.append(
            Row(
                f".reg .b64 t; .reg .b32 x; cvta.to.{space}.u64 t, {generic}; "
                "ld.global.b32 x, [%in];"
                f" st.{space}.b32 [t], x; ld.{space}.b32 x, [{specific}]; st.global.b32 [%out], x;",
                lambda d: d[:4],
            )
        )
    mapped = (
        ".reg .b64 t; .reg .b32 x, y; mapa.shared::cluster.u32 x, %sh, 0; mapa.u64 t, %gsh, 0;"
        " ld.global.b32 y, [%in]; st.shared::cluster.b32 [x], y; ld.b32 y, [t];"
        " st.global.b32 [%out], y; getctarank.u64 y, t; st.global.b32 [%out+4], y;"
    )
    return [*rows, Row(mapped, lambda d: d[:4])]


FAMILIES: dict[str, list[Row]] = {
    "spaces": in_spaces(),
    "extended": [*extended(), *qualified()],
    "read-only": [*read_only(), *addresses()],
    "asynchronous": asynchronous(),
}


@pytest.mark.parametrize("family", FAMILIES)
@EXAMPLES
@given(data=inputs())
def test_loads_and_stores(kernels: Loader, space: Space, family: str, data: Array) -> None:
    check(kernels, space, FAMILIES[family], data, DECLARATIONS)


@EXAMPLES
@given(data=inputs())
def test_parameters(kernels: Loader, space: Space, data: Array) -> None:
    """By name, by a computed address, and by a generic one: each gives the first thread's bytes."""
    rows = []
    for kind, width in WIDTH.items():
        declared, x = register(kind)
        first = data[0].tobytes()
        at = SLOT - 16
        regs = f"{declared} .reg .b64 a; .reg .b32 i; "
        store = f"st.global.{kind} [%out], {x};"
        rows += [
            Row(
                f"{regs} ld.param.{kind} {x}, [struct+{at}]; {store}",
                always(first[at : at + width]),
            ),
            Row(
                f"{regs} mov.b64 a, struct; ld.param.{kind} {x}, [a+{at}]; {store}",
                always(first[at : at + width]),
            ),
            Row(
                f"{regs} mov.b64 a, struct; cvta.param.u64 a, a; ld.{kind} {x}, [a]; {store}",
                always(first[:width]),
            ),
        ]
    check(kernels, space, rows, data)

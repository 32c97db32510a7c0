"""One launch on several workers: the same bits, the same errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.compiler import lower
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.info import ModuleInfo
from rankfold.proxy.ptx.module import parse_module
from softgpu.harness import Device, Space

SOURCE = Path(__file__).with_name("kernels.cu")
ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719


@pytest.fixture(scope="session")
def module(kernels: Loader) -> ModuleInfo:
    return kernels.module(cuda.ptx(SOURCE, args=["-arch=compute_80"]).encode(), 1)


@pytest.fixture
def space_of_two() -> Iterator[Space]:
    with Device(workers=2) as device:
        yield device.space()


def bits(kernels: Loader, module: ModuleInfo, workers: int) -> list[bytes]:
    """Results of launches that take long enough to be shared."""
    found = []
    rng = np.random.default_rng(4)
    with Device(workers=workers) as device:
        space = device.space()
        n = 160
        a, b = (space.put(rng.standard_normal((n, n)).astype(np.float32)) for _ in range(2))
        out = space.alloc(4 * n * n)
        function = kernels.function(module, "matmul")
        space.launch(function, (n // 16, n // 16), (16, 16), a, b, out, n, n, n)
        found.append(space.read(out, n * n, np.float32).tobytes())
        softmax = kernels.function(module, "softmax")
        space.launch(softmax, n, 96, a, out, n, shared=128)
        found.append(space.read(out, n * n, np.float32).tobytes())
        times = space.put(rng.integers(0, 99, n * 16).astype(np.uint32))
        totals = space.put(np.zeros(24, np.uint32))
        floats, wide, double = (space.put(np.zeros(2)) for _ in range(3))
        area = space.put(np.frombuffer(module.globals_image, np.uint8))
        space.launch(
            kernels.function(module, "atomics"),
            40,
            64,
            times,
            totals,
            floats,
            wide,
            double,
            16 * n,
            globals_addr=area,
        )
        found.append(space.read(totals, 24, np.uint32).tobytes())
        space.check()
    return found


def test_the_same_bits_with_one_and_with_two_workers(kernels: Loader, module: ModuleInfo) -> None:
    one = bits(kernels, module, 1)
    for _ in range(3):
        assert bits(kernels, module, 2) == one


LONG = """.version 8.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 p, .param .u32 n)
{
    .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .pred %p<2>;
    ld.param.u64 %rd0, [p];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, 0;
    mov.u32 %r3, 1;
LOOP:
    mad.lo.u32 %r3, %r3, 1664525, 1013904223;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p0, %r2, %r0;
    @%p0 bra LOOP;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd2, %rd0, %rd1;
    st.global.u32 [%rd2], %r3;
    ret;
}
"""


def test_an_error_of_a_helper_is_the_rank_s(kernels: Loader, space_of_two: Space) -> None:
    """Blocks walk out of what is mapped."""
    at = space_of_two.alloc(4)
    function = kernels.function(kernels.module(LONG.encode(), 1), "spin")
    space_of_two.launch(function, 1 << 20, 32, at, 40)
    code, text = space_of_two.error()
    assert code == ILLEGAL_ADDRESS and text.startswith("spin: no memory at device address")


def test_a_cancel_ends_all_workers(kernels: Loader, space_of_two: Space) -> None:
    device = space_of_two.device
    function = kernels.function(kernels.module(LONG.encode(), 1), "spin")
    at = space_of_two.alloc(4 << 16)
    work, _buffer = space_of_two.kernel_work(function, 1 << 16, 1024, at, 1 << 30)
    number = device.submit(work)
    threading.Timer(0.05, lambda: device.hal.space_cancel(space_of_two.handle)).start()
    device.wait(number)
    assert space_of_two.error() == (LAUNCH_FAILED, "spin: cancelled")
    other = device.space()  # the workers are fit for more
    other.launch(function, 64, 32, other.put(np.zeros(64, np.uint32)), 10)
    other.check()


def ordered(text: str) -> bool:
    """Does a kernel with these instructions keep its blocks in order?"""
    source = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{{
    .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %rd<4>; .reg .pred %p0;
    ld.param.u64 %rd0, [p];
    mov.u32 %r0, 1;
    mov.f32 %f0, 0f3F800000;
    {text}
    ret;
}}
"""
    found = lower.lower(parse_module(source), "k", "k").ir
    (line,) = [x for x in found.splitlines() if x.startswith("@k = ")]
    flags = int(line.removesuffix("]}").split()[-1])
    return bool(flags & lower.ORDERED)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("st.global.u32 [%rd0], %r0;", False),
        ("red.global.add.u32 [%rd0], %r0;", False),
        ("atom.global.max.u32 %r1, [%rd0], %r0;", False),
        ("atom.global.max.u32 %r1, [%rd0], %r0; st.global.u32 [%rd0], %r1;", True),
        ("atom.global.exch.b32 %r1, [%rd0], %r0;", True),
        ("red.global.inc.u32 [%rd0], %r0;", True),
        ("red.global.add.f32 [%rd0], %f0;", True),
        ("atom.add.f32 %f1, [%rd0], %f0;", True),
        ("red.shared.add.f32 [%r0], %f0;", False),
        ("ld.volatile.global.u32 %r1, [%rd0];", True),
        ("ld.acquire.gpu.u32 %r1, [%rd0];", True),
        ("mov.u32 %r1, %clock;", True),
    ],
)
def test_block_order_is_kept(text: str, wanted: bool) -> None:
    assert ordered(text) is wanted

"""Large kernels are compiled in parts, each by a process of its own: parts.py."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankfold.proxy.hal.soft.compiler import cache, codegen, objects, parts
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.errors import UNKNOWN, ModuleError
from softgpu.harness import Device

PTX = """.version 8.0
.target sm_75
.address_size 64
.visible .entry sums(.param .u64 p)
{
    .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<2>;
    .shared .align 4 .b32 all[64];
    ld.param.u64 %rd0, [p];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r1, [%rd2];
    mov.u32 %r4, 0;
again:
    shfl.sync.bfly.b32 %r2, %r1, 5, 31, -1;
    add.u32 %r1, %r1, %r2;
    mov.u32 %r3, all;
    mad.lo.u32 %r3, %r0, 4, %r3;
    st.shared.u32 [%r3], %r1;
    bar.sync 0;
    ld.shared.u32 %r5, [all+12];
    add.u32 %r1, %r1, %r5;
    bar.sync 0;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p0, %r4, 3;
    @%p0 bra again;
    st.global.u32 [%rd2], %r1;
    ret;
}
"""


def wanted(values: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> list[int]:
    for _ in range(3):
        values = values + values[np.arange(64) ^ 5]
        values = values + values[3]
    return list(values)


def test_a_kernel_in_parts_is_the_kernel(
    kernels: Loader, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = kernels.module(PTX.encode(), 1)
    source = objects.kernel_source(module.ptx, "sums")
    whole = codegen.compile_kernel(source, "sums")
    monkeypatch.setattr(parts, "PART_BYTES", 3000)
    divided = codegen.compile_kernel(source, "sums")
    stages: dict[str, str] = {}
    assert divided == codegen.compile_kernel(source, "sums", stages.__setitem__)
    assert len(whole.objects) == 1 < len(divided.objects)
    assert stages["asm"].count(f"{divided.symbol}:") == 1
    assert cache.decode(cache.encode(divided)) == divided
    assert all(divided.exported[:-1]) and divided.exported[-1] == ()
    cache.store(kernels.cache_dir, objects.key_of(source, "sums"), divided)
    values = np.arange(64, dtype=np.uint32) * 77
    space = device.space()
    at = space.put(values)
    space.launch(kernels.function(module, "sums"), 1, 64, at)
    space.check()
    assert list(space.read(at, 64, np.uint32)) == wanted(values)


def children() -> set[str]:
    """The processes of this thread."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def tasks(do: Callable[[str], bytes], *texts: str) -> list[parts.Task]:
    return [functools.partial(do, text) for text in texts]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGXCPU])
def test_a_part_whose_process_is_killed_fails_the_kernel(number: int) -> None:
    def crash(text: str) -> bytes:
        if text == "second":
            os.kill(os.getpid(), number)
        return text.encode()

    before = children()
    assert parts.in_children(tasks(crash, "first", "third")) == [b"first", b"third"]
    said = "timed out" if number == signal.SIGXCPU else f"killed by signal {int(number)}"
    with pytest.raises(ModuleError, match=said) as caught:
        parts.in_children(tasks(crash, "first", "second", "third", "fourth"))
    assert caught.value.code == UNKNOWN
    assert children() == before


def test_an_error_of_a_part_is_the_error_of_the_kernel() -> None:
    def refuse(text: str) -> bytes:
        raise ModuleError(801, f"no {text}")

    with pytest.raises(ModuleError, match="no first") as caught:
        parts.in_children(tasks(refuse, "first", "second"))
    assert caught.value.code == 801


def test_an_exception_in_a_part_is_no_fault_of_the_program() -> None:
    def fail(text: str) -> bytes:
        raise KeyError(text)

    with pytest.raises(ModuleError, match=r"the compiler failed: KeyError\('first'\)") as caught:
        parts.in_children(tasks(fail, "first", "second"))
    assert caught.value.code == UNKNOWN


def test_ir_that_llvm_refuses_is_no_fault_of_the_program() -> None:
    with pytest.raises(ModuleError, match="kernel k: LLVM refused its IR") as caught:
        codegen._object("define void @k() { ret i32 0 }", "k")
    assert caught.value.code == UNKNOWN

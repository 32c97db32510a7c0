"""Control flow: each kind of branch, call and end, taken by some threads and not by others."""

from __future__ import annotations

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.harness import Space

THREADS = 64
SOURCE = """
.version 8.6
.target sm_90
.address_size 64
.func (.param .b32 sum) weigh(.param .b32 x, .param .align 4 .b8 pair[8]);
.visible .func (.param .b32 r) double_it(.param .b32 x)
{
    .reg .b32 %x;
    ld.param.b32 %x, [x];
    add.u32 %x, %x, %x;
    st.param.b32 [r], %x;
    ret.uni;
}
.visible .func (.param .b32 r) negate(.param .b32 x)
{
    .reg .b32 %x; .reg .pred %p;
    ld.param.b32 %x, [x];
    st.param.b32 [r], %x;
    setp.eq.u32 %p, %x, 33;
    @%p ret;                     // as it is
    neg.s32 %x, %x;
    st.param.b32 [r], %x;
    ret;
}
.func (.param .b32 sum) weigh(.param .b32 x, .param .align 4 .b8 pair[8])
{
    .reg .b32 %x, %y, %z; .reg .pred %p;
    ld.param.b32 %x, [x];
    ld.param.v2.b32 {%y, %z}, [pair];
    mad.lo.u32 %x, %x, %y, %z;
    setp.gt.u32 %p, %x, 5000;
    @%p exit;                    // the thread, not only the function
    st.param.b32 [sum], %x;
    ret;
}
.global .u64 table[2] = {double_it, negate};
.visible .entry control(.param .u64 out)
{
    .reg .b32 %i, %x, %y, %n; .reg .b64 %out, %o, %f, %sp; .reg .pred %p, %q;
    ld.param.u64 %out, [out];
    mov.u32 %i, %tid.x;
    mul.wide.u32 %o, %i, 32;
    add.u64 %out, %out, %o;
    // a switch whose table repeats a label
    rem.u32 %x, %i, 4;
    mov.u32 %y, 0;
TARGETS: .branchtargets ONE, TWO, ONE, THREE;
    brx.idx %x, TARGETS;
ONE:
    add.u32 %y, %y, 1;
    bra.uni JOIN;
TWO:
    add.u32 %y, %y, 20;          // falls through
THREE:
    add.u32 %y, %y, 300;
JOIN:
    st.global.u32 [%out], %y;
    // loops, one in the other, left at different times
    mov.u32 %n, 0;
    mov.u32 %y, 0;
OUTER:
    setp.ge.u32 %p, %n, %x;
    @%p bra DONE;
    {
        .reg .b32 %n;
        mov.u32 %n, 0;
    INNER:
        add.u32 %y, %y, %n;
        add.u32 %n, %n, 1;
        setp.lt.u32 %q, %n, %i;
        @%q bra INNER;
    }
    add.u32 %n, %n, 1;
    bra OUTER;
DONE:
    st.global.u32 [%out+4], %y;
    // through a table of functions
    and.b32 %x, %i, 1;
    mul.wide.u32 %o, %x, 8;
    mov.u64 %f, table;
    add.u64 %f, %f, %o;
    ld.global.u64 %f, [%f];
    {
        .param .b32 r; .param .b32 x;
        st.param.b32 [x], %i;
    kind: .callprototype (.param .b32 _) _ (.param .b32 _);
        call (r), %f, (x), kind;
        ld.param.b32 %y, [r];
    }
    st.global.u32 [%out+8], %y;
    // under a predicate
    setp.lt.u32 %p, %i, 10;
    {
        .param .b32 r; .param .b32 x;
        st.param.b32 [r], %y;
        st.param.b32 [x], %i;
        @!%p call.uni (r), negate, (x);
        ld.param.b32 %y, [r];
    }
    @%p mov.u32 %y, 77;
    st.global.u32 [%out+12], %y;
    // memory of the thread's stack
    stacksave.u64 %sp;
    mov.u32 %n, 0;
TAKE:
    alloca.u64 %o, 2048, 16;
    st.local.u32 [%o], %n;
    ld.local.u32 %y, [%o];
    stackrestore.u64 %sp;
    add.u32 %n, %n, 1;
    setp.lt.u32 %p, %n, 100;
    @%p bra TAKE;
    st.global.u32 [%out+16], %y;
    setp.gt.u32 %p, %i, 1000;
    @%p trap;
    {
        .param .b32 sum; .param .b32 x; .param .align 4 .b8 pair[8];
        st.param.b32 [x], %i;
        mov.u32 %y, 100;
        st.param.v2.b32 [pair], {%y, %i};
        call (sum), weigh, (x, pair);
        ld.param.b32 %y, [sum];
    }
    st.global.u32 [%out+20], %y;
    exit;
}
"""


def wanted(i: int) -> list[int]:
    x = i % 4
    weighed = i * 100 + i
    called = -i % 2**32 if i % 2 and i != 33 else i if i == 33 else 2 * i
    loops = x * sum(range(max(i, 1)))
    after = 77 if i < 10 else i if i == 33 else -i % 2**32
    return [[1, 320, 1, 300][x], loops, called, after, 99, 0 if weighed > 5000 else weighed, 0, 0]


@pytest.mark.parametrize("threads", [1, 40, THREADS])
def test_branches_and_calls(kernels: Loader, space: Space, threads: int) -> None:
    module = kernels.module(SOURCE.encode(), 1)
    out = space.put(np.zeros((THREADS, 8), np.uint32))
    variables = space.put(np.frombuffer(module.globals_image, np.uint8))
    function = kernels.function(module, "control")
    space.launch(function, 1, threads, out, globals_addr=variables)
    space.check()
    got = space.read(out, 8 * threads, np.uint32).reshape(threads, 8)
    assert got.tolist() == [wanted(i) for i in range(threads)]

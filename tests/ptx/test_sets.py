"""Access sets of kernels: a case for each rule of proxy/ptx/sets.py.

Parameters: `p`, `q`, `r` at 0, 8 and 16 are pointers or 64-bit numbers, `n` at 24 is a 32-bit
number, `s` at 32 a structure of 32 bytes.
"""

from __future__ import annotations

import re

import pytest

from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.flows import flow_of
from rankfold.proxy.ptx.module import parse_module
from rankfold.proxy.ptx.sets import Sets, sets_of

pytestmark = pytest.mark.unit

HEAD = """
.version 8.6
.target sm_90
.address_size 64
.global .align 8 .b8 table[64];
.global .attribute(.managed) .align 8 .u64 both;
.const .align 8 .u64 fixed[4];
.shared .align 8 .b8 block[256];
.extern .func (.param .b32 said) vprintf(.param .b64 format, .param .b64 values);
.extern .func __assertfail(
    .param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.extern .func (.param .b64 got) malloc(.param .b64 bytes);
.func (.param .b64 out) further(.param .b64 at, .param .b64 by) {
    .reg .b64 %x<3>;
    ld.param.u64 %x0, [at]; ld.param.u64 %x1, [by]; add.u64 %x2, %x0, %x1;
    st.param.u64 [out], %x2; ret;
}
.func put(.param .b64 at) {
    .reg .b64 %x; ld.param.u64 %x, [at]; st.global.u32 [%x], 1; ret;
}
.visible .entry kernel(.param .u64 p, .param .u64 q, .param .u64 r, .param .u32 n,
                       .param .align 8 .b8 s[32]) {
    .reg .b64 %a<10>, %p, %q, %r; .reg .b32 %i<10>, %n; .reg .b128 %w; .reg .pred %c;
    .reg .f32 %f<9>;
    .local .align 8 .b8 frame[64];
    ld.param.u64 %p, [p]; ld.param.u64 %q, [q]; ld.param.u64 %r, [r]; ld.param.u32 %n, [n];
"""
P, Q, R, N, S = 0, 8, 16, 24, 32


def sets(body: str, fixed_code: bool = False) -> Sets:
    module = parse_module(f"{HEAD}{body}\nret; }}")
    return sets_of(module, module.functions["kernel"], fixed_code)


LETTERS = {"r": Use.READ, "w": Use.WRITTEN, "a": Use.ATOMIC, "v": Use.VALUE, "l": Use.LOW_BITS}


def text_of(found: Sets) -> str:
    """``0:rw 32..56:w table:r``"""
    slots: dict[str, Use] = {}
    for slot in found.bounds.slots:
        where = f"{slot.first}..{slot.last}"
        slots[where] = slots.get(where, Use(0)) | slot.use
    return " ".join(
        f"{where}:" + "".join(letter for letter, use in LETTERS.items() if use in uses)
        for where, uses in (*found.words, *slots.items(), *found.variables)
    )


# The kernel's body, and the access sets that are reported.
CLOSED = {
    "nothing": ("", ""),
    "a load": ("ld.global.u32 %i0, [%p+4];", "0:r"),
    "a load of what does not change": ("ld.global.nc.u32 %i0, [%p];", "0:r"),
    "a load of a whole warp": ("ldu.global.u32 %i0, [%p];", "0:r"),
    "a store": ("st.global.u32 [%p], %n;", "0:w"),
    "both": ("ld.global.u32 %i0, [%p]; st.global.u32 [%p], %i0;", "0:rw"),
    "generic": ("ld.u32 %i0, [%p]; st.u32 [%q], %i0;", "0:r 8:w"),
    "through cvta": ("cvta.to.global.u64 %a0, %p; ld.global.u32 %i0, [%a0];", "0:r"),
    "a vector of loads": ("ld.global.v4.u32 {%i0, %i1, %i2, %i3}, [%p];", "0:r"),
    "an atomic": ("atom.global.add.u32 %i0, [%p], 1;", "0:rwa"),
    "a reduction": ("red.global.add.u32 [%p], 1;", "0:rwa"),
    "compare and swap": ("atom.global.cas.b64 %a0, [%p], 0, 1;", "0:rwa"),
    "an index": ("mul.wide.s32 %a0, %n, 4; add.s64 %a1, %p, %a0; ld.global.u32 %i0, [%a1];", "0:r"),
    "an index of 64 bits":  # may be the pointer as well: a number points nowhere
    ("shl.b64 %a0, %q, 3; add.s64 %a1, %p, %a0; ld.global.u32 %i0, [%a1];", "0:r 8:rv"),
    "an index that is shifted out": (
        "shl.b32 %i0, %n, -100; mul.wide.s32 %a0, %i0, 4; add.s64 %a1, %p, %a0;"
        "ld.global.u32 %i0, [%a1];",
        "0:r",
    ),
    "an index from memory": (
        "ld.global.u32 %i0, [%q]; mul.wide.u32 %a0, %i0, 4; add.s64 %a1, %p, %a0;"
        "st.global.u32 [%a1], 0;",
        "0:w 8:r",
    ),
    "a long index from memory": (
        "ld.global.u64 %a2, [%q]; shl.b64 %a0, %a2, 2; add.s64 %a1, %p, %a0;"
        "st.global.u32 [%a1], 0;",
        "0:w 8:r",
    ),
    "a byte's index from memory": (
        "ld.global.u32 %i0, [%q]; cvt.u64.u32 %a0, %i0; add.s64 %a1, %p, %a0;"
        "st.global.u8 [%a1], 0;",
        "0:w 8:r",
    ),
    "a long number, made longer": (
        "ld.global.u64 %a2, [%q]; shl.b64 %a0, %a2, 32; shr.s64 %a1, %a0, 30; add.s64 %a3, %p, %a1;"
        "st.global.u32 [%a3], 0;",
        "0:w 8:r",
    ),
    "a warp's size": (
        "mov.u32 %i0, WARP_SZ; mad.wide.u32 %a0, %i0, 4, %p; st.u32 [%a0], 0;",
        "0:w",
    ),
    "half of an address that is stored": (
        "ld.global.u32 %i0, [%p]; ld.param.u32 %i1, [p+4]; st.global.u32 [%q], %i1;",
        "0:rv 8:w",
    ),
    "half of an address that is compared": (
        "ld.param.u32 %i1, [p]; setp.lt.u32 %c, %i1, %n; @%c st.global.u32 [%p], 1;",
        "0:wv",
    ),
    "multiply and add": ("mad.wide.s32 %a0, %n, 8, %p; ld.global.u32 %i0, [%a0];", "0:r"),
    "one of two": ("selp.b64 %a0, %p, %q, %c; st.global.u32 [%a0], 1;", "0:w 8:w"),
    "one of two, by the path": (
        "mov.b64 %a0, %p; @%c mov.b64 %a0, %q; st.global.u32 [%a0], 1;",
        "0:w 8:w",
    ),
    "the lower of two": ("min.u64 %a0, %p, %q; ld.global.u32 %i0, [%a0];", "0:rv 8:rv"),
    "a loop": (
        "mov.b64 %a0, %p; again: ld.global.u32 %i0, [%a0]; add.s64 %a0, %a0, 4;@%c bra again;",
        "0:r",
    ),
    "a difference": (
        "sub.s64 %a0, %q, %p; add.s64 %a1, %r, %a0; ld.global.u8 %i0, [%a1];",
        "0:rv 8:rv 16:r",
    ),
    "aligned down": ("and.b64 %a0, %p, -16; ld.global.u32 %i0, [%a0];", "0:rl"),
    "aligned to pages": ("and.b64 %a0, %p, -4096; ld.global.u32 %i0, [%a0];", "0:rv"),
    "aligned or not": (
        "ld.global.u32 %i0, [%p]; and.b64 %a0, %p, 15; setp.eq.u64 %c, %a0, 0;",
        "0:rl",
    ),
    "added by or": ("or.b64 %a0, %p, 8; ld.global.u32 %i0, [%a0];", "0:r"),
    "halves": ("mov.b64 {%i0, %i1}, %p; mov.b64 %a0, {%i0, %i1}; ld.global.u32 %i2, [%a0];", "0:r"),
    "halves of other threads": (
        "mov.b64 {%i0, %i1}, %p; shfl.sync.idx.b32 %i2, %i0, 0, 31, -1;"
        "shfl.sync.idx.b32 %i3, %i1, 0, 31, -1; mov.b64 %a0, {%i2, %i3};"
        "ld.global.u32 %i4, [%a0];",
        "0:r",
    ),
    "halves by shifting": (
        "cvt.u32.u64 %i0, %p; shr.u64 %a1, %p, 32; cvt.u32.u64 %i1, %a1; mov.b64 %a0, {%i0, %i1};"
        "ld.global.u32 %i2, [%a0];",
        "0:r",
    ),
    "parts of parameters": (
        "ld.param.u32 %i0, [s+8]; ld.param.u32 %i1, [s+12]; mov.b64 %a0, {%i0, %i1};"
        "ld.global.u32 %i2, [%a0];",
        "40:r",
    ),
    "parts, inserted": (
        "ld.param.u32 %a1, [s+8]; ld.param.u32 %a2, [s+12]; bfi.b64 %a0, %a2, %a1, 32, 32;"
        "ld.global.u32 %i2, [%a0];",
        "40:r",
    ),
    "in a structure": ("ld.param.u64 %a0, [s+16]; ld.global.u32 %i0, [%a0];", "48:r"),
    "two at once": (
        "ld.param.v2.u64 {%a0, %a1}, [s]; ld.global.u32 %i0, [%a0];st.global.u32 [%a1], %i0;",
        "32:r 40:w",
    ),
    "a structure by its address": (
        "mov.b64 %a0, s; add.u64 %a1, %a0, 8; ld.param.u64 %a2, [%a1+8]; st.global.u32 [%a2], 1;",
        "48:w",
    ),
    "a structure, generic": (
        "mov.b64 %a0, s; cvta.param.u64 %a1, %a0; ld.u64 %a2, [%a1+24]; st.global.u32 [%a2], 1;",
        "56:w",
    ),
    "an array in a structure": (
        "mov.b64 %a0, s; mad.wide.u32 %a1, %n, 8, %a0; ld.param.u64 %a2, [%a1];"
        "st.global.u32 [%a2], 1;",
        "32..56:w",
    ),
    "an array in a structure, in a loop": (
        "mov.b64 %a0, s; mov.b64 %a1, s; again: ld.param.u64 %a2, [%a0+8]; st.global.u32 [%a2], 1;"
        "ld.param.u64 %a3, [%a1]; add.u64 %a0, %a0, 16; add.u64 %a1, %a1, 8; @%c bra again;",
        "40:w 56:w 32..56:w",
    ),
    "an array in a structure, by an index from memory": (
        "ld.global.u32 %i0, [%p]; mov.b64 %a0, s; mad.wide.u32 %a1, %i0, 8, %a0;"
        "ld.param.u64 %a2, [%a1]; st.global.u32 [%a2], 1; atom.global.add.u32 %i1, [%a2], 1;",
        "0:r 32..56:rwa",
    ),
    "an array in a structure, generic": (
        "mov.b64 %a0, s; cvta.param.u64 %a3, %a0; mad.wide.u32 %a1, %n, 8, %a3;"
        "ld.u64 %a2, [%a1]; st.global.u32 [%a2], 1;",
        "32:w 40:w 48:w 56:w",
    ),
    "a register used again": (
        "cvta.to.global.u64 %a0, %p; ld.global.u64 %p, [%a0]; mul.wide.s32 %a1, %n, 4;"
        "add.s64 %a2, %q, %a1; st.global.u64 [%a2], %p;",
        "0:r 8:w",
    ),
    "a register used again where a predicate holds": (
        "setp.eq.s32 %c, %n, 0; cvta.to.global.u64 %a0, %p; @%c ld.global.u64 %p, [%a0];"
        "and.b64 %a1, %p, 3; add.s64 %a2, %q, %a1; st.global.u8 [%a2], 1;",
        "0:rl 8:w",
    ),
    "halves of a sum, of other threads": (
        "mul.wide.s32 %a0, %n, 4; add.s64 %a1, %p, %a0; mov.b64 {%i0, %i1}, %a1;"
        "shfl.sync.idx.b32 %i2, %i0, 0, 31, -1; shfl.sync.idx.b32 %i3, %i1, 0, 31, -1;"
        "mov.b64 %a2, {%i2, %i3}; ld.global.u32 %i4, [%a2];",
        "0:r",
    ),
    "a structure's bytes in a loop": (
        "mov.b64 %a0, s; again: ld.param.u32 %i0, [%a0]; mad.wide.u32 %a1, %i0, 4, %p;"
        "st.global.u32 [%a1], 1; add.u64 %a0, %a0, 4; @%c bra again;",
        "0:w",
    ),
    "a variable": ("ld.global.u32 %i0, [table+4]; st.global.u32 [%p], %i0;", "0:w table:r"),
    "a variable's address": (
        "mov.u64 %a0, table; mad.wide.u32 %a1, %n, 4, %a0;st.global.u32 [%a1], 1;",
        "table:w",
    ),
    "a variable, generic": (
        "mov.u64 %a0, table; cvta.global.u64 %a1, %a0; red.add.u32 [%a1], 1;",
        "table:rwa",
    ),
    "a constant": ("ld.const.u64 %a0, [fixed+8];", "fixed:r"),
    "one or the other kind": (
        "mov.u64 %a0, table; selp.b64 %a1, %a0, %p, %c; st.u32 [%a1], 1;",
        "0:w table:w",
    ),
    "through shared memory": (
        "st.shared.u64 [block], %p; bar.sync 0; ld.shared.u64 %a0, [block+8];"
        "ld.global.u32 %i0, [%a0];",
        "0:r",
    ),
    "through shared memory, generic": (
        "mov.u64 %a1, block; cvta.shared.u64 %a2, %a1; st.u64 [%a2], %p; ld.u64 %a0, [%a2];"
        "ld.global.u32 %i0, [%a0];",
        "0:r",
    ),
    "through an exchange in shared memory": (
        "atom.shared.exch.b64 %a1, [block], %p; atom.shared.exch.b64 %a0, [block], %q;"
        "ld.global.u32 %i0, [%a0];",
        "0:r 8:r",
    ),
    "compared in shared memory": (
        "atom.shared.cas.b64 %a0, [block], %p, %q; ld.global.u32 %i0, [%a0];",
        "0:rv 8:rv",
    ),
    "through local memory": (
        "st.local.u64 [frame+8], %p; mov.u64 %a1, frame; mad.wide.u32 %a2, %n, 8, %a1;"
        "ld.local.u64 %a0, [%a2]; st.global.u32 [%a0], 1;",
        "0:w",
    ),
    "shared or not": (
        "mov.u64 %a1, block; cvta.shared.u64 %a2, %a1; selp.b64 %a0, %a2, %p, %c;st.u32 [%a0], 1;",
        "0:w",
    ),
    "only shared": (
        "mov.u64 %a1, block; cvta.shared.u64 %a2, %a1; st.u32 [%a2], 1;"
        "mov.u32 %i0, block; ld.shared.u32 %i1, [%i0];",
        "",
    ),
    "numbers in shared memory": (
        "ld.global.u32 %i0, [%q]; st.shared.u32 [block], %i0; ld.shared.u32 %i1, [block];"
        "mad.wide.u32 %a0, %i1, 4, %p; st.global.u32 [%a0], 1;",
        "0:w 8:r",
    ),
    "copied to shared memory": (
        "mov.u32 %i0, block; cp.async.ca.shared.global [%i0], [%p], 16;"
        "cp.async.commit_group; cp.async.wait_group 0;",
        "0:r",
    ),
    "copied in bulk": (
        "mov.u32 %i0, block; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%i0], [%p], 16, [%i0]; cp.async.bulk.global.shared::cta.bulk_group [%q], [%i0], 16;",
        "0:r 8:w",
    ),
    "reduced in bulk": (
        "mov.u32 %i0, block; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"
        " [%q], [%i0], 16;",
        "8:rwa",
    ),
    "a tile": (
        "wmma.load.a.sync.aligned.row.m16n16k16.global.f16"
        " {%i0, %i1, %i2, %i3, %i4, %i5, %i6, %i7}, [%p], %n;"
        "wmma.store.d.sync.aligned.row.m16n16k16.global.f32"
        " [%q], {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, %n;",
        "0:r 8:w",
    ),
    "a tile in shared memory": (
        "mov.u32 %i0, block; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%i1}, [%i0];",
        "",
    ),
    "a barrier in memory": ("mov.u32 %i0, block; mbarrier.init.shared.b64 [%i0], 1;", ""),
    "hints": (
        "prefetch.global.L2 [%p]; fence.acq_rel.gpu; nanosleep.u32 8; griddepcontrol.wait;",
        "",
    ),
    "not needed any more": ("discard.global.L2 [%p], 128;", "0:w"),
    "a function's result": (
        "{ .param .b64 x; .param .b64 y; .param .b64 z; st.param.b64 [x], %p; st.param.b64 [y], 8;"
        "call (z), further, (x, y); ld.param.b64 %a0, [z]; } ld.global.u32 %i0, [%a0];",
        "0:r",
    ),
    "by a function": ("{ .param .b64 x; st.param.b64 [x], %q; call put, (x); }", "8:w"),
    "by a function, twice": (
        "{ .param .b64 x; st.param.b64 [x], %q; call put, (x); }"
        "{ .param .b64 y; .param .b64 z; .param .b64 o; st.param.b64 [y], %p;"
        "st.param.b64 [z], %r; call (o), further, (y, z); ld.param.b64 %a0, [o]; }"
        "ld.global.u32 %i0, [%a0];",
        "0:r 8:w 16:r",
    ),
    "an assertion": (
        "{ .param .b64 a; .param .b64 b; .param .b32 d; .param .b64 e; .param .b64 f;"
        "st.param.b64 [a], %q; st.param.b64 [b], %q; st.param.b32 [d], 1; st.param.b64 [e], %q;"
        "st.param.b64 [f], 1; @%c call __assertfail, (a, b, d, e, f); } st.global.u32 [%p], 1;",
        "0:w",
    ),
    "a trap": ("@%c trap; st.global.u32 [%p], 1;", "0:w"),
    "a cooperative launch": (
        "mov.u32 %i0, %envreg2; mov.u32 %i1, %envreg1; mov.b64 %a0, {%i0, %i1};"
        "atom.add.u32 %i2, [%a0], 1; st.global.u32 [%p], 1;",
        "0:w",
    ),
    # an address that matters for more than its content
    "is there a buffer": ("setp.ne.s64 %c, %p, 0; @%c ld.global.u32 %i0, [%p];", "0:r"),
    "compared": ("setp.lt.u64 %c, %p, %q; ld.global.u32 %i0, [%p];", "0:rv"),
    "stored": ("st.global.u64 [%q], %p; ld.global.u32 %i0, [%p];", "0:rv 8:w"),
    "stored, by way of shared memory": (
        "st.shared.u64 [block], %p; ld.shared.u64 %a0, [block]; st.global.u64 [%q], %a0;"
        "ld.global.u32 %i0, [%p];",
        "0:rv 8:w",
    ),
    "stored in halves": (
        "mov.b64 {%i0, %i1}, %p; st.global.v2.u32 [%q], {%i0, %i1};ld.global.u32 %i0, [%p];",
        "0:rv 8:w",
    ),
    "computed with": (
        "xor.b64 %a0, %p, 5; st.global.u64 [%q], %a0; ld.global.u32 %i0, [%p];",
        "0:rv 8:w",
    ),
    "an atomic's operand": (
        "atom.global.max.u64 %a0, [%q], %p; ld.global.u32 %i0, [%p];",
        "0:rv 8:rwa",
    ),
    "chooses a path": (
        "cvt.u32.u64 %i0, %p; rem.u32 %i1, %i0, 3; setp.eq.u32 %c, %i1, 0;ld.global.u32 %i0, [%p];",
        "0:rv",
    ),
}

IN_MEMORY, NOWHERE = "reads pointers from memory", "comes from no parameter and no variable"
BITS, PARTS = "of the bits of another one", "of parts of parameters"
OPEN = {
    "a pointer in memory": ("ld.global.u64 %a0, [%p]; ld.global.u32 %i0, [%a0];", IN_MEMORY),
    "a pointer in a constant": ("ld.const.u64 %a0, [fixed]; st.global.u32 [%a0], 1;", IN_MEMORY),
    "a pointer in a variable": ("ld.global.u64 %a0, [table]; st.global.u32 [%a0], 1;", IN_MEMORY),
    "a pointer from an exchange": (
        "atom.global.exch.b64 %a0, [%p], 0; st.u32 [%a0], 1;",
        IN_MEMORY,
    ),
    "one of a pair": ("ld.global.v2.u64 {%a0, %a1}, [%p]; st.global.u32 [%a1], 1;", IN_MEMORY),
    "memory and a number": (
        "ld.global.u64 %a0, [%p]; add.u64 %a1, %a0, %q; ld.global.u8 %i0, [%a1];",
        IN_MEMORY,
    ),
    "halves in memory": (
        "ld.global.u32 %i0, [%p]; ld.global.u32 %i1, [%p+4]; mov.b64 %a0, {%i0, %i1};"
        "ld.global.u32 %i2, [%a0];",
        IN_MEMORY,
    ),
    "the upper half in memory": (
        "ld.global.u32 %i1, [%q]; mov.b64 %a0, {%n, %i1}; add.u64 %a0, %a0, %p;"
        "ld.global.u32 %i2, [%a0];",
        IN_MEMORY,
    ),
    "halves by shifting": (
        "ld.global.u32 %i0, [%p]; cvt.u64.u32 %a0, %i0; shl.b64 %a1, %a0, 32; add.u64 %a2, %a1, %q;"
        "ld.global.u32 %i2, [%a2];",
        IN_MEMORY,
    ),
    "bytes in a loop": (
        "mov.u64 %a0, 0; again: ld.global.u8 %i0, [%p]; cvt.u64.u32 %a1, %i0;"
        "shl.b64 %a0, %a0, 8; or.b64 %a0, %a0, %a1; @%c bra again; add.u64 %a2, %a0, %q;"
        "ld.global.u32 %i2, [%a2];",
        IN_MEMORY,
    ),
    "shifted there and back": (
        "ld.global.u64 %a0, [%p]; shl.b64 %a1, %a0, 2; shr.u64 %a2, %a1, 2; add.u64 %a3, %a2, %q;"
        "ld.global.u32 %i0, [%a3];",
        IN_MEMORY,
    ),
    "its upper bits, there and back": (
        "ld.global.u64 %a0, [%p]; shr.u64 %a1, %a0, 24; shl.b64 %a2, %a1, 24; add.u64 %a3, %a2, %q;"
        "ld.global.u32 %i0, [%a3];",
        IN_MEMORY,
    ),
    "copied to shared memory": (
        "mov.u32 %i0, block; cp.async.ca.shared.global [%i0], [%p], 16; ld.shared.u64 %a0, [block];"
        "ld.global.u32 %i0, [%a0];",
        IN_MEMORY,
    ),
    "through local memory": (
        "ld.global.u64 %a0, [%p]; st.local.u64 [frame], %a0; ld.local.u64 %a1, [frame+8];"
        "ld.global.u32 %i0, [%a1];",
        IN_MEMORY,
    ),
    "a number as an address": ("mov.u64 %a0, 35184374185984; ld.global.u32 %i0, [%a0];", NOWHERE),
    "an index as an address": ("mul.wide.u32 %a0, %n, 4; ld.global.u32 %i0, [%a0];", NOWHERE),
    "a multiple as an address": ("shl.b64 %a0, %p, 3; ld.global.u32 %i0, [%a0];", NOWHERE),
    "an address in the text": ("st.global.u32 [4096], 1;", NOWHERE),
    "other bits": ("xor.b64 %a0, %p, %q; ld.global.u32 %i0, [%a0];", BITS),
    "bits at other places": (
        "shr.u64 %a0, %p, 3; add.u64 %a1, %a0, %q; ld.global.u8 %i0, [%a1];",
        BITS,
    ),
    "the halves of two": (
        "mov.b64 {%i0, %i1}, %p; mov.b64 {%i2, %i3}, %q; mov.b64 %a0, {%i0, %i3};"
        "ld.global.u32 %i4, [%a0];",
        BITS,
    ),
    "stored whole, read in pieces": (
        "st.shared.u64 [block], %p; ld.shared.v2.u32 {%i0, %i1}, [block]; mov.b64 %a0, {%i0, %i1};"
        "ld.global.u32 %i2, [%a0];",
        BITS,
    ),
    "two numbers, read as one": (
        "ld.global.u32 %i0, [%p]; shl.b32 %i1, %i0, 2; st.shared.u32 [block], %i1;"
        "st.shared.u32 [block+4], %i1; ld.shared.u64 %a0, [block]; add.u64 %a1, %a0, %q;"
        "ld.global.u32 %i2, [%a1];",
        IN_MEMORY,
    ),
    "parts far from each other": (
        "ld.param.u32 %i0, [s]; ld.param.u32 %i1, [s+8]; mov.b64 %a0, {%i0, %i1};"
        "ld.global.u32 %i2, [%a0];",
        PARTS,
    ),
    "a parameter that is written": (
        "mov.b64 %a0, s; cvta.param.u64 %a1, %a0; st.u32 [%a1], 1;",
        "writes to its parameters",
    ),
    "prints": (
        "{ .param .b64 x; .param .b64 y; .param .b32 z; st.param.b64 [x], %p; st.param.b64 [y], %q;"
        "call (z), vprintf, (x, y); }",
        "prints",
    ),
    "allocates": (
        "{ .param .b64 x; .param .b64 y; st.param.b64 [x], 8; call (y), malloc, (x); }",
        "allocates",
    ),
    "calls what it is given": (
        "ld.param.u64 %a0, [s]; { .param .b64 x; st.param.b64 [x], %q; call %a0, (x), shape; }"
        " mov.u64 %a1, put;",
        "address of a function",
    ),
    "a clock": ("mov.u64 %a0, %clock64;", "reads %clock64"),
    "the time": ("mov.u64 %a0, %globaltimer;", "reads %globaltimer"),
    "which multiprocessor": ("mov.u32 %i0, %smid;", "reads %smid"),
    "which warp": ("mov.u32 %i0, %warpid;", "reads %warpid"),
    "which launch": ("mov.u64 %a0, %gridid;", "reads %gridid"),
    "an unknown register": ("mov.u32 %i0, %pm0;", "reads %pm0"),
    "managed memory": ("ld.global.u64 %a0, [both];", "managed memory"),
    "no memory": ("ld.mmio.relaxed.sys.global.u32 %i0, [%p];", "what is not memory"),
    "a texture": ("tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%p, {%n}];", "tex, which is not known"),
    "a surface": ("suld.b.1d.b32.trap {%i0}, [%p, {%n}];", "suld, which is not known"),
    "many devices": ("multimem.red.relaxed.sys.global.add.u32 [%p], 1;", "multimem"),
    "a descriptor in memory": (
        "mov.u32 %i0, block; cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::"
        "bytes [%i0], [%p, {%n}], [%i0];",
        "cannot be read",
    ),
    "no instruction": ("nonsense.u32 %i0, [%p];", "nonsense, which is not known"),
    "operands of no form": ("ld.global.u32 %i0, [%p:%q];", "cannot be read"),
    "beyond the parameters": ("ld.param.u64 %a0, [s+32]; st.global.u32 [%a0], 1;", "beyond"),
}


@pytest.mark.parametrize("what", CLOSED)
def test_closed(what: str) -> None:
    body, expected = CLOSED[what]
    found = sets(body)
    assert (text_of(found), found.reasons) == (expected, ())


@pytest.mark.parametrize("what", OPEN)
def test_open(what: str) -> None:
    body, why = OPEN[what]
    reasons = sets(body).reasons
    assert any(why in reason.what for reason in reasons), reasons
    text = re.sub(r"\s+", "", body)
    for reason in reasons:
        assert re.sub(r"\s+", "", reason.instr) in text, "names an instruction of the kernel"


def test_calls_by_the_address_of_a_function() -> None:
    """The kernel's code contains all functions that can be called so, as on the software GPU."""
    body, _ = OPEN["calls what it is given"]
    assert text_of(sets(body, fixed_code=True)) == "8:w" and sets(body, fixed_code=True).closed
    as_memory = "mov.u64 %a0, put; ld.global.u64 %a1, [%a0];"
    assert not sets(as_memory, fixed_code=True).closed


def test_each_flow_is_found() -> None:
    assert flow_of(("wmma", "load", "a", "f16")) is not flow_of(("wmma", "mma", "f16"))
    assert flow_of(("tcgen05", "ld")) is None


def test_a_parameter_hides_a_function_of_its_name() -> None:
    """Parameters of C++ functions are often called like one."""
    text = HEAD.replace(".param .u64 p,", ".param .u64 put,").replace("[p]", "[put]")
    module = parse_module(f"{text}ld.global.u32 %i0, [%p];\nret; }}")
    assert text_of(sets_of(module, module.functions["kernel"], fixed_code=False)) == "0:r"

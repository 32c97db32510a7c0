"""Threads of a warp go in step where a program counts on that, and meet at different places."""

from __future__ import annotations

from pathlib import Path

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.compiler import meeting
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.model import Function, Instr, Mem, Reg
from rankfold.proxy.ptx.parameters import Flat
from softgpu.harness import Space
from softgpu.test_kernels import Kernels

SOURCE = Path(__file__).with_name("meeting.cu")
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module", params=["-O3", "-G"])
def k(request: pytest.FixtureRequest, kernels: Loader) -> Kernels:
    text = cuda.ptx(SOURCE, args=["-arch=compute_80", request.param])
    return Kernels(kernels, kernels.module(text.encode(), 1))


def test_the_last_warp_of_a_sum_needs_no_barrier(k: Kernels, space: Space) -> None:
    values = RNG.integers(-1000, 1000, (5, 128)).astype(np.int32)
    sums = space.alloc(20)
    space.launch(k.last_warp, 5, 128, space.put(values), sums)
    space.check()
    np.testing.assert_array_equal(space.read(sums, 5, np.int32), values.sum(1))


def test_a_scan_in_step(k: Kernels, space: Space) -> None:
    values = RNG.integers(-1000, 1000, (4, 32)).astype(np.int32)
    at = space.put(values)
    space.launch(k.scan, 1, 128, at, 5)
    space.check()
    np.testing.assert_array_equal(space.read(at, 128, np.int32).reshape(4, 32), values.cumsum(1))


def test_all_lanes_see_what_their_warp_wrote(k: Kernels, space: Space) -> None:
    entries = np.sort(RNG.integers(0, 10000, 320)).astype(np.int32)
    for first, second in ((0, 9), (17, 250), (319, 31)):
        positions = entries[[first, second]]
        found = space.alloc(256)
        space.launch(k.skip, 1, 64, space.put(entries), space.put(positions), found)
        space.check()
        wanted = np.searchsorted(entries, positions).repeat(32)
        np.testing.assert_array_equal(space.read(found, 64, np.int32), wanted)


@pytest.mark.parametrize("bit", range(5))
def test_lanes_that_come_to_an_operation_at_two_places(k: Kernels, space: Space, bit: int) -> None:
    values = RNG.integers(-100, 100, (2, 32)).astype(np.int32)
    out = space.alloc(512)
    space.launch(k.parted, 1, 64, space.put(values), out, bit)
    space.check()
    lane = np.arange(32)
    set_ = (lane >> bit & 1) != 0
    given = np.where(set_, values, values + 1000)
    other = np.where(set_, given[:, (lane + 1) % 32] * 3, given[:, (lane + 5) % 32])
    says = np.where(set_, values > 0, values < 0)
    votes = (says * (1 << lane.astype(np.int64))).sum(1)
    wanted = other + np.where(set_, votes[:, None], votes[:, None] ^ 1)
    got = space.read(out, 128, np.int32)
    np.testing.assert_array_equal(got[:64].reshape(2, 32), wanted.astype(np.uint32).view(np.int32))
    np.testing.assert_array_equal(got[64:].reshape(2, 32), np.where(set_, 1, 2) + np.zeros((2, 1)))


@pytest.mark.parametrize(("n0", "n1"), [(1, 5), (5, 1), (0, 7), (4, 4), (9, 2)])
def test_loops_of_unequal_length(k: Kernels, space: Space, n0: int, n1: int) -> None:
    out = space.alloc(256)
    space.launch(k.unequal, 1, 64, out, n0, n1)
    space.check()
    lane = np.arange(16)

    def down(sums: np.ndarray, step: int) -> np.ndarray:
        return sums[:, np.where(lane + step < 16, lane + step, lane)]

    sums = np.arange(64).reshape(4, 16)
    for n in range(max(n0, n1)):
        on = np.array([n0 > n, n1 > n] * 2)[:, None]
        sums = np.where(on, sums + 2 * down(sums, 1), sums)
    wanted = (sums + down(sums, 3)).astype(np.int32)
    np.testing.assert_array_equal(space.read(out, 64, np.int32).reshape(4, 16), wanted)
    space.launch(k.barriers, 1, 64, out, n0, n1)
    space.check()
    wanted = np.arange(64).reshape(4, 16) + 3 * np.array([[n0], [n1]] * 2)
    np.testing.assert_array_equal(space.read(out, 64, np.int32).reshape(4, 16), wanted)


def test_rounds_of_a_loop_are_in_step_though_some_are_left_out(
    kernels: Loader, space: Space
) -> None:
    """The memory is not volatile; the compiler knows that it is shared (not with -G)."""
    text = cuda.ptx(SOURCE, args=["-arch=compute_80", "-O3"])
    k = Kernels(kernels, kernels.module(text.encode(), 1))
    left_out = RNG.integers(0, 1 << 32, (2, 32), dtype=np.uint32)
    out = space.alloc(512)
    space.launch(k.rotating, 1, 64, space.put(left_out), out, 3)
    space.check()
    sums, products = np.zeros((2, 2, 32), np.int64)
    for turn, round_, warp, lane in np.ndindex(3, 32, 2, 32):
        at = (warp, (lane + round_) % 32)
        if left_out[warp, lane] >> np.uint32(round_) & 1:
            continue
        before = sums[at]
        sums[at] += lane + turn
        if products[at] % 3 != 1:
            products[at] += round_ * lane + before
    got = space.read(out, 128, np.int32).reshape(2, 2, 32)
    np.testing.assert_array_equal(got, np.array([sums, products]))


def test_a_barrier_under_a_condition_is_one_as_long_as_that_holds(k: Kernels, space: Space) -> None:
    values = RNG.integers(-1000, 1000, (5, 256)).astype(np.int32)
    sums = space.alloc(20)
    space.launch(k.tree, 5, 256, space.put(values), sums)
    space.check()
    np.testing.assert_array_equal(space.read(sums, 5, np.int32), values.sum(1))


def test_lanes_sort_in_pairs(k: Kernels, space: Space) -> None:
    values = RNG.integers(-1000, 1000, (2, 32)).astype(np.int32)
    at = space.put(values)
    space.launch(k.sorted, 1, 64, at)
    space.check()
    np.testing.assert_array_equal(space.read(at, 64, np.int32).reshape(2, 32), np.sort(values))


def test_all_lanes_see_a_counter_that_one_reports(kernels: Loader, space: Space) -> None:
    """In memory that is not volatile, at addresses that are the same for all lanes."""
    text = cuda.ptx(SOURCE, args=["-arch=compute_80", "-O3"])
    k = Kernels(kernels, kernels.module(text.encode(), 1))
    values = RNG.integers(-1000, 1000, (2, 32)).astype(np.int32)
    out = space.alloc(512)
    space.launch(k.told, 1, 64, space.put(values), out)
    space.check()
    wanted = np.array([(values > 0).sum(1), values[:, 31]]).repeat(32)
    np.testing.assert_array_equal(space.read(out, 128, np.int32), wanted)


def test_a_rotation_whose_lanes_count_for_different_times(kernels: Loader, space: Space) -> None:
    """In memory that is not volatile; between load and store a loop that ends as the value says."""
    text = cuda.ptx(SOURCE, args=["-arch=compute_80", "-O3"])
    k = Kernels(kernels, kernels.module(text.encode(), 1))
    values = RNG.permutation(64).astype(np.int32).reshape(2, 32)
    out = space.alloc(256)
    space.launch(k.rotated, 1, 64, space.put(values), out)
    space.check()
    before = np.roll(values, 1, axis=1)
    left, rounds = before.copy(), np.zeros((2, 32), np.int32)
    while (left > 1).any():
        rounds += left > 1
        left = np.where(left > 1, np.where(left % 2, 3 * left + 1, left // 2), left)
    got = space.read(out, 64, np.int32).reshape(2, 32)
    np.testing.assert_array_equal(got, before + rounds)


def test_lanes_that_wait_for_others_further_on(k: Kernels, space: Space) -> None:
    out = space.put(np.zeros(32, np.int32))
    space.launch(k.relay, 1, 32, out, 4)
    space.check()
    np.testing.assert_array_equal(space.read(out, 4, np.int32), [0, 11, 21, 31])


def access(kind: str, place: int, *how: str) -> Instr:
    where = Mem(Reg("a"), place)
    args = (where, Reg("r")) if kind == "st" else (Reg("r"), where)
    return Instr((kind, *how, "shared", "u32"), args)


def kinds(*instrs: Instr) -> str:
    kernel = Function("k", True, (), (), "", None)
    return " ".join(each.op[0] for each in meeting.insert_meets(Flat(list(instrs)), kernel, {}))


def test_where_threads_need_not_meet_they_do_not() -> None:
    own = access("st", 0), access("ld", 0), access("st", 0)
    assert kinds(*own) == "st meet ld st", "what is written where it was read is a thread's own"
    assert kinds(access("ld", 0), access("ld", 4)) == "ld ld"
    assert kinds(access("st", 0), access("st", 4)) == "st st"
    barrier = Instr(("bar", "sync"), ())
    assert kinds(access("st", 0), barrier, access("ld", 4)) == "st bar ld"
    assert kinds(access("st", 0), access("ld", 4)) == "st meet ld"
    assert kinds(access("st", 0), Instr(("yield",)), access("ld", 4)) == "st yield meet ld"
    assert kinds(access("st", 0), access("atom", 0), access("atom", 4)) == "st meet atom atom"
    volatile = access("st", 0, "volatile"), access("ld", 0, "volatile")
    assert kinds(*volatile) == "st meet ld"
    loop = Instr(("label",), target="L"), access("ld", 4), access("st", 0)
    assert kinds(*loop, Instr(("bra",), target="L")) == "label meet ld meet st bra"
    many = [access(kind, 4 * n) for n in range(meeting.MEETS_MAX) for kind in ("st", "ld")]
    assert "meet" in kinds(*(access(k, 4 * n) for n in range(9) for k in ("st", "ld")))
    assert "meet" in kinds(*many, *volatile) and kinds(*many, *volatile).count("meet") == 1

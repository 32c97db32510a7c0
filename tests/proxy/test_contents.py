"""Promise: what ranks' versions call equal is equal, byte for byte, whatever they did; and ranks
that did the same are known to hold the same.

Ranks of one job on two devices post kernels, copies, fills, and collectives: sometimes all alike,
sometimes each its own. At cuts they are saved, and what their images say is compared.
"""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest
from softgpu.gemm import SUM_D, Gemm, Matrix

from rankfold import records
from rankfold.proxy.hal.soft.modules import Loader
from support.computing import NAMES, Computing
from support.contents import Image, check_equal_versions, images_of
from support.devices import Devices, devices
from support.ring_client import (
    CHUNK,
    CONTRACT,
    DEV_BASE,
    DEVICE_SYNC,
    GEMM,
    RingClient,
    twins_of,
)

RANKS, WORDS = 3, 96  # words: of each buffer
# Neither depends on the old content, nor waits for it.
ANY = [name for name in NAMES if name not in ("linked", "until")]
GLOBALS = DEV_BASE + CHUNK
GEMM_AUX = CONTRACT.opcodes["GEMM_AUX"].number
GEMM_CALL = CONTRACT.opcodes["GEMM_CALL"].number
BUFFERS = [DEV_BASE + 512 * n for n in range(8)]
KINDS = (
    "ALLREDUCE",
    "REDUCE",
    "BROADCAST",
    "ALLGATHER",
    "REDUCESCATTER",
    "ALLTOALL",
    "GATHER",
    "SCATTER",
)


@pytest.fixture
def ranks(kernels: Loader) -> Iterator[tuple[Devices, list[Computing]]]:
    """On two devices, their communicator made."""
    made = [Computing(rank, RANKS, GLOBALS) for rank in range(RANKS)]
    with devices(kernels, 2) as here:
        here.place(1, made, [0, 0, 1])
        for rank in made:
            rank.load(BUFFERS, 4 * WORDS)
        assert [rank.finish() for rank in made] == [0] * RANKS
        yield here, made
        here.leave(1)
    for rank in made:
        rank.close()


def images(here: Devices, ranks: Sequence[RingClient], stack: ExitStack, cut: int) -> list[Image]:
    """At a cut, which lasts."""
    here.stop(1)
    assert all(native.job_save(1) for native in here.natives)
    assert {event.text for event in here.saved(cut)} == {""}
    return images_of(ranks, stack)


def done(here: Devices, ranks: Sequence[RingClient], stack: ExitStack, cut: int) -> list[Image]:
    """At a cut behind all that was posted."""
    for rank in ranks:
        rank.begin(DEVICE_SYNC)
    assert [rank.finish() for rank in ranks] == [0] * RANKS
    return images(here, ranks, stack, cut)


def content(image: Image, at: int) -> list[tuple[object, ...]]:
    """The content of a buffer, by versions."""
    end = at + 4 * WORDS
    return [
        (max(r.addr, at) - at, r.version, r.offset + max(0, at - r.addr) if not r.period else 0)
        for r in image.runs
        if r.addr < end and at < r.addr + r.bytes
    ]


def anything(chance: random.Random, ranks: list[Computing]) -> None:
    """One operation: all ranks', each with its own numbers, or one rank's."""
    kind = chance.choice(["launch", "launch", "launch", "move", "fill", "write", "collective"])
    if kind == "collective":
        name = chance.choice(KINDS)
        send, recv = chance.sample(BUFFERS, 2)
        count = chance.choice([8, WORDS // RANKS])
        for rank in ranks:
            rank.collective(CONTRACT.enums["rf_coll"][f"RF_COLL_{name}"], send, recv, count)
        return
    who = ranks if chance.randrange(3) else [chance.choice(ranks)]
    same = chance.randrange(4) > 0
    out, given = chance.choice(BUFFERS), chance.choice(BUFFERS)
    numbers = (chance.choice([WORDS, 64, 32]), chance.randrange(3), chance.choice([96, 128]))
    for rank in who:
        if not same:
            out, given = chance.choice(BUFFERS), chance.choice(BUFFERS)
            numbers = (chance.choice([WORDS, 64, 32]), chance.randrange(3), 96)
        count, add, threads = numbers
        if kind == "launch":
            rank.launch(
                chance.choice(ANY) if not same else ANY[add * 2 % len(ANY)],
                out,
                given,
                count,
                add,
                threads,
            )
        elif kind == "move":
            rank.move(out, given, count)
        elif kind == "fill":
            rank.fill(out, 0x01010101 * add + (count == 64), 1 << add, count // 4)
        else:
            rank.write(out, bytes([add] * count))


@pytest.mark.parametrize("seed", range(4))
def test_equal_versions_are_equal_bytes(ranks: tuple[Devices, list[Computing]], seed: int) -> None:
    here, made = ranks
    chance = random.Random(seed)
    for cut in range(25):
        for _ in range(chance.randrange(1, 12)):
            anything(chance, made)
        with ExitStack() as stack:
            check_equal_versions(images(here, made, stack, cut))
        here.continue_running(1, made)
        assert [rank.call(DEVICE_SYNC) for rank in made] == [0] * RANKS


def test_ranks_that_do_the_same_are_known_to_hold_the_same(
    ranks: tuple[Devices, list[Computing]],
) -> None:
    """A step of data-parallel training, with gradients at other addresses in each rank."""
    here, made = ranks
    parameters, mean, own = BUFFERS[0], BUFFERS[1], BUFFERS[2]
    for rank in made:
        gradient = BUFFERS[3 + rank.rank]
        rank.write(own, bytes([rank.rank] * 4 * WORDS))
        rank.write(parameters, bytes(range(96)) * 4)
        rank.launch("scale", gradient, own, WORDS, 1, 96)
        rank.collective(CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"], gradient, mean, WORDS)
        rank.move(gradient, mean, WORDS)
        rank.launch("update", parameters, gradient, WORDS, 2, 96)
        rank.launch("tally", BUFFERS[6], own, 1, 2, 96)
        rank.launch("update", BUFFERS[7], parameters, WORDS, 2 + (rank.rank == 1), 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        for at in (parameters, mean):
            assert content(found[0], at) == content(found[1], at) == content(found[2], at), hex(at)
            assert content(found[0], at)[0][2] == 0
        assert content(found[0], own) != content(found[1], own)
        assert content(found[0], BUFFERS[7]) != content(found[1], BUFFERS[7])
        assert content(found[0], BUFFERS[7]) == content(found[2], BUFFERS[7])
        assert content(found[0], GLOBALS) == content(found[2], GLOBALS)
    here.continue_running(1, made)


def test_buckets_are_updated_one_by_one(ranks: tuple[Devices, list[Computing]]) -> None:
    """While the rest of the gradients is still each rank's own: an update reads no more of them
    than its launch says."""
    here, made = ranks
    parameters, gradient, half = BUFFERS[0], BUFFERS[1], WORDS // 2
    bucket, rest = 4 * half, 4 * half
    for rank in made:
        rank.write(gradient, bytes([rank.rank] * 4 * WORDS))
        rank.write(parameters, bytes(range(96)) * 4)
        rank.collective(
            CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"], gradient + rest, gradient + rest, half
        )
        rank.launch("update", parameters + bucket, gradient + rest, half, 2, 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        assert content(found[0], parameters) == content(found[1], parameters)
        assert content(found[0], parameters) == content(found[2], parameters)
        assert content(found[0], gradient) != content(found[1], gradient)
    here.continue_running(1, made)
    for rank in made:  # one that reads a word more
        rank.launch("update", parameters, gradient + rest - 4, half, 2, 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 1)
        check_equal_versions(found)
        assert content(found[0], parameters)[0] != content(found[1], parameters)[0]
        assert content(found[0], parameters)[-1] == content(found[1], parameters)[-1]
    here.continue_running(1, made)


def test_a_product_reaches_its_matrices_and_no_more(
    ranks: tuple[Devices, list[Computing]],
) -> None:
    """Weights, biases and their gradients are parts of large buffers; the rest of them may be
    each rank's own. A bias that is added is not written."""
    here, made = ranks
    inputs, weights, gradients = BUFFERS[:3]
    left, right = Matrix(inputs + 64, 1, 4), Matrix(weights + 16, 4, 1)
    product = Gemm(
        4, 4, 4, left, right, Matrix(0, 1, 4), Matrix(gradients + 128, 1, 4), bias=weights + 96
    )
    for rank in made:
        own = bytes([rank.rank + 1] * 4 * WORDS)
        rank.write(inputs, own)
        rank.write(weights, bytes(4 * WORDS))
        rank.write(gradients, own)
        for at in (inputs + 64, gradients + 128):
            rank.write(at, bytes(64))
        rank.post(GEMM, product.record())
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        assert content(found[0], weights) == content(found[1], weights)
        assert len(content(found[0], weights)) == 1
        assert common(content(found[0], gradients), content(found[2], gradients)) == [128]
    here.continue_running(1, made)
    sums = replace(product, flags=SUM_D, bias=gradients + 256)
    for rank in made:
        rank.write(gradients + 256, bytes(16))
        rank.post(GEMM_AUX, sums.record())
    with ExitStack() as stack:
        found = done(here, made, stack, 1)
        check_equal_versions(found)
        assert common(content(found[0], gradients), content(found[2], gradients)) == [128, 256]
    here.continue_running(1, made)


@pytest.mark.parametrize("differ", [False, True])
def test_a_product_reads_and_writes_its_workspace(
    ranks: tuple[Devices, list[Computing]], differ: bool
) -> None:
    """A library leaves there what it likes, in a part of it: equal products on equal workspaces
    leave equal ones. Its result is one of all that it read."""
    here, made = ranks
    inputs, weights, gradients, place = BUFFERS[:4]
    a, b, c = (Matrix(at, 1, 4) for at in (inputs, weights, gradients))
    workspace = struct.pack("<2Q", place + 64, 128)
    how = workspace + struct.pack("<4Q4B3i6IQ", 4, 4, 4, 4, 2, 0, 0, 0, -1, *[0] * 9)
    for rank in made:
        for at in (inputs, weights, gradients, place):
            rank.write(at, bytes(4 * WORDS))
        rank.write(place + 128, bytes([differ * rank.rank] * 4))
        rank.post(GEMM_CALL, Gemm(4, 4, 4, a, b, c, c).record() + how)
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        for at in (gradients, place):
            first, last = content(found[0], at), content(found[2], at)
            assert (len(common(first, last)) == len(first)) == (not differ)
        assert len(content(found[0], place)) == 3, "before it, itself, and behind it"
    here.continue_running(1, made)


def common(one: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> list[object]:
    """The offset at which the same content begins in both."""
    return [run[0] for run in one if run in other]


A, B, C, D = BUFFERS[:4]


def allreduce(ranks: list[Computing], send: int, recv: int) -> None:
    for rank in ranks:
        rank.collective(CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"], send, recv, WORDS)


def fill_and_update(r: Computing, other: bool) -> None:
    r.fill(D, 7, 4, 8 + other)
    r.launch("update", D, B, WORDS, 1, 96)


def tally_twice(r: Computing, other: bool) -> None:
    r.launch("tally", A, B, 1, 1 + other, 96)
    r.launch("tally", D, B, 1, 1, 96)


def alias(r: Computing, other: bool) -> None:
    r.move(D, B, WORDS)
    r.launch("twice", D, D if other else B, WORDS, 1, 96)


# Rank 1 differs from ranks 0 and 2 in this step, so that D differs; B and C were equal before.
DIFFERENCES: dict[str, Callable[[Computing, bool], None]] = {
    "a scalar": lambda r, other: r.launch("update", D, B, WORDS, 1 + other, 96),
    "the shape": lambda r, other: r.launch("block", D, B, WORDS, 1, 128 if other else 96),
    "the code": lambda r, other: r.launch("scale" if other else "double", D, B, WORDS, 1, 96),
    "what is read": lambda r, other: r.launch("scale", D, A if other else B, WORDS, 1, 96),
    "the old content": fill_and_update,
    "a variable": tally_twice,
    "an address": lambda r, other: r.launch("address", D, C if other else B, WORDS, 1, 96),
    "what is one": alias,
    "the distance": lambda r, other: r.launch("scale", D, A + 64 * other, 32, 1, 96),
    "the distance in all of a buffer": lambda r, other: r.launch(
        "either", D, A + 64 * other, 32, 1, 96
    ),
    "the host's bytes": lambda r, other: r.write(D, bytes([1, 2, 3, 4 + other] * WORDS)),
    "a fill": lambda r, other: r.fill(D, 5 + other, 4, WORDS),
    "where it was copied from": lambda r, other: r.move(D, A + 64 * other, 32),
}


def test_each_difference_makes_another_version(ranks: tuple[Devices, list[Computing]]) -> None:
    here, made = ranks
    for cut, (name, act) in enumerate(DIFFERENCES.items()):
        for rank in made:
            rank.write(A, bytes(n % 251 for n in range(4 * WORDS)))
            for at in (B, C):
                rank.write(at, bytes([3, 1, 4, 1] * WORDS))
            rank.fill(D, 0, 4, WORDS)
            rank.fill(GLOBALS, 0, 4, 1)
            act(rank, rank.rank == 1)
        with ExitStack() as stack:
            found = done(here, made, stack, cut)
            check_equal_versions(found)
            one, other, same = (content(image, D) for image in found)
            assert one == same and one != other, name
            assert found[0].read(D, 4 * WORDS) != found[1].read(D, 4 * WORDS), name
        here.continue_running(1, made)
        assert [rank.call(DEVICE_SYNC) for rank in made] == [0] * RANKS


def test_content_of_unknown_origin_is_private(ranks: tuple[Devices, list[Computing]]) -> None:
    """An order of atomics; whatever a kernel that finds its pointers in memory may have written."""
    here, made = ranks
    for rank in made:
        rank.write(A, bytes(4 * WORDS))
        rank.launch("atomic", B, A, 1, 1, 96)
        rank.launch("tally", C, A, 1, 1, 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        assert content(found[0], B) != content(found[2], B)
        assert content(found[0], A) == content(found[2], A)
        assert content(found[0], C)[0] != content(found[0], GLOBALS)[0], "two results of one launch"
    here.continue_running(1, made)
    for rank in made:
        rank.launch("pointer", B, A, 1, 1, 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 1)
        assert content(found[0], A) != content(found[2], A)
    here.continue_running(1, made)
    for rank in made:
        rank.write(A, struct.pack("<Q", C if rank.rank == 1 else D))
        rank.fill(D, 0, 4, WORDS)
        rank.launch("linked", B, A, 1, 1, 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 2)
        check_equal_versions(found)
        assert content(found[0], D) != content(found[1], D)
    here.continue_running(1, made)


def test_a_write_past_a_buffer_changes_the_next_version(
    ranks: tuple[Devices, list[Computing]],
) -> None:
    here, made = ranks
    for rank in made:
        rank.write(A, bytes([rank.rank]) * 4 * WORDS)
        for at in (B, C, D):
            rank.fill(at, 0, 4, WORDS)
        rank.launch("beyond", B, A, WORDS, 2, 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        assert content(found[0], D) != content(found[1], D)
    here.continue_running(1, made)


def test_a_read_past_a_buffer_uses_the_next_version(
    ranks: tuple[Devices, list[Computing]],
) -> None:
    here, made = ranks
    for rank in made:
        for at in (A, B, C):
            rank.fill(at, 0, 4, WORDS)
        rank.write(D, bytes([rank.rank % 2]) * 4 * WORDS)
        rank.launch("behind", A, B, WORDS, 2, 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        assert content(found[0], A) != content(found[1], A)
    here.continue_running(1, made)


def test_a_write_past_the_end_happens_there(
    ranks: tuple[Devices, list[Computing]],
) -> None:
    """Into the next buffer, by a launch whose bounds are known."""
    here, made = ranks
    for rank in made:
        for at in (A, B, C, D):
            rank.fill(at, 0, 4, WORDS)
        rank.launch("scale", B, A, 160 if rank.rank == 1 else WORDS, 2, 192)
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        assert content(found[0], B)[0] == content(found[2], B)[0]
        assert content(found[0], C) == content(found[2], C) != content(found[1], C)
        assert content(found[0], D) == content(found[1], D)
    here.continue_running(1, made)


def test_a_write_through_a_pointer_changes_the_version(
    ranks: tuple[Devices, list[Computing]],
) -> None:
    here, made = ranks
    for rank in made:
        rank.write(A, struct.pack("<I", 0xFFFF if rank.rank == 1 else 0) * WORDS)  # 4 * 16 * 16
        for at in (B, C, D):
            rank.fill(at, 0, 4, WORDS)
        rank.launch("stray", B, A, 1, 2, 96)
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        assert found[0].read(D, 4) != found[1].read(D, 4)
        assert content(found[0], D) != content(found[1], D)
    here.continue_running(1, made)


def test_ranks_receive_one_result_or_parts_of_it(ranks: tuple[Devices, list[Computing]]) -> None:
    here, made = ranks
    kinds, count = CONTRACT.enums["rf_coll"], WORDS // RANKS
    for rank in made:
        rank.write(A, bytes([rank.rank + 1, 2, 3, 4] * WORDS))
        for at in (B, C, D):
            rank.fill(at, 0, 4, WORDS)
    allreduce(made, A, B)
    for rank in made:
        rank.collective(kinds["RF_COLL_REDUCESCATTER"], A, C, count)
        rank.collective(kinds["RF_COLL_REDUCE"], A, D, WORDS)
    allreduce(made, B, BUFFERS[4])
    with ExitStack() as stack:
        found = done(here, made, stack, 0)
        check_equal_versions(found)
        assert content(found[0], B) == content(found[1], B) == content(found[2], B)
        assert content(found[0], B) != content(found[0], BUFFERS[4])
        parts = [content(image, C)[0] for image in found]
        assert [offset for _, _, offset in parts] == [0, 4 * count, 8 * count]
        assert len({version for _, version, _ in parts}) == 1
        assert content(found[1], D) == content(found[2], D) != content(found[0], D)
        assert found[1].read(D, 4 * WORDS) == bytes(4 * WORDS), "only the root receives"
    here.continue_running(1, made)


def without_versions(image: mmap.mmap) -> None:
    """The saved state as one that says nothing of what the memory holds."""
    contract = records.saved()
    header, start = contract.structs["state_header"].layout(), contract.constants["STATE_OFFSET"]
    magic, version, reserved, size, _ = header.unpack_from(image, start)
    kept, at = b"", start + header.size
    while at < start + header.size + size:
        length, opcode = struct.unpack_from("<IH", image, at)
        if opcode != contract.opcodes["VERSIONS"].number:
            kept += image[at : at + length]
        at += length
    assert 0 < len(kept) < size
    checksum = 0xCBF29CE484222325  # state.c
    for byte in kept:
        checksum = (checksum ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    header.pack_into(image, start, magic, version, reserved, len(kept), checksum)
    image[start + header.size : start + header.size + len(kept)] = kept


def test_memory_that_a_saved_state_omits_is_not_called_zeros(
    kernels: Loader, ranks: tuple[Devices, list[Computing]]
) -> None:
    here, made = ranks
    for rank in made:
        rank.write(A, bytes([1 + rank.rank]) * 4 * WORDS)
    with ExitStack() as stack:
        done(here, made, stack, 0)
        twins = twins_of(made)
    for twin in twins:
        with mmap.mmap(twin.image, 0) as image:
            without_versions(image)
    with devices(kernels, 1) as there:
        there.place(1, twins, [0] * RANKS)
        with ExitStack() as stack:
            found = done(there, twins, stack, 0)
            check_equal_versions(found)
            assert content(found[0], A) != content(found[1], A)
        there.leave(1)
    for twin in twins:
        twin.close()
    here.continue_running(1, made)

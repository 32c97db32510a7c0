"""Promise: what ranks share is written once for all who come to the same; and whatever they do, in
whichever order, no rank reads other bytes than it would alone, nobody waits for ever, and the
counts are right.

Ranks of one job on one device post kernels, copies, fills and collectives, mostly all the same; a
model of a rank alone says what its memory holds. Each buffer lies in chunks of its own.
"""

from __future__ import annotations

import mmap
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.computing import Computing
from support.contents import Image, check_equal_versions
from support.devices import Devices, devices
from support.ring_client import (
    AT_ADDRESS,
    AT_BULK,
    CHUNK,
    CONTRACT,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    OFF_BULK,
    RETIRED,
    settle,
    until,
)

WORDS = 96
VARIABLES = DEV_BASE
# Two chunks each; what is used lies across the border of both.
HOMES = [DEV_BASE + (1 + 2 * n) * CHUNK for n in range(5)]
PARAMETERS, MOMENTS, GRADIENT, OWN, OTHER = (home + CHUNK - 2 * WORDS for home in HOMES)
BUFFERS = (PARAMETERS, MOMENTS, GRADIENT, OWN, OTHER)
ALLREDUCE = CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"]
CLEAN, CRASHED = 0, 1
ILLEGAL_ADDRESS = 700
STEPS = 3


@contextmanager
def folded(
    kernels: Loader, count: int, chunks: int = 128, speed: float = 1.0
) -> Iterator[tuple[Devices, list[Computing]]]:
    """A job of `count` ranks on one device."""
    made = [Computing(rank, count, VARIABLES) for rank in range(count)]
    with devices(kernels, 1, chunks, speed) as here:
        here.place(1, made, [0] * count)
        for rank in made:
            rank.load(HOMES, 2 * CHUNK)
        assert [rank.finish() for rank in made] == [0] * count
        yield here, made
        here.leave(1)
    for rank in made:
        rank.close()


def sync(ranks: list[Computing]) -> None:
    for rank in ranks:
        rank.begin(DEVICE_SYNC)
    assert [rank.finish() for rank in ranks] == [0] * len(ranks)


def counts(native: Native, ranks: int) -> tuple[int, int]:
    """Kernels launched, and of these squashed."""
    found = [native.rank_status(1, rank) for rank in range(ranks)]
    assert all(found)
    kernels = sum(each.kernels for each in found if each)
    squashed = sum(each.squashed for each in found if each)
    status = native.status()
    assert (status["kernels"], status["squashed"]) == (kernels, squashed)
    return kernels, squashed


def words(rank: Computing, at: int) -> list[int]:
    return list(struct.unpack(f"<{WORDS}I", rank.read(at, 4 * WORDS)))


def begin_alike(ranks: list[Computing]) -> None:
    for rank in ranks:
        for at in (PARAMETERS, MOMENTS):
            rank.write(at, bytes(range(96)) * 4)
        rank.write(OWN, bytes([rank.rank + 1] * 4 * WORDS))
    sync(ranks)


def train(rank: Computing, step: int) -> None:
    """Forward and backward pass, all-reduce, and an update of parameters and moments."""
    rank.launch("update", OWN, PARAMETERS, WORDS, step)
    rank.launch("scale", GRADIENT, OWN, WORDS, rank.rank)
    rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS)
    rank.launch("update", MOMENTS, GRADIENT, WORDS, 1)
    rank.launch("update", PARAMETERS, MOMENTS, WORDS, 2)


def trained(ranks: int, steps: int) -> tuple[list[int], list[int]]:
    """Parameters and moments, as `train` makes them."""
    p = m = np.frombuffer(bytes(range(96)) * 4, np.uint32)
    own = [np.full(WORDS, 0x01010101 * (rank + 1), np.uint32) for rank in range(ranks)]
    with np.errstate(over="ignore"):
        for step in range(steps):
            own = [each * 5 + p + step for each in own]
            mean = sum((each * 3 + rank for rank, each in enumerate(own)), np.zeros_like(p))
            m = (m * 5 + mean + 1).astype(np.uint32)
            p = (p * 5 + m + 2).astype(np.uint32)
    return p.tolist(), m.tolist()


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_update_runs_once_for_all(kernels: Loader, ranks: int) -> None:
    steps = 8
    with folded(kernels, ranks) as (here, made):
        (native,) = here.natives
        begin_alike(made)
        for step in range(steps):
            for rank in made:
                train(rank, step)
        sync(made)
        launched, squashed = counts(native, ranks)
        assert launched == 4 * steps * ranks
        # Of the first step some memory has yet to be found equal.
        assert squashed >= (ranks - 1) * 2 * (steps - 2)
        for rank in made:
            assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == trained(ranks, steps)
        here.stop(1)


# ---- who goes alone, and who fails -------------------------------------------------------------


@contextmanager
def shared(
    kernels: Loader, count: int, speed: float = 1.0
) -> Iterator[tuple[Native, list[Computing]]]:
    """Ranks whose parameters and moments are shared: they have trained for some steps."""
    with folded(kernels, count, speed=speed) as (here, made):
        begin_alike(made)
        for step in range(STEPS):
            for rank in made:
                train(rank, step)
            sync(made)
        assert counts(here.natives[0], count)[1] > 0
        yield here.natives[0], made


def updated(ranks: int, add: int) -> list[int]:
    p, m = (np.array(each, np.uint32) for each in trained(ranks, STEPS))
    return list((p * 5 + m + add).tolist())


def test_who_comes_to_something_else_goes_alone(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        _, before = counts(native, 2)
        for rank in made:
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, rank.rank)
        sync(made)
        for rank in made:
            assert words(rank, PARAMETERS) == updated(2, rank.rank)
        assert counts(native, 2)[1] == before


def test_who_never_comes_is_not_waited_for(kernels: Loader) -> None:
    with shared(kernels, 3) as (_native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync(made[:1])
        assert words(made[0], PARAMETERS) == updated(3, 7)
        for rank in made[1:]:
            assert words(rank, PARAMETERS) == trained(3, STEPS)[0]
        for rank in made[1:]:  # the others still share
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, 8)
        sync(made[1:])
        for rank in made[1:]:
            assert words(rank, PARAMETERS) == updated(3, 8)


def test_who_frees_is_not_waited_for(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        seq = made[1].free(HOMES[0])
        sync(made)
        until(lambda: made[1].u64(RETIRED) == seq, native)
        assert words(made[0], PARAMETERS) == updated(2, 7)


@pytest.mark.parametrize("how", [CLEAN, CRASHED])
def test_who_ends_is_not_waited_for(kernels: Loader, how: int) -> None:
    with shared(kernels, 2) as (native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        native.rank_exited(1, 1, how)
        sync(made[:1])
        assert words(made[0], PARAMETERS) == updated(2, 7)


def test_a_cut_does_not_wait(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        native.barrier(1, True)
        settle(native, 1, "cut")
        made[1].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        native.barrier(1, False)
        sync(made)
        for rank in made:
            assert words(rank, PARAMETERS) == updated(2, 7)


@pytest.mark.parametrize("ends", [0, 1])
@pytest.mark.parametrize("how", [CLEAN, CRASHED])
def test_a_rank_may_end_while_it_runs_for_another(kernels: Loader, ends: int, how: int) -> None:
    """Whichever of the two it is whose work it was."""
    with shared(kernels, 2, speed=0.0002) as (native, made):
        before = counts(native, 2)[1]
        for rank in made:
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
            rank.begin(DEVICE_SYNC)
        until(lambda: native.status()["squashed"] > before, native)
        native.rank_exited(1, ends, how)
        assert made[1 - ends].finish() == 0
        assert words(made[1 - ends], PARAMETERS) == updated(2, 7)


def test_a_fault_is_everybodys(kernels: Loader) -> None:
    """Of all who take part: they read beyond what there is."""
    with shared(kernels, 3) as (native, made):
        before = counts(native, 3)[1]
        for rank in made:
            rank.launch("update", PARAMETERS, HOMES[-1] + 2 * CHUNK - 64, WORDS, 7)
            rank.begin(DEVICE_SYNC)
        assert [rank.finish() for rank in made] == [ILLEGAL_ADDRESS] * 3
        for rank in made:
            status = native.rank_status(1, rank.rank)
            assert status and status.error == ILLEGAL_ADDRESS and "address" in status.error_text
        assert counts(native, 3)[1] == before + 2


# ---- whatever they do --------------------------------------------------------------------------

Op = tuple[str, ...] | tuple[object, ...]


@dataclass
class Alone:
    """What a rank's memory would hold if it had a device of its own."""

    memory: dict[int, np.ndarray] = field(
        default_factory=lambda: {at: np.zeros(WORDS, np.uint32) for at in BUFFERS}
    )
    counter: int = 0

    def launch(self, name: str, out: int, given: int, count: int, add: int) -> None:
        o, g = self.memory[out][:count], self.memory[given][:count]
        with np.errstate(over="ignore"):
            if name == "scale":
                o[:] = g * np.uint32(3) + np.uint32(add)
            elif name == "double":
                o[:] = g * np.uint32(2) + np.uint32(add)
            elif name == "update":
                o[:] = o * np.uint32(5) + g + np.uint32(add)
            elif name == "tally":
                self.counter += add
                o[0] = self.counter
            elif name == "block":
                o[:] = 96 * 7 + 1
            elif name == "twice":
                o += 1
                g += 1
            else:  # pointer
                o = self.memory[out]
                o[0], o[1] = given & 0xFFFFFFFF, given >> 32
                g[:1] += np.uint32(9)

    def bytes_at(self, at: int) -> np.ndarray:
        return self.memory[at].view(np.uint8)


def do(rank: Computing, alone: Alone, op: Op) -> object:
    """In the model; and what posts it, or for a "read" what is to be read."""
    kind, *rest = op
    match kind:
        case "launch":
            alone.launch(*rest)
            return lambda: rank.launch(*rest)
        case "move":
            to, given, count = rest
            alone.memory[to][:count] = alone.memory[given][:count].copy()  # type: ignore
            return lambda: rank.move(to, given, count)  # type: ignore[arg-type]
        case "fill":
            to, value = rest
            alone.memory[to][:] = value  # type: ignore[index]
            return lambda: rank.fill(to, value, 4, WORDS)  # type: ignore[arg-type]
        case "write":
            to, value = rest
            alone.bytes_at(to)[:] = value  # type: ignore[arg-type]
            return lambda: rank.write(to, bytes([value] * 4 * WORDS))  # type: ignore
        case "free":
            alone.memory[rest[0]][:] = 0  # type: ignore[index]
        case "read":
            return alone.memory[rest[0]].tolist()  # type: ignore[index]
    return None


def some_operation(chance: random.Random) -> Op:
    kind = chance.choices(
        ["launch", "move", "fill", "write", "read", "sync", "free"], [16, 2, 2, 2, 2, 1, 1]
    )[0]
    out, given = chance.choice(BUFFERS[:3] + BUFFERS), chance.choice(BUFFERS)
    match kind:
        case "launch":
            name = chance.choices(
                ["update", "scale", "double", "twice", "tally", "block", "pointer"],
                [8, 4, 2, 2, 1, 1, 1],
            )[0]
            count = 1 if name in ("tally", "pointer") else chance.choice([WORDS, WORDS, 64])
            return ("launch", name, out, given, count, chance.randrange(3))
        case "move":
            return ("move", out, given, chance.choice([WORDS, 64])) if out != given else ("sync",)
        case "fill":
            return ("fill", out, chance.randrange(3))
        case "write":
            return ("write", out, chance.randrange(3))
        case "read" | "free":
            return (kind, out)
    return (kind,)


def phase(chance: random.Random, ranks: int, deviates: float) -> list[list[Op]]:
    """Of each rank; then they average gradients."""
    found: list[list[Op]] = [[] for _ in range(ranks)]
    for _ in range(chance.randrange(1, 10)):
        op = some_operation(chance)
        other = chance.randrange(ranks) if chance.random() < deviates else None
        for rank, ops in enumerate(found):
            if rank != other:
                ops.append(op)
            elif chance.randrange(2):
                ops.append(some_operation(chance))
    return found


def check(truth: bool) -> bool:
    assert truth
    return truth


class Driver:
    """Posts what the ranks do in any order, and waits for what they wait for."""

    def __init__(self, here: Devices, ranks: list[Computing], chance: random.Random):
        self.here, self.ranks, self.chance = here, ranks, chance
        self.alone = [Alone() for _ in ranks]
        self.launches = 0

    def run(self, programs: list[list[tuple[Op, object]]]) -> None:
        waits: list[Callable[[], bool] | None] = [None] * len(self.ranks)
        at = [0] * len(self.ranks)
        deadline = time.monotonic() + 30
        while any(n < len(each) for n, each in zip(at, programs, strict=True)) or any(waits):
            free = [n for n, wait in enumerate(waits) if not wait and at[n] < len(programs[n])]
            if free:
                n = self.chance.choice(free)
                for _ in range(self.chance.randrange(1, 5)):
                    if at[n] < len(programs[n]) and not waits[n]:
                        waits[n] = self.post(self.ranks[n], *programs[n][at[n]])
                        at[n] += 1
            waits = [wait if wait and not wait() else None for wait in waits]
            if all(waits):
                time.sleep(0.0002)
            if any(waits) or free:
                assert time.monotonic() < deadline, self.here.natives[0].dump()

    def post(self, rank: Computing, op: Op, does: object) -> Callable[[], bool] | None:
        """A function that says whether the rank can go on; None: at once."""
        self.launches += op[0] == "launch"
        match op[0]:
            case "sync":
                rank.begin(DEVICE_SYNC)
                return lambda: rank.answered() and rank.finish() == 0
            case "read":
                places = (AT_BULK, AT_ADDRESS)
                rank.begin(COPY, rank.copy(0, op[1], 4 * WORDS, places=places))  # type: ignore
                return lambda: rank.answered() and check(self.found(rank) == does)
            case "free":
                home = next(each for each in HOMES if each + 2 * CHUNK > op[1])  # type: ignore
                seq = rank.free(home)
                return lambda: rank.u64(RETIRED) >= seq and self.renew(rank, home)
            case "allreduce":
                rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS)
            case _:
                does()  # type: ignore[operator]
        return None

    def renew(self, rank: Computing, home: int) -> bool:
        rank.alloc(home, 2 * CHUNK)
        return True

    def found(self, rank: Computing) -> list[int]:
        assert rank.finish() == 0
        return list(struct.unpack_from(f"<{WORDS}I", rank.map, OFF_BULK))

    def plan(self, found: list[list[Op]], averaged: bool) -> list[list[tuple[Op, object]]]:
        programs = [
            [(op, do(rank, alone, op)) for op in ops]
            for rank, alone, ops in zip(self.ranks, self.alone, found, strict=True)
        ]
        if averaged:
            total = sum((each.memory[GRADIENT] for each in self.alone), np.zeros(WORDS, np.uint32))
            for alone, program in zip(self.alone, programs, strict=True):
                alone.memory[GRADIENT][:] = total
                program.append((("allreduce",), None))
        return programs

    def check(self) -> None:
        for rank, alone in zip(self.ranks, self.alone, strict=True):
            for at in BUFFERS:
                assert words(rank, at) == alone.memory[at].tolist(), (rank.rank, hex(at))
            assert rank.read(VARIABLES, 4) == struct.pack("<I", alone.counter)


def images(here: Devices, ranks: list[Computing], stack: ExitStack, cut: int) -> list[Image]:
    here.stop(1)
    assert all(native.job_save(1) for native in here.natives)
    assert {event.text for event in here.saved(cut)} == {""}
    return [
        Image(stack.enter_context(mmap.mmap(rank.image, 0, access=mmap.ACCESS_READ)))
        for rank in ranks
    ]


@pytest.mark.parametrize("seed", range(10))
def test_no_rank_can_tell_that_it_shares(kernels: Loader, seed: int) -> None:
    """With much room or little, deviating often or hardly ever."""
    chance = random.Random(seed)
    count, chunks = chance.choice([2, 3, 4]), chance.choice([16, 30, 128])
    deviates = chance.choice([0.0, 0.05, 0.3])
    cuts = 0
    with folded(kernels, count, chunks) as (here, made):
        driver = Driver(here, made, chance)
        for _ in range(15):
            driver.run(driver.plan(phase(chance, count, deviates), averaged=True))
            if chance.random() < 0.2:
                with ExitStack() as stack:
                    check_equal_versions(images(here, made, stack, cuts))
                here.go_on(1, made)
                cuts += 1
        driver.run(driver.plan(phase(chance, count, deviates), averaged=False))
        sync(made)
        driver.check()
        launched, squashed = counts(here.natives[0], count)
        assert launched == driver.launches
        assert squashed <= launched * (count - 1) // count
        if not deviates:
            assert squashed > 0

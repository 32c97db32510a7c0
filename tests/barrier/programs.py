"""Programs for the simulated job: what the ranks of real jobs do, as lists of records."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from barrier.world import WORLD, Destroy, Group, Init, Record, Round, Sync, Transfer, Work

SECOND = 2


@dataclass(frozen=True)
class Job:
    """A program per rank. period: rounds of a mini-batch, 0 if the tandem need not decide."""

    name: str
    ranks: list[list[Record]]
    period: int = 0


def _data_parallel(r: random.Random, n: int, steps: int) -> Job:
    """Buckets on one or two communicators that span the job, running ahead or not."""
    buckets, two = r.choice([1, 1, 2, 3, 5]), r.random() < 0.5
    sync, together = r.random() < 0.4, r.random() < 0.3
    everyone = tuple(range(n))
    program: list[Record] = [Init(WORLD, everyone)]
    if two:
        program.append(Init(SECOND, everyone))
    for _ in range(steps):
        rounds = [Round(SECOND if two and b % 2 else WORLD, 100 + b) for b in range(buckets)]
        if together and two and buckets > 1:
            program += [Work(), Group((rounds[0], rounds[1]))]
            rounds = rounds[2:]
        for item in rounds:
            program += [Work(), Group((item,))]
        program.append(Sync() if sync else Work())
    return Job("data-parallel", [list(program) for _ in range(n)], buckets)


def _grid(r: random.Random, n: int, steps: int) -> Job:
    """Tensor parallel pairs inside data-parallel groups; the order of the two kinds varies."""
    width = 2 if n % 2 == 0 else 1
    world = r.random() < 0.5
    ranks: list[list[Record]] = []
    for rank in range(n):
        row, column = rank // width, rank % width
        tensor = tuple(range(row * width, row * width + width))
        data = tuple(range(column, n, width))
        program: list[Record] = [Init(WORLD, tuple(range(n)))]
        program.append(Init(10 + row, tensor, parent=WORLD))
        program.append(Init(50 + column, data, parent=WORLD))
        for _ in range(steps):
            for _ in range(2):
                program += [Work(), Group((Round(10 + row, 1),))]
            program.append(Group((Round(50 + column, 2),)))
            if world:
                program += [Group((Round(WORLD, 3),)), Sync()]
        ranks.append(program)
    return Job("grid", ranks)


def _pipeline(r: random.Random, n: int, steps: int) -> Job:
    """Activations down, gradients up, sometimes one all-reduce at the mini-batch's end."""
    micro, reduce = r.choice([1, 2, 3]), r.random() < 0.6
    ranks: list[list[Record]] = []
    for rank in range(n):
        program: list[Record] = [Init(WORLD, tuple(range(n)))]
        for _ in range(steps):
            for _ in range(micro):
                if rank > 0:
                    program.append(Group((Transfer(rank - 1, rank),)))
                program.append(Work())
                if rank < n - 1:
                    program.append(Group((Transfer(rank, rank + 1),)))
            for _ in range(micro):
                if rank < n - 1:
                    program.append(Group((Transfer(rank + 1, rank),)))
                program.append(Work())
                if rank > 0:
                    program.append(Group((Transfer(rank, rank - 1),)))
            program += [Group((Round(WORLD, 5),))] if reduce else [Sync()]
        ranks.append(program)
    return Job("pipeline", ranks)


def _ring(r: random.Random, n: int, steps: int) -> Job:
    """Everyone sends right and receives from the left in one group."""
    ranks: list[list[Record]] = []
    for rank in range(n):
        program: list[Record] = [Init(WORLD, tuple(range(n)))]
        for _ in range(steps):
            if n > 1:
                program.append(
                    Group((Transfer(rank, (rank + 1) % n), Transfer((rank - 1) % n, rank)))
                )
            program.append(Work())
        ranks.append(program)
    return Job("ring", ranks)


def _silent(r: random.Random, n: int, steps: int) -> Job:
    """No communication at all."""
    record: Record = Work()
    return Job("silent", [[record, Sync()] * r.randrange(1, 4 * steps) for _ in range(n)])


def _crossed(r: random.Random, n: int, steps: int) -> Job:
    """Two communicators that span the job, used by every other rank in the other order."""
    first, second = r.choice([1, 2, 4]), r.choice([1, 3])
    ranks: list[list[Record]] = []
    for rank in range(n):
        everyone = tuple(range(n))
        program: list[Record] = [Init(WORLD, everyone), Init(SECOND, everyone)]
        for _ in range(steps):
            a: list[Record] = [Group((Round(WORLD, 1),))] * first
            b: list[Record] = [Group((Round(SECOND, 2),))] * second
            program += a + b if rank % 2 else b + a
        ranks.append(program)
    return Job("crossed", ranks)


def _joining(r: random.Random, n: int, steps: int) -> Job:
    """Communicators made and destroyed in the middle, reached at different times."""
    everyone = tuple(range(n))
    ranks: list[list[Record]] = [[] for _ in range(n)]
    for rank in range(n):
        ranks[rank] += [Work()] * r.randrange(5) + [Init(WORLD, everyone)]
    for step in range(steps):
        members = tuple(sorted(r.sample(range(n), r.randrange(1, n + 1))))
        parent = r.random() < 0.5 and len(members) == n
        for rank in range(n):
            program = ranks[rank]
            program += [Group((Round(WORLD, 1),))] * r.choice([2])
            program += [Work()] * r.randrange(3)
            if rank in members:
                program.append(Init(100 + step, members, parent=WORLD if parent else 0))
                program.append(Group((Round(100 + step, 2),)))
                if r.random() < 0.5:
                    program += [Sync(), Destroy(100 + step)]
    return Job("joining", ranks)


def _leaving(r: random.Random, n: int, steps: int) -> Job:
    """Ranks exit early; the others continue among themselves."""
    everyone = tuple(range(n))
    stay = tuple(range(n - r.randrange(0, n)))
    ranks: list[list[Record]] = []
    for rank in range(n):
        program: list[Record] = [Init(WORLD, everyone)]
        if rank in stay:
            program.append(Init(20, stay))
        for _ in range(max(1, steps // 2)):
            program += [Work(), Group((Round(WORLD, 1),))]
        for _ in range(steps if rank in stay else 0):
            program += [Work(), Group((Round(20, 2),))]
        ranks.append(program)
    return Job("leaving", ranks)


KINDS: dict[str, Callable[[random.Random, int, int], Job]] = {
    "data-parallel": _data_parallel,
    "grid": _grid,
    "pipeline": _pipeline,
    "ring": _ring,
    "silent": _silent,
    "crossed": _crossed,
    "joining": _joining,
    "leaving": _leaving,
}


def make(kind: str, seed: int, ranks: int, steps: int) -> Job:
    return KINDS[kind](random.Random(seed), ranks, steps)

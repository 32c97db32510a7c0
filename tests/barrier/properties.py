"""Properties of every job, placement, order of events and moment of the request."""

from __future__ import annotations

import random
from typing import Any

from barrier.programs import Job, make
from barrier.world import CUT, STEADY, Init, Violation, World

STEPS_MAX = 15_000


def run(world: World, until: Any, what: str, hurry: bool = True) -> None:
    """Steps until `until()`. If nothing can happen any more the caller's clock hurries."""
    hurried = 0
    while not until():
        if world.steps > STEPS_MAX:
            raise Violation(f"{what}: no end")
        if world.step():
            continue
        hurried += 1
        if not (hurry and world.may_hurry) or hurried > 3:
            raise Violation(f"{what}: nothing can happen any more")
        world.hurry()


def _learnt(world: World, job: Job) -> bool:
    want = max(job.period, 2)
    return all(
        world.lib.barrier_window(world.barriers[r.device], r.number) == want for r in world.ranks
    )


def stops_soon(native: tuple[Any, Any], seed: int) -> None:
    """A data-parallel job stops within two mini-batches by the meta-allreduce alone; or, if no
    round was under way, within one, which the ranks that are behind run up to."""
    r = random.Random(seed)
    n = r.randrange(1, 7)
    devices = r.randrange(1, n + 1)
    job = make("data-parallel", seed, n, 60)
    placement = [*range(devices), *(r.randrange(devices) for _ in range(n - devices))]
    r.shuffle(placement)
    world = World(native, job.ranks, placement, devices, seed)
    try:
        after = r.randrange(3 * job.period, 12 * job.period)
        run(
            world,
            lambda: max(k.rounds for k in world.ranks) >= after and _learnt(world, job),
            "before the request",
            hurry=False,
        )
        device = r.randrange(devices)
        if r.random() < 0.4:
            world.request(device)
            _some_steps(world, r.randrange(8))
            world.withdraw(device)
            _some_steps(world, r.randrange(8))
        before = max(k.rounds for k in world.ranks)
        world.request(device)
        run(world, lambda: world.at_cut, "after the request", hurry=False)
        world.check_cut()
        stopped = max(k.rounds for k in world.ranks)
        if stopped > before + (1 if world.catch_up else 2) * job.period:
            raise Violation(f"stopped {stopped - before} rounds after the request")
        world.release(r.randrange(devices))
        run(world, lambda: world.over, "after the release")
    finally:
        world.close()


def _under_way(world: World) -> bool:
    """Has one device offered a round that another has not, and does the coordinator know?"""
    while any(world.queues.values()):
        for device in range(world.devices):
            world.deliver_all(device, 0)
            world.deliver_all(0, device)
    lowest = {min(r.rounds for r in world.ranks if r.device == d) for d in range(world.devices)}
    return len(lowest) > 1


def tandem_decides(native: tuple[Any, Any], seed: int) -> None:
    """A data-parallel job that is asked during a round stops by the meta-allreduce alone, within
    two mini-batches."""
    r = random.Random(seed)
    n = r.randrange(2, 7)
    devices = r.randrange(2, n + 1)
    job = make("data-parallel", seed, n, 60)
    placement = [*range(devices), *(r.randrange(devices) for _ in range(n - devices))]
    world = World(native, job.ranks, placement, devices, seed)
    try:
        after = r.randrange(3 * job.period, 12 * job.period)
        run(
            world,
            lambda: (
                max(k.rounds for k in world.ranks) >= after
                and _learnt(world, job)
                and _under_way(world)
            ),
            "before the request",
            hurry=False,
        )
        before, device = max(k.rounds for k in world.ranks), r.randrange(devices)
        world.request(device)
        world.deliver_all(device, 0)
        run(world, lambda: world.at_cut, "after the request", hurry=False)
        world.check_cut()
        stopped = max(k.rounds for k in world.ranks)
        if stopped > before + 2 * job.period:
            raise Violation(f"stopped {stopped - before} rounds after the request")
        if world.catch_up:
            raise Violation(f"{world.catch_up} rounds after the meta-allreduce had decided")
        world.release(device)
        run(world, lambda: world.over, "after the release")
    finally:
        world.close()


def stops_where_it_stands(native: tuple[Any, Any], seed: int) -> None:
    """Where no round is under way no rank begins one after the request, once all have joined."""
    r = random.Random(seed)
    n = r.randrange(1, 7)
    world = World(native, make("data-parallel", seed, n, 60).ranks, [0] * n, 1, seed)
    try:
        run(world, lambda: all(k.rounds for k in world.ranks), "before the request", hurry=False)
        _some_steps(world, r.randrange(600))
        before = max(k.rounds for k in world.ranks)
        world.request(0)
        world.deliver_all(0, 0)
        run(world, lambda: world.at_cut, "after the request", hurry=False)
        world.check_cut()
        if max(k.rounds for k in world.ranks) != before:
            raise Violation("a round was begun after the request")
        world.release(0)
        run(world, lambda: world.over, "after the release")
    finally:
        world.close()


def _placement(r: random.Random, ranks: int, devices: int) -> list[int]:
    """Any; every device has a rank, mostly."""
    placement = [r.randrange(devices) for _ in range(ranks)]
    if r.random() < 0.9:
        placement[:devices] = range(devices)
        r.shuffle(placement)
    return placement


def _some_steps(world: World, count: int) -> None:
    for _ in range(count):
        world.step()


def always_consistent(native: tuple[Any, Any], kind: str, seed: int, aborts: bool = False) -> None:
    """Requests, repeated, withdrawn, early and late: every cut is one, and the job ends; also
    where ranks abort communicators."""
    r = random.Random(seed)
    n = r.randrange(1, 7)
    devices = r.randrange(1, n + 1)
    world = World(
        native,
        make(kind, seed, n, r.choice([3, 8, 20])).ranks,
        _placement(r, n, devices),
        devices,
        seed,
    )
    if aborts:
        some = [
            (k.number, record.key)
            for k in world.ranks
            for record in k.program
            if isinstance(record, Init)
        ]
        world.aborts = r.sample(some, min(len(some), r.choice([1, 1, 2, 3])))
    # Where the meta-allreduce never decides, the cut vector does so at once.
    world.may_hurry = kind not in ("crossed", "ring", "silent")
    try:
        for _ in range(r.randrange(1, 4)):
            _one_stop(world, r, devices)
        for _ in range(r.randrange(3)):
            _stop_again_at_once(world, r, devices)
        run(world, lambda: world.over or world.at_cut, "at the end")
        while not world.over:  # a request that raced with a release
            world.check_cut()
            _release(world, r.randrange(devices))
            run(world, lambda: world.over or world.at_cut, "at the end")
    finally:
        world.close()


def stops_despite_aborts(native: tuple[Any, Any], kind: str, seed: int) -> None:
    """Some members of a communicator abort it before, after or while the job is requested to stop:
    it stops by itself, and the job ends."""
    r = random.Random(seed)
    n = r.randrange(2, 5)
    devices = r.randrange(1, n + 1)
    world = World(
        native,
        make(kind, seed, n, r.choice([2, 4, 8])).ranks,
        _placement(r, n, devices),
        devices,
        seed,
    )
    world.may_hurry = kind in ("grid", "joining", "leaving")
    inits = [record for k in world.ranks for record in k.program if isinstance(record, Init)]
    comm = r.choice(inits)
    leaving = r.sample(comm.members, r.randrange(1, len(comm.members) + 1))
    try:
        _some_steps(world, r.choice([5, 20, 40, 80, 150]))
        requested = r.randrange(len(leaving) + 1)
        for i in range(len(leaving) + 1):
            if i == requested:
                world.request(r.randrange(devices))
            elif not world.abort_now(leaving[i - (i > requested)], comm.key):
                world.aborts.append((leaving[i - (i > requested)], comm.key))
            _some_steps(world, r.choice([0, 1, 3, 10, 30]))
        run(world, lambda: world.at_cut, "after the request")
        world.check_cut()
        _release(world, r.randrange(devices))
        run(world, lambda: world.over, "after the release")
    finally:
        world.close()


def _settled(world: World, devices: int) -> bool:
    return not any(world.queues.values()) and all(world.state(d) == STEADY for d in range(devices))


def _release(world: World, device: int) -> None:
    world.release(device)
    if world.state(device) == CUT:
        raise Violation("a device that has released the cut still offers to be saved there")
    run(world, lambda: all(world.state(d) != CUT for d in range(world.devices)), "the release")


def _stop_again_at_once(world: World, r: random.Random, devices: int) -> None:
    """A request follows a release that other devices have not heard of: a new cut answers it."""
    world.request(r.randrange(devices))
    run(world, lambda: world.at_cut, "before the release")
    released = world.cuts
    first = r.randrange(devices)
    world.release(first)
    _some_steps(world, r.randrange(10))
    asked = r.randrange(devices)
    if asked != first:  # until device 0 has heard of the release, a request could overtake it
        world.deliver_all(first, 0)
    world.request(asked)
    run(world, lambda: world.state(asked) == CUT, "after a request behind a release")
    if world.cuts == released:
        raise Violation("a device says that it is at the cut that was released")
    run(world, lambda: world.at_cut, "after a request behind a release")
    world.check_cut()
    world.request(r.randrange(devices))  # asked once more there, it is the same cut
    after = world.cuts
    run(world, lambda: world.at_cut, "after a request at the cut")
    if world.cuts != after:
        raise Violation("a request at the cut made another one")
    _release(world, r.randrange(devices))
    run(world, lambda: world.over or _settled(world, devices), "a request taken back")


def _one_stop(world: World, r: random.Random, devices: int) -> None:
    _some_steps(world, r.choice([0, 1, 5, 20, 100, 400]))
    device = r.randrange(devices)
    world.request(device)
    for _ in range(r.choice([0, 0, 1])):
        _some_steps(world, r.randrange(30))
        world.request(r.randrange(devices))
    if r.random() < 0.3:
        _some_steps(world, r.choice([0, 3, 30, 200]))
        world.withdraw(device)
        again = r.random() < 0.4
        _some_steps(world, r.randrange(10) if again else 0)
        if again:
            world.request(device)
        # It may end either way, but it ends: at the cut, or all steady again.
        run(world, lambda: world.at_cut or _settled(world, devices), "after a withdrawal")
        if not world.at_cut and not again:
            return
    run(world, lambda: world.at_cut, "after the request")
    world.check_cut()
    _some_steps(world, 20)  # messages may still arrive; consuming a rank is a violation
    _release(world, r.randrange(devices))

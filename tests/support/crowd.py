"""A simulated fleet of any size with some of everything: jobs start, wait, grow, rest and end."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from rankfold.reconciler.model.desired import Desired, Device, Job, Pool
from support.simulated import Fleet

DEVICES_PER_JOB = 10
KINDS = (("soft", 1 << 30, "8.0"), ("soft", 2 << 30, "9.0"), ("nvidia", 1 << 36, "9.0"))


def crowd(jobs: int) -> Fleet:
    """With ten devices for each job on average. They want a fifth more than there are."""
    pools, left = {}, jobs * DEVICES_PER_JOB
    for number, (kind, memory, cc) in enumerate(KINDS):
        size = left if number == len(KINDS) - 1 else jobs * DEVICES_PER_JOB // len(KINDS)
        left -= size
        names = (f"p{number}/{kind}-{index}" for index in range(size))
        pools[f"p{number}"] = Pool(f"p{number}", tuple(Device(n, kind, memory, cc) for n in names))
    return Fleet(Desired(pools, {f"j{n}": _job(n) for n in range(jobs)}))


def _job(number: int) -> Job:
    gpus = DEVICES_PER_JOB // 2 + number % 15  # 12 on average
    types = ((), ("soft",), ("nvidia",), ("nvidia", "soft"))[number % 4]
    return Job(
        f"j{number}",
        ("true",),
        "/",
        gpus + number % 8,
        gpus,
        device_types=types,
        created=float(number),
    )


def moments(fleet: Fleet) -> Iterator[str]:
    """Leads a fleet through its life; each time it is about to plan, says what happens."""
    yield from _turns(fleet, "start", 5)
    jobs = {}
    for number, job in enumerate(fleet.desired.jobs.values()):
        fewer = replace(job, gpus=max(1, job.gpus // 2))
        wishes = (job, fewer, replace(job, suspend=True), replace(job, cancelled=True), job, fewer)
        jobs[job.name] = wishes[number % len(wishes)]
        if number % 9 == 0 and (job.name, 0) in fleet.ranks:
            fleet.exit(job.name, 0, 1)
    fleet.desired = replace(fleet.desired, jobs=jobs)
    yield from _turns(fleet, "change", 10)
    for name in list(fleet.devices)[::50]:
        fleet.lose(name)
    yield from _turns(fleet, "loss", 5)


def _turns(fleet: Fleet, label: str, count: int) -> Iterator[str]:
    for _ in range(count):
        fleet.now += 1.0
        yield label
        for action in fleet.plan().actions:
            fleet.act(action)  # without `turn`, which checks all devices each time
        fleet.proceed()

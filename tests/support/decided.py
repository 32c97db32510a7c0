"""A fleet in which jobs do at once what the policy decides."""

from __future__ import annotations

from msgspec.structs import astuple, replace

from rankfold.policy.decide import decide
from rankfold.policy.vocabulary import DISTURBING, Decision, Fleet, Group, Job, Rules

GIB = 1 << 30


def job(
    name: str, ranks: int, devices: int, guarantee: int | None = None, created: float = 0.0
) -> Job:
    return Job(
        name, ranks, devices, created, groups=(0,), guarantee=guarantee, rank_memory=GIB, pause=2.0
    )


class World:
    """Devices of some groups, and jobs that do at once what is decided, except that a job gets no
    device that another one had when that was decided, as in a real fleet."""

    def __init__(self, *sizes: int, scheduler: str = "fifo", host_memory: int = 1 << 60):
        self.rules = Rules(100, scheduler)
        self.host_memory = host_memory
        self.members, first = [], 0
        for size in sizes:
            self.members.append(tuple(range(first, first + size)))
            first += size
        self.places: list[tuple[str, str]] = []  # domain and node of each group, if they are known
        self.jobs: dict[str, Job] = {}
        self.drained: frozenset[int] = frozenset()  # positions
        self.now = 0.0

    def __repr__(self) -> str:
        """One line for the rules, and one for each job, with its fields that are not defaults."""
        sizes = [len(each) for each in self.members]
        world = f"World{tuple(sizes)} {self.rules} {self.host_memory=} {self.now=} {self.places}"
        return "\n".join([world, *(f"  {_shown(each)}" for each in self.jobs.values())])

    def add(self, *jobs: Job) -> None:
        self.jobs |= {each.name: each for each in jobs}

    @property
    def own(self) -> dict[str, int]:
        return {name: len(each.own) for name, each in self.jobs.items()}

    def fleet(self) -> Fleet:
        held = {position for each in self.jobs.values() for position in each.own}
        groups = (
            Group(
                tuple(at for at in each if at not in held and at not in self.drained),
                len(each) - len(self.drained.intersection(each)),
                len(self.drained.intersection(each)),
                each,
                *(self.places[number] if self.places else ()),
            )
            for number, each in enumerate(self.members)
        )
        return Fleet(tuple(groups), self.host_memory)

    def decide(self) -> dict[str, Decision]:
        jobs = [self._seen(each) for each in self.jobs.values()]
        return decide(self.fleet(), jobs, self.rules, self.now)

    def _seen(self, job: Job) -> Job:
        """A job as the policy gets it: of its own devices, those that it may keep."""
        if self.drained.isdisjoint(job.own):
            return job
        own = tuple(at for at in job.own if at not in self.drained)
        return replace(job, own=own, drained=len(job.own) - len(own))

    def turn(self) -> bool:
        """Whether something changed."""
        self.now += 1.0
        changed = False
        for name, decision in self.decide().items():
            before = self.jobs[name]
            own = before.own if decision.stays else decision.devices or ()
            if set(own) != set(before.own):
                there = bool(own)
                moved = before.own and decision.cause in DISTURBING
                self.jobs[name] = replace(
                    before,
                    own=own,
                    placed=len(own),
                    on_devices=there,
                    begun=True,
                    since=self.now,
                    disturbed=(*before.disturbed, self.now) if moved else before.disturbed,
                    waits_since=self.now if before.own else before.waits_since,
                    need=max(0, before.world_size - len(own)) * before.rank_memory,
                )
                changed = True
        return changed

    def settle(self) -> None:
        for _ in range(3 * len(self.jobs) + 3):
            if not self.turn():
                return
        raise AssertionError("no fixed point")


def _shown(job: Job) -> str:
    fields = zip(job.__struct_fields__, astuple(job), strict=True)
    unset = replace(Job(job.name, 1, 1, 0.0), name="", world_size=0, devices=0)
    return " ".join(f"{name}={value!r}" for name, value in fields if value != getattr(unset, name))

"""Quotas: which jobs are within theirs, which borrow devices, and which may have none.

Each quota has a number of devices. Its jobs that are to be covered by them are chosen in the order
of precedence and creation; other jobs borrow: they get what is idle, and give it up as soon as a
job within its quota lacks it (precedence.py). Jobs without a quota share the devices that no quota
has. Limits of what a quota borrows and lends are kept whatever is idle.

Among jobs that borrow, of one tier and priority, those go first whose quota has used the least for
its weight. A use counts half as much a day later.

A job that has waited for the longest wait goes before all jobs without a guaranteed fraction, and
keeps the devices that it then gets for a quarter of that time.

All this is found from the jobs that want devices, not from the devices that they have: constant
input reaches a fixed point, and a restarted reconciler decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rankfold.plural import count
from rankfold.policy.fractions import TURNS, demand_of, fraction_of, need_of
from rankfold.policy.precedence import STEPS, precedence_of
from rankfold.policy.sizes import largest, useful
from rankfold.policy.vocabulary import AGED, BORROWS, Decision, Fleet, Job, Quota, Rules

HALF_LIFE_S = 24 * 3600.0  # after which a use counts half
AGED_PART = 4  # a job that waited too long keeps its devices for this part of the longest wait


class Treated(Struct, frozen=True):
    """jobs: as the scheduler treats them. barred: those that may have no device, and why; held: why
    jobs that borrow may have to wait."""

    jobs: list[Job]
    barred: dict[str, str]
    held: dict[str, str]


def treated(fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float) -> Treated:
    """Takes time in proportion to jobs times their logarithm."""
    result = Treated(list(jobs), {}, {})
    if rules.quotas:
        result = _Sharing(fleet, result.jobs, rules).treated()
    if rules.max_wait:
        result.jobs[:] = (
            replace(job, basis=AGED)
            if job.name not in result.barred and is_aged(job, rules, now)
            else job
            for job in result.jobs
        )
    return result


def with_limits(decisions: dict[str, Decision], found: Treated) -> dict[str, Decision]:
    """Decisions that say which jobs wait because of their quotas."""
    for name, why in (found.held | found.barred).items():
        decision = decisions.get(name)
        if decision is not None and decision.outcome == "devices" and not decision.disturbs:
            decisions[name] = replace(decision, limit=why)
    return decisions


def is_aged(job: Job, rules: Rules, now: float) -> bool:
    """Whether a job has waited too long, or got its devices for that reason a while ago."""
    if job.wants != "devices" or job.blocked:
        return False
    began = max(job.created, job.waits_since)
    if not job.on_devices:
        return now - began >= rules.max_wait
    return job.since - began >= rules.max_wait and 0 <= now - job.since < rules.max_wait / AGED_PART


# ---- what each quota has had


def decayed(used: float, devices: int, seconds: float) -> float:
    """Device-seconds of a use that counts half after HALF_LIFE_S: those before, and those of so
    many devices for the last `seconds`."""
    left = math.exp2(-max(0.0, seconds) / HALF_LIFE_S)
    return used * left + devices * (1 - left) * HALF_LIFE_S / math.log(2)


def wakes(rules: Rules) -> float:
    """Seconds in which the order of jobs that borrow does not change by more than a step."""
    weights = [each.weight for each in rules.quotas] + [1.0]
    return HALF_LIFE_S * min(weights) / sum(weights) / TURNS / STEPS


class _Sharing:
    """The quotas of one moment, with what is left of them."""

    def __init__(self, fleet: Fleet, jobs: Sequence[Job], rules: Rules):
        self._jobs, self._rules = jobs, rules
        self._fleet = sum(group.to_come for group in fleet.groups)
        named = sum(each.devices for each in rules.quotas)
        rest = Quota("", max(0, self._fleet - named))
        self._quotas = {each.name: each for each in (*rules.quotas, rest)}
        self._of: dict[str, list[Job]] = {name: [] for name in self._quotas}
        for job in jobs:
            if job.wants == "nothing" or (job.wants == "devices" and not job.blocked):
                self._of[self._quota(job).name].append(job)
        # Each for the devices of a job: within its quota; at most.
        self._covered: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._barred: dict[str, str] = {}

    def treated(self) -> Treated:
        for quota in self._quotas.values():
            self._cover(quota)
        lends = any(each.lend is not None for each in self._quotas.values())
        if lends or any(each.borrow is not None for each in self._quotas.values()):
            self._limit(lends)
        held = {
            job.name: self._why_held(self._quotas[name])
            for name, jobs in self._of.items()
            for job in jobs
            if not self._covered[job.name]
        }
        return Treated([self._treated(job) for job in self._jobs], self._barred, held)

    def _quota(self, job: Job) -> Quota:
        return self._quotas.get(job.quota, self._quotas[""])

    def _treated(self, job: Job) -> Job:
        if job.name not in self._covered:
            return job
        covered = self._covered[job.name]
        most = self._most.get(job.name, job.devices)
        if most < job.devices:
            job = replace(job, devices=most, demand=demand_of(job))
        if covered:
            return replace(job, covered=covered)
        return replace(job, covered=0, basis=BORROWS, behind=self._behind(self._quota(job)))

    def _cover(self, quota: Quota) -> None:
        """Find the devices of each job that are within its quota."""
        left, growing = quota.devices, []
        for job in sorted(self._of[quota.name], key=_order):
            fewest = self._fewest(job)
            self._covered[job.name] = covered = fewest if fewest <= left else 0
            left -= covered
            if covered and job.guarantee is not None:
                growing.append(job)
        for job in growing:
            more = min(left, job.devices - self._covered[job.name])
            self._covered[job.name] += more
            left -= more

    def _fewest(self, job: Job) -> int:
        """The devices that it has to have, to run or for what is guaranteed to it."""
        if job.wants == "nothing":
            return job.placed
        if job.guaranteed is not None and fraction_of(job, self._rules):
            return math.ceil(need_of(job, self._rules))
        return job.devices if job.guarantee is None else max(1, job.guarantee)

    def _limit(self, lends: bool) -> None:
        """Find the devices that each job may have at most, so that no quota borrows or lends too
        many."""
        left: dict[str, float] = {
            name: math.inf if each.borrow is None else each.devices + each.borrow
            for name, each in self._quotas.items()
        }
        lent = math.inf
        kept = 0
        for name, quota in self._quotas.items():
            within = sum(self._covered[job.name] for job in self._of[name])
            left[name] -= within
            kept += max(within, 0 if quota.lend is None else quota.devices - quota.lend)
        if lends:
            lent = self._fleet - kept
        borrowing = [job for jobs in self._of.values() for job in jobs]
        borrowing.sort(key=self._borrows_first)
        for job in borrowing:
            if self._covered[job.name]:
                continue
            quota, fewest = self._quota(job), self._fewest(job)
            if fewest > min(left[quota.name], lent):
                why = self._why_barred(quota, fewest > left[quota.name])
                if job.wants == "devices":
                    self._barred[job.name] = why
                continue
            left[quota.name] -= fewest
            lent -= fewest
        for job in borrowing:
            if job.guarantee is None or job.name in self._barred or job.wants != "devices":
                continue
            name, have = self._quota(job).name, self._covered[job.name] or self._fewest(job)
            more = min(left[name], lent, job.devices - have)
            sizes = useful(job.world_size, max(1, job.guarantee), job.devices)
            self._most[job.name] = most = largest(sizes, have + max(0, int(more))) or have
            left[name] -= most - have if most > have else 0
            lent -= most - have if most > have else 0

    def _borrows_first(self, job: Job) -> tuple[object, ...]:
        """The order in which limited devices are borrowed. A job keeps its place against others
        until they are behind by a turn."""
        tier, priority, guarantee, behind = precedence_of(job)
        behind = self._behind(self._quota(job)) + (STEPS if job.own else 0)
        return (-tier, -priority, not guarantee, -behind, job.created, job.name)

    def _behind(self, quota: Quota) -> int:
        """Steps by which its use, as devices for its weight, is behind; at most 0."""
        devices = quota.used / HALF_LIFE_S * math.log(2) / quota.weight
        weights = sum(each.weight for each in self._quotas.values())
        step = max(1, self._fleet) / weights / TURNS / STEPS
        return -math.floor(devices / step)

    # ---- for people

    def _why_held(self, quota: Quota) -> str:
        if not quota.name:
            return (
                f"it has no quota, and other jobs need the {count(quota.devices, 'device')} that "
                "no quota has: it waits for devices that are idle"
            )
        return (
            f"jobs before it need the {count(quota.devices, 'device')} of its quota {quota.name}: "
            "it waits for devices that are idle"
        )

    def _why_barred(self, quota: Quota, borrows: bool) -> str:
        if borrows:
            devices = count(quota.devices, "device")
            return (
                f"its quota {quota.name} has {devices} and borrows {quota.borrow} at most, and "
                "jobs before it need these"
            )
        return "it is beyond its quota, and others lend no more devices"


def _order(job: Job) -> tuple[object, ...]:
    """Which jobs of a quota are covered first: those to which a fraction is guaranteed already;
    then by precedence and creation."""
    tier, priority, guarantee, behind = precedence_of(job)
    admitted = math.inf if job.guaranteed is None else job.guaranteed.admitted
    return (admitted, -tier, -priority, not guarantee, -behind, job.created, job.name)

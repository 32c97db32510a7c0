"""A scheduler that decides on all jobs at each event, behind the interface of one that follows the
fleet. For policies that only have `decide`, and for tests of those that have both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from rankfold.policy.fractions import admit, counted, fraction_of, need_of, rate_of, wakes
from rankfold.policy.free import Free
from rankfold.policy.incremental import Changes
from rankfold.policy.lending import is_elastic, sizes_of
from rankfold.policy.quotas import AGED_PART, decayed
from rankfold.policy.quotas import wakes as quotas_wake
from rankfold.policy.rates import RETRY_S, slower
from rankfold.policy.vocabulary import (
    BUDGET_S,
    DISTURBING,
    Decision,
    Fleet,
    Group,
    Guaranteed,
    Job,
    Rules,
)
from rankfold.policy.windows import Windows, opens

RULES = Rules(ranks_on_a_device=1 << 30)  # not limited: the memory of devices is not simulated
Decide = Callable[[Fleet, list[Job], float], Mapping[str, Decision]]


class Known:
    """A job, what remained of it and when, and what it had been served until then."""

    __slots__ = (
        "at",
        "computes_at",
        "devices",
        "disturbed",
        "got_at",
        "guaranteed",
        "job",
        "remaining",
        "served",
        "waits_since",
    )

    def __init__(self, job: Job):
        self.job, self.remaining, self.at = job, job.remaining or 0.0, 0.0
        self.devices = job.own
        self.served, self.got_at = job.served, job.since
        self.disturbed = job.disturbed  # when, in the last hour
        self.waits_since = job.waits_since  # when it last had to do without devices that it had
        self.computes_at = -math.inf  # when the pause of its last change is over
        self.guaranteed = job.guaranteed

    def seen(self, now: float) -> Job:
        devices = self.devices
        self._count(now)
        left = self.remaining - (now - self.at) if devices else self.remaining
        return replace(
            self.job,
            own=devices,
            placed=len(devices),
            on_devices=bool(devices),
            begun=self.job.begun or bool(devices),
            remaining=max(0.0, left),
            since=self.got_at,
            served=self.served + (now - self.got_at) * len(devices),
            guaranteed=self.guaranteed,
            waits_since=self.waits_since,
            disturbed=self.disturbed,
        )

    def _count(self, now: float) -> None:
        """Count its progress, in what is guaranteed to it, until `now`."""
        found = self.guaranteed
        if found is None:
            return
        if self.computes_at > found.until:
            found = counted(found, 0.0, min(now, self.computes_at))
        rate = rate_of(found, self.job.world_size, len(self.devices))
        self.guaranteed = counted(found, rate, now)

    def admit(self, admitted: bool | None, rules: Rules, now: float) -> None:
        if not admitted:
            self.guaranteed = None
        elif self.guaranteed is None:
            self.guaranteed = admit(self.job, rules, now)

    def end(self, now: float) -> Guaranteed | None:
        self._count(now)
        return self.guaranteed

    def place(self, devices: tuple[int, ...], now: float) -> None:
        self.served += (now - self.got_at) * len(self.devices)
        if self.devices:
            self.waits_since = now
        self.devices, self.got_at = devices, now
        self.job = replace(self.job, begun=True)


def _recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - at < BUDGET_S)


class Shares:
    """The device-seconds that the jobs of each quota have had. now: seconds, when the rules' uses
    hold."""

    def __init__(self, rules: Rules, now: float = 0.0):
        self._quotas = {quota.name: quota for quota in rules.quotas}
        self._devices = dict.fromkeys(self._quotas, 0)
        self._until = now

    def change(self, job: Job, devices: int, now: float) -> None:
        """A job gets so many devices more from now on."""
        self._count(now)
        if job.quota in self._devices:
            self._devices[job.quota] += devices

    def seen(self, rules: Rules, now: float) -> Rules:
        """The rules with what has been used until now."""
        self._count(now)
        return replace(rules, quotas=tuple(self._quotas.values()))

    def _count(self, now: float) -> None:
        seconds, self._until = now - self._until, now
        for name, quota in self._quotas.items():
            used = decayed(quota.used, self._devices[name], seconds)
            self._quotas[name] = replace(quota, used=used)


class _Rest:
    """The devices that are left while each job has all that it could use, and its fraction. If they
    suffice for new jobs, these are decided on as if there were no others."""

    def __init__(self, fleet: Fleet, known: Iterable[Known]):
        self._free = Free(fleet.groups)
        self._left = [float(group.to_come) for group in fleet.groups]
        taken: set[int] = set()
        for each in known:
            taken.update(each.devices)
            self.admit(each, -1)
        self._free.remove(taken)

    def admit(self, known: Known, sign: int) -> None:
        """Add what an admitted job needs for its fraction; -1: subtract it."""
        if known.guaranteed is not None:
            self._left[known.job.groups[0]] += sign * known.guaranteed.need

    def give_back(self, known: Known) -> None:
        self._free.put(known.job.groups[0], known.devices)
        self.admit(known, 1)

    def take(self, job: Job, devices: int) -> None:
        self._free.take(job.groups, devices)

    def fleet(self, jobs: Iterable[Job], rules: Rules) -> Fleet | None:
        """As many devices as these jobs could use; None if there are too few, or may be too few for
        their fractions. Of those that are left, these are the ones that would be given to them."""
        devices, needs = [0] * len(self._left), [0.0] * len(self._left)
        for job in jobs:
            devices[job.groups[0]] += job.devices
            needs[job.groups[0]] += need_of(job, rules) if fraction_of(job, rules) else 0.0
        groups = []
        for at, number in enumerate(devices):
            left = math.floor(self._left[at])
            if number > self._free.count([at]) or (needs[at] and needs[at] + 1 > left):
                return None
            groups.append(Group(self._free.first(at, number), left))
        return Fleet(tuple(groups), 0)


def _has_all(job: Job, decision: Decision) -> bool:
    """Whether a job could use no more than it gets."""
    most = sizes_of(job)[-1] if is_elastic(job) else job.devices
    return len(decision.devices or ()) >= most and decision.admitted is not False


class Whole:
    """Takes time in proportion to jobs and devices at each event. fleet: all devices are free, also
    those that jobs have when they arrive; these jobs are in `shares` already. alone: jobs arrive
    without devices, each for one group, and have no influence on others while all have what they
    could use: then such events take no time for the others. windows: when jobs move so that nodes
    and domains have no job, in seconds since a midnight."""

    def __init__(
        self,
        fleet: Fleet,
        decide: Decide,
        rules: Rules = RULES,
        shares: Shares | None = None,
        alone: bool = False,
        windows: Windows = (),
    ):
        self._fleet, self._decide, self._rules = fleet, decide, rules
        self._shares = shares or Shares(rules)
        self._known: dict[str, Known] = {}
        self._new: dict[str, Known] = {}  # since the last decision
        self._alone = alone and not (rules.quotas or rules.max_wait)
        self._rest: _Rest | None = None
        self._windows = windows
        self._moved: list[Known] = []  # by the last decision, in a window

    def arrive(self, job: Job) -> None:
        self._known[job.name] = self._new[job.name] = Known(job)

    def end(self, name: str, now: float) -> Guaranteed | None:
        known = self._known.pop(name)
        self._shares.change(known.job, -len(known.devices), now)
        guaranteed = known.end(now)
        if self._new.pop(name, None) is None and self._rest is not None:
            self._rest.give_back(known)
        return guaranteed

    def changes(self, now: float) -> Changes:
        new, self._new = self._new, {}
        if self._rest is not None:
            if not new:
                return {}
            jobs = [known.seen(now) for known in new.values()]
            fleet = self._rest.fleet(jobs, self._rules)
            decisions = self._decide(fleet, jobs, now) if fleet else {}
            if fleet and all(_has_all(job, decisions[job.name]) for job in jobs):
                for known in new.values():
                    self._rest.take(known.job, len(decisions[known.job.name].devices or ()))
                changes = self._carry_out(decisions, now)
                for known in new.values():
                    self._rest.admit(known, -1)
                return changes
            self._rest = None
        jobs, decisions = self._decide_on(now)
        changes = self._carry_out(decisions, now)
        if self._alone and len(jobs) == len(self._known):
            if all(_has_all(job, decisions[job.name]) for job in jobs):
                self._rest = _Rest(self._fleet, self._known.values())
        return changes

    def _decide_on(self, now: float) -> tuple[list[Job], Mapping[str, Decision]]:
        """The jobs that may change, and the decisions on them."""
        jobs = [known.seen(now) for known in self._known.values()]
        return jobs, self._decide(self._fleet, jobs, now)

    def _awake(self) -> Iterable[Known]:
        """The jobs for which something may be decided although none arrives or ends."""
        return self._known.values()

    def _carry_out(self, decisions: Mapping[str, Decision], now: float) -> Changes:
        changes: Changes = {}
        self._moved = []
        for name, decision in decisions.items():
            known = self._known[name]
            known.admit(decision.admitted, self._rules, now)
            if decision.note != known.job.note:
                known.job = replace(known.job, note=decision.note)
            devices = known.devices if decision.stays else decision.devices or ()
            if devices != known.devices:
                changes[name] = decision
                self._shares.change(known.job, len(devices) - len(known.devices), now)
                if known.devices and decision.cause in DISTURBING:
                    known.disturbed = (*_recent(known.disturbed, now), now)
                known.place(devices, now)
                if self._windows and decision.cause == "defragmentation":
                    self._moved.append(known)
        return changes

    def wakes(self, now: float) -> float:
        if self._rest is not None:
            return math.inf
        jobs = (
            replace(known.job, own=known.devices, guaranteed=known.guaranteed)
            for known in self._awake()
            if known.guaranteed is not None
        )
        turn = now + wakes(jobs, self._rules) if any(self._rules.fractions) else math.inf
        if self._rules.quotas and any(not known.devices for known in self._known.values()):
            turn = min(turn, now + quotas_wake(self._rules))
        if self._windows and any(known.devices for known in self._known.values()):
            turn = min(turn, opens(self._windows, now))
        if self._moved:  # then the next ones may move
            turn = min(turn, max(now, *(known.computes_at for known in self._moved)))
        ends = (at for known in self._awake() for at in self._ends(known, now))
        return min(turn, min(ends, default=math.inf))

    def _ends(self, known: Known, now: float) -> Iterator[float]:
        """When the minimum run time and the growth delay of a job end, or its preemption delay and
        its longest wait, or when it may be disturbed again, or grow again although it was slower
        on more devices."""
        rules, began = self._rules, max(known.job.created, known.waits_since)
        if (rate := slower(known.job.rates, now)) is not None:
            yield math.nextafter(rate.at + RETRY_S, math.inf)
        if not known.devices:
            for seconds in (rules.preemption_delay, rules.max_wait):
                end = began + seconds
                while end - began < seconds:  # rounded down
                    end = math.nextafter(end, math.inf)
                if end > now:
                    yield end
        if known.devices:
            if any(each is not None for each in rules.disturbances):
                for at in _recent(known.disturbed, now):
                    end = at + BUDGET_S
                    while end - at < BUDGET_S:  # rounded down
                        end = math.nextafter(end, math.inf)
                    yield end
            elastic = known.job.guarantee is not None
            aged = rules.max_wait / AGED_PART if known.got_at - began >= rules.max_wait else 0.0
            for seconds in (known.job.min_runtime, rules.growth_delay if elastic else 0.0, aged):
                end = known.got_at + seconds
                while end - known.got_at < seconds:  # rounded down
                    end = math.nextafter(end, math.inf)
                if end > now:
                    yield end

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        known = self._known[name]
        known.remaining, known.at, known.computes_at = remaining, now, now + pause

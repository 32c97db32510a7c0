"""The planner's side of the allocation: what the policy (policy/) decides on, and for each job the
target, or the reason why it has none, that follows from its decision.

Runs once per plan, before the steps towards the targets.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from rankfold.policy import vocabulary as policy
from rankfold.policy.decide import decide
from rankfold.reconciler.model.desired import Desired, Job
from rankfold.reconciler.model.fitting import Group, Groups, may_use
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.model.rules import rules_of
from rankfold.reconciler.model.states import ON_DEVICES
from rankfold.reconciler.plan.grants import granted_at, is_late
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.plan.memory import RANKS_ON_A_DEVICE, HostMemory, in_memory, recorded_need
from rankfold.reconciler.plan.placement import assign
from rankfold.reconciler.wording import count, first_few

if TYPE_CHECKING:
    from rankfold.reconciler.model.history import History


class Allocation:
    """The devices of every job.

    targets: placement that each job should have now (() for none).
    waiting: why a job does not have what it requests.
    degraded: the same, for a job that continues with fewer devices meanwhile.
    purposes: tier, cause and quota of each new placement, as in `Record.usage`.
    reasons: why the number of a job's devices changes, unless its spec says so.
    draining: jobs that leave drained devices when others have made way: to how many devices, and
        why.
    guaranteed: changes of `Record.guaranteed`.
    grants: changes of `Record.granted_at`.
    queue: the place of each job that waits without devices, 1 for the first.
    unguaranteed: jobs to which the fraction of their tier is not guaranteed.
    fleet, jobs, rules: the input of the policy.
    """

    def __init__(self, index: Index, now: float):
        self.index = index
        self.groups = Groups(index.for_jobs.values())
        self.memory = HostMemory(index, self.groups)
        self.targets: dict[str, tuple[str, ...]] = {}
        self.waiting: dict[str, Condition] = {}
        self.degraded: dict[str, Condition] = {}
        self.purposes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.draining: dict[str, tuple[int, str]] = {}
        self.guaranteed: dict[str, policy.Guaranteed | None] = {}
        self.unguaranteed: set[str] = set()
        self.queue: dict[str, int] = {}
        self._drained = {name for name in index.names if index.is_drained(name)}
        self._bad = [self._bad_of(group) for group in self.groups.all]
        self.fleet = fleet = policy.Fleet(
            tuple(
                policy.Group(
                    self._free_of(group),
                    len(self._to_come(group)),
                    len(bad),
                    tuple(group.positions),
                    group.device.domain,
                    group.device.node,
                    self._coming(group) if self._drained else 0,
                )
                for group, bad in zip(self.groups.all, self._bad, strict=True)
            ),
            index.observed.host_memory,
        )
        self.rules = rules = rules_of(
            index.desired,
            RANKS_ON_A_DEVICE,
            self._used(now) if index.desired.quotas else {},
            index.observed.minute,
        )
        self._now = now
        self._history = known_history(index.records, index.observed, index.desired)
        self.jobs = jobs = self._jobs()
        decisions = decide(fleet, jobs, rules, now)
        for name, decision in decisions.items():
            self._carry_out(index.desired.jobs[name], index.records[name], decision)
        self.grants: dict[str, float] = {}
        for name, record in index.records.items():
            at = granted_at(index, record, self.targets.get(name), now)
            if at is not None:
                self.grants[name] = at
        if any(rules.fractions) or any(each.guaranteed for each in index.records.values()):
            self._admit(jobs, decisions)

    def _used(self, now: float) -> dict[str, float]:
        """Device-seconds that the jobs of each quota have had, with those that have ended."""
        used: dict[str, float] = {}
        for name, job in self.index.desired.jobs.items():
            if job.quota and (record := self.index.records.get(name)) is not None:
                used[job.quota] = used.get(job.quota, 0.0) + record.recent_so_far(now)
        return used

    def _admit(self, jobs: list[policy.Job], decisions: Mapping[str, policy.Decision]) -> None:
        from rankfold.policy.fractions import admit  # here: most fleets guarantee none

        for job in jobs:
            decision, had = decisions.get(job.name), self.index.records[job.name].guaranteed
            if decision is None:  # it ends
                continue
            if decision.admitted and job.guaranteed is None:
                self.guaranteed[job.name] = admit(job, self.rules, self._now)
            elif not decision.admitted and had is not None:
                self.guaranteed[job.name] = None
            if decision.admitted is False and job.wants == "devices":
                self.unguaranteed.add(job.name)

    def memory_allows(self, job: Job, record: Record, devices: int) -> bool:
        """Whether a job may be folded onto this many devices; if not, it waits, with the reason."""
        objection = self.memory.objection(job, record, devices)
        if objection:
            self.waiting[job.name] = objection
        return objection is None

    def _set_target(self, job: Job, record: Record, target: tuple[str, ...]) -> None:
        self.targets[job.name] = target
        self.memory.note_target(job, record, target)

    # ---- what the policy decides on

    def _jobs(self) -> list[policy.Job]:
        """The jobs that want devices, and those that end but may need host memory still."""
        jobs: list[policy.Job] = []
        for name in self.index.order:
            job, record = self.index.desired.jobs.get(name), self.index.records[name]
            need = recorded_need(record)
            if job is None or record.step == "ended" or record.ending or job.cancelled:
                if need:
                    jobs.append(policy.Job(name, 0, 0, 0.0, wants="end", need=need))
                continue
            wants: policy.Wants = "devices"
            if job.suspended:
                wants = "none"
            elif name in self.index.silent:
                wants = "nothing"
            jobs.append(self._policy_job(job, record, wants, need))
        return jobs

    def _policy_job(self, job: Job, record: Record, wants: policy.Wants, need: int) -> policy.Job:
        """A job as the policy sees it."""
        devices = dict.fromkeys(record.placement)
        if wants == "devices":
            own = [d for d in devices if self._keeps(d, job, record)]
            on_devices = record.step in ON_DEVICES
        else:
            own = [d for d in devices if d in self.index.position]
            on_devices = bool(self.index.holds[job.name])
        return policy.Job(
            name=job.name,
            world_size=job.world_size,
            devices=job.gpus,
            created=job.created,
            groups=self.groups.of_one_kind(job, record),
            own=tuple(self.index.position[device] for device in own),
            placed=len(devices),
            wants=wants,
            on_devices=on_devices,
            begun=record.step != "new",
            shrinks=record.fixed is not None and not keeps_its_number(record),
            blocked=record.error_permanent,
            late=is_late(record, self._now),
            rank_memory=self.groups.virtual(job, record)["memory_bytes"],
            in_memory=in_memory(record),
            need=need,
            guarantee=job.gpus_min,
            since=record.placed_since or 0.0,
            tier=job.tier,
            priority=job.priority,
            min_runtime=job.min_runtime_s,
            pause=record.pause_s,
            waits_since=record.rested_at,
            demand=job.demand or 0,
            guaranteed=self._guaranteed(job, record),
            serving=job.service is not None,
            quota=job.quota,
            disturbed=record.disturbed,
            rates=record.rates,
            history=self._history_of(job, record),
            locality=job.locality,
            drained=sum(map(self.index.is_drained, devices)) if wants == "devices" else 0,
        )

    def _history_of(self, job: Job, record: Record) -> tuple[policy.Rate, ...]:
        """The rates of other jobs with its program, on the type of device that it gets."""
        if self._history is None:
            return ()
        return self._history.of(job, record, self.groups.kind(job, record))

    def _guaranteed(self, job: Job, record: Record) -> policy.Guaranteed | None:
        """The fraction that is guaranteed to a job, and its progress until now; None if another
        fraction is due to it: it has to be admitted again."""
        found = record.guaranteed_so_far(self._now)
        if found is None:
            return None
        rule = self.index.desired.tiers.get(job.tier)
        now = (found.fraction, found.period, found.demand)
        if rule is None or now != (rule.fraction, rule.period_s, job.demand or job.gpus):
            return None
        return found

    def _keeps(self, device: str, job: Job, record: Record) -> bool:
        if self.index.is_drained(device):
            return False
        if device in self.index.holds[job.name]:  # even if its proxy is slow or to be replaced
            wanted = self.index.for_jobs.get(device)
            return wanted is not None and may_use(wanted, job, record)
        return self.index.is_eligible(device, job, record) and self.index.is_free(device)

    def _free_of(self, group: Group) -> tuple[int, ...]:
        """Positions of a group's devices that may be given to any job."""
        index, names = self.index, self.index.names
        return tuple(
            position
            for position in group.positions
            if index.is_as_described(names[position])
            and index.is_free(names[position])
            and not index.is_drained(names[position])
        )

    def fleet_to_come(self) -> policy.Fleet:
        """The fleet if all devices were free that come without a person's help. Host memory is not
        limited."""
        groups = tuple(
            replace(known, free=tuple(self._to_come(group)))
            for known, group in zip(self.fleet.groups, self.groups.all, strict=True)
        )
        return replace(self.fleet, groups=groups, host_memory=1 << 62)

    def _to_come(self, group: Group) -> list[int]:
        """Positions of the devices of a group that a job could have if all other jobs left. Devices
        that do not answer, do not start, are drained, or are held by a job to which no request can
        be sent stay away until a person acts."""
        names = self.index.names
        return [
            position
            for position in group.positions
            if names[position] not in self._unreachable
            and names[position] not in self.index.observed.failing
            and not self.index.hangs(names[position])
            and not self.index.is_drained(names[position])
        ]

    def _coming(self, group: Group) -> int:
        """How many devices of a group no job has, and are not free yet."""
        names, free = self.index.names, set(self._free_of(group))
        placed = {device for each in self.index.records.values() for device in each.placement}
        return sum(
            position not in free and names[position] not in placed
            for position in self._to_come(group)
        )

    def _bad_of(self, group: Group) -> list[str]:
        """Drained devices of a group, and bad ones that no job holds. A bad device that a job still
        holds is not included before the job has released it."""
        index, failing = self.index, self.index.observed.failing
        if not failing and not self._drained:
            return []
        names = (index.names[position] for position in group.positions)
        return [n for n in names if n in self._drained or (n in failing and n not in index.held)]

    @functools.cached_property
    def _unreachable(self) -> frozenset[str]:
        """Devices of jobs to which no request can be sent."""
        records = (self.index.records[name] for name in self.index.silent)
        return frozenset(device for record in records for device in record.placement)

    # ---- what follows from a decision

    def _carry_out(self, job: Job, record: Record, decision: policy.Decision) -> None:
        if decision.position:
            self.queue[job.name] = decision.position
        if decision.stays:
            self._set_target(job, record, record.placement)
            if decision.disturbs and any(map(self.index.is_drained, record.placement)):
                self.draining[job.name] = (job.least, f"drain: {decision.reason}")
        elif decision.devices == ():
            self._set_target(job, record, ())
        elif decision.devices is not None:
            names = tuple(self.index.names[position] for position in decision.devices)
            self._set_target(job, record, assign(job.world_size, names))
        if decision.cause:
            purpose = (job.tier, decision.cause, job.quota)
            self.purposes[job.name] = "/".join(filter(None, purpose))
        if decision.cause and decision.reason:
            self.reasons[job.name] = f"{decision.cause}: {decision.reason}"
        match decision.outcome:
            case "granted":
                return
            case "devices":
                most = self._most(job, record)
                by_hand = bool(self._bad_for(job, record)) and keeps_its_number(record)
                self._wait_for_devices(job, decision, most, by_hand)
            case "memory":
                self._wait_for_memory(job, record, decision)
            case "fewer":
                bad = self._bad_for(job, record)
                self.degraded[job.name] = self._degraded_condition(decision.number, job, bad)
            case _:
                assert_never(decision.outcome)

    def _most(self, job: Job, record: Record) -> int:
        """The devices that a job could ever have."""
        if job.locality != "any":
            return self.groups.most(job, record)
        return self.groups.count(job, record).get(self.groups.kind(job, record), 0)

    def _wait_for_memory(self, job: Job, record: Record, decision: policy.Decision) -> None:
        objection = self.memory.refusal(job, record, decision.number, decision.others)
        if decision.number < job.gpus and not job.elastic:
            why = self._why_bad(self._bad_for(job, record))
            message = f"{why}; with fewer devices, {objection.message}"
            objection = replace(objection, message=message)
        self.waiting[job.name] = objection

    def _bad_for(self, job: Job, record: Record) -> list[str]:
        """Bad and drained devices that a job could use if they worked."""
        return [name for group in self.groups.of_one_kind(job, record) for name in self._bad[group]]

    @functools.cached_property
    def _down(self) -> str:
        """Names of devices that are not up yet, for the message of each waiting job."""
        return first_few([device for device in self.index.devices if not self.index.is_up(device)])

    def _why_bad(self, bad: list[str]) -> str:
        if drained := [name for name in bad if name in self._drained]:
            bad = [name for name in bad if name not in self._drained]
            words = f"{first_few(drained)} {'is' if len(drained) == 1 else 'are'} drained"
            return f"{words}, and {self._why_bad(bad)}" if bad else words
        last = f" ({words})" if (words := self.index.observed.failing[bad[0]]) else ""
        ends = "its proxy exits whenever it is" if len(bad) == 1 else "their proxies exit whenever"
        return f"{first_few(bad)} went bad: {ends} started{last}"

    def _degraded_condition(self, there: int, job: Job, bad: list[str]) -> Condition:
        message = (
            f"it continues on {there} of {count(job.gpus, 'device')}, because "
            f"{self._why_bad(bad)}. It returns to {job.gpus} when they are back: "
        )
        if all(name in self._drained for name in bad):
            message += f"take them out of drain, or set gpus to {there}"
            return Condition("Degraded", "True", "DevicesDrained", message)
        message += f"repair the bad ones, or set gpus to {there}"
        return Condition("Degraded", "True", "DevicesBad", message)

    def _wait_for_devices(
        self, job: Job, decision: policy.Decision, most: int, by_hand: bool
    ) -> None:
        """most: devices that the job could ever have; by_hand: fewer would suffice, but only a
        person may request that."""
        kind = " or ".join(job.device_types) or "any kind"
        if job.locality != "any":
            kind += f" in one {job.locality}"
        wanted = count(job.least, "device")
        if decision.disturbs:  # others give up devices for it, or it for others
            message = decision.reason
            self.waiting[job.name] = Condition("Progressing", "True", "WaitingForDevices", message)
        elif most < job.least:
            message = f"needs {wanted} of {kind}; the pools have {most} that fit it"
            self.waiting[job.name] = Condition("Stalled", "True", "NotEnoughDevices", message)
        elif self._down:
            message = f"needs {wanted} of {kind}; not up yet: {self._down}"
            if by_hand:
                message += (
                    ". On fewer devices its bits may differ (D0): set gpus to continue on fewer"
                )
            self.waiting[job.name] = Condition("Progressing", "True", "WaitingForProxies", message)
        else:
            there = "free for it now" if job.locality == "any" else "most that are free for it"
            message = f"needs {wanted} of {kind}; {there}: {decision.free}"
            if drained := [
                n for n in self._bad_for(job, self.index.records[job.name]) if n in self._drained
            ]:
                message += f"; drained: {first_few(drained)}"
            reason = "WaitingForDevices"
            if decision.limit:
                message, reason = f"{message}; {decision.limit}", "BeyondQuota"
            self.waiting[job.name] = Condition("Progressing", "True", reason, message)


def known_history(
    records: Mapping[str, Record], observed: Observed, desired: Desired
) -> History | None:
    """The rates of all jobs; None if there are none."""
    if not observed.measured and not any(each.rates for each in records.values()):
        return None
    from rankfold.reconciler.model.history import History  # here: most commands start faster

    return History(records.values(), observed.measured, desired.devices().values())


def keeps_its_number(record: Record) -> bool:
    """Whether a job has begun whose bits depend on the number of its devices, so that only a person
    may change it."""
    return record.fixed is not None and record.fixed.determinism == "D0"

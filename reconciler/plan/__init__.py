"""Desired + recorded + observed → the next actions. Pure: no I/O, no clock except `now`.

Called by the loop before `act`, and by `plan` and `status` to show what it would do. It is
level-triggered: it considers only the present state, never what changed, and returns at most the
next step of each job; the loop observes again after every step. A step that was done completely or
partly is requested again (every operation is idempotent). Its rules:

- A device serves one job at a time, and is given to another only when it is *seen* free.
- Nothing leaves a device except at a consistent cut, unless the job has ended.
- A job that cannot be placed, or cannot grow, waits with a condition that gives the reason. It has
  a claim on devices that become free, before later jobs, as long as enough devices can become
  free without a person's help.
- Subjects of actions in flight are left alone: one action at a time for each subject.
- While one of a job's proxies or launchers does not answer, the job is only requested to continue.

allocation.py decides which job gets which devices, steps.py how a job gets there. Both use
index.py, so that a plan takes time in proportion to the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from rankfold.policy.vocabulary import Guaranteed
from rankfold.reconciler.actions import Action, subject
from rankfold.reconciler.model.desired import Desired
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.plan import proxies
from rankfold.reconciler.plan.allocation import Allocation
from rankfold.reconciler.plan.conditions import conditions, delayed
from rankfold.reconciler.plan.ending import or_restart
from rankfold.reconciler.plan.grants import is_late
from rankfold.reconciler.plan.index import Index, as_described
from rankfold.reconciler.plan.steps import Steps

__all__ = ["Plan", "assume_fleet", "delayed", "or_restart", "plan"]


class Plan(Struct, frozen=True):
    """The next actions, and the conditions of every job.

    targets: placement that each job should have now (() for none).
    converged: jobs that are as desired.
    degraded: jobs that run as well as they can, on fewer devices than desired.
    causes: why the policy changes the devices of jobs; reasons: the same for people.
    draining: jobs that leave drained devices when others have made way: to how many devices, and
        why.
    guaranteed: changes of `Record.guaranteed`: jobs to which a fraction is guaranteed from now on,
        or no longer.
    queue: the place of each job that waits without devices, 1 for the first.
    grants: changes of `Record.granted_at`.
    """

    actions: tuple[Action, ...] = ()
    conditions: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    converged: frozenset[str] = frozenset()
    degraded: frozenset[str] = frozenset()
    causes: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    draining: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    guaranteed: Mapping[str, Guaranteed | None] = field(default_factory=dict)
    queue: Mapping[str, int] = field(default_factory=dict)
    grants: Mapping[str, float] = field(default_factory=dict)
    fleet_ready: bool = True  # every desired device answers, and there is no other one


def plan(
    desired: Desired,
    records: Mapping[str, Record],
    observed: Observed,
    now: float,
    in_flight: frozenset[str] = frozenset(),
) -> Plan:
    """Plan. in_flight: subjects of the actions that have begun and have not ended."""
    index = Index(desired, records, observed, in_flight)
    of_proxies, fleet_ready = proxies.tend(index)
    allocation = Allocation(index, now)
    steps = Steps(index, allocation, now)
    converged = frozenset(steps.converged - in_flight)
    actions = (each for each in (*of_proxies, *steps.actions) if subject(each) not in in_flight)
    waiting = allocation.degraded | allocation.waiting
    conditions_of = {
        name: conditions(
            index,
            name,
            waiting,
            converged,
            allocation.reasons,
            allocation.unguaranteed,
            is_late(index.records[name], now),
        )
        for name in desired.jobs
    }
    return Plan(
        tuple(actions),
        conditions_of,
        allocation.targets,
        converged,
        frozenset(steps.degraded - in_flight),
        {name: purpose.split("/")[1] for name, purpose in allocation.purposes.items()},
        allocation.reasons,
        allocation.draining,
        allocation.guaranteed,
        allocation.queue,
        allocation.grants,
        fleet_ready,
    )


def assume_fleet(desired: Desired, observed: Observed) -> Observed:
    """The observed state if every desired device that is not known to be bad were up: `rankfold
    plan` shows where jobs would go then."""
    devices = dict(observed.devices)
    for name, device in desired.devices().items():
        seen = devices.get(name)
        if (seen is None or not seen.ready) and name not in observed.failing:
            devices[name] = as_described(device)
    return replace(observed, devices=devices)

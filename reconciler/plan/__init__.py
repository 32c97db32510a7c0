"""Desired + recorded + observed → the next actions. Pure: no I/O, no clock but `now`.

Called by the daemon's loop before `act`, by `plan` and `status` to say what they would do. It is
level-triggered: it looks only at what is, never at what changed, and gives at most the next step
of each job; the loop observes again after every step. A step that was done already, or half, is
simply asked for again (every operation is idempotent). The rules it keeps:

- a device serves one job at a time, and is given away only when it is *seen* free;
- nothing leaves a device but at a consistent cut, unless the job has ended;
- what cannot be placed, or cannot grow, waits, and says why; it has a claim on what becomes free
  before those behind it, as long as what it misses can come by itself;
- what is in flight is left alone: one action at a time for each subject;
- while one of its proxies or launchers does not answer, nothing is asked of a job but to go on.

Who gets which devices is decided in allocation.py, what brings one job there in steps.py. Both ask
index.py, so that a plan takes time in proportion to the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rankfold.reconciler.actions import Action, subject
from rankfold.reconciler.model.desired import Desired
from rankfold.reconciler.model.observed import Observed, SeenDevice
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.plan import proxies
from rankfold.reconciler.plan.allocation import Allocation
from rankfold.reconciler.plan.conditions import conditions, delayed
from rankfold.reconciler.plan.ending import or_restart
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.plan.steps import Steps

__all__ = ["Plan", "assume_fleet", "delayed", "or_restart", "plan"]


@dataclass(frozen=True)
class Plan:
    """What to do next, and what to say about every job.

    targets: placement each job should have now (() for none); converged: jobs that are as desired;
    degraded: jobs that run as well as they can, on fewer devices than is desired.
    """

    actions: tuple[Action, ...] = ()
    conditions: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    converged: frozenset[str] = frozenset()
    degraded: frozenset[str] = frozenset()
    fleet_ready: bool = True  # every desired device answers, no other one is there


def plan(
    desired: Desired,
    records: Mapping[str, Record],
    observed: Observed,
    now: float,
    in_flight: frozenset[str] = frozenset(),
) -> Plan:
    """in_flight: subjects of the actions that have begun and are not over."""
    index = Index(desired, records, observed, in_flight)
    of_proxies, fleet_ready = proxies.tend(index)
    allocation = Allocation(index)
    steps = Steps(index, allocation, now)
    converged = frozenset(steps.converged - in_flight)
    actions = (each for each in (*of_proxies, *steps.actions) if subject(each) not in in_flight)
    waiting = allocation.degraded | allocation.waiting
    told = {name: conditions(index, name, waiting, converged) for name in desired.jobs}
    return Plan(
        tuple(actions), told, allocation.targets, converged,
        frozenset(steps.degraded - in_flight), fleet_ready,
    )  # fmt: skip


def assume_fleet(desired: Desired, observed: Observed) -> Observed:
    """As if every desired device were up that is not known to be bad: `rankfold plan` shows where
    jobs would go then."""
    devices = dict(observed.devices)
    for name, device in desired.devices().items():
        seen = devices.get(name)
        if (seen is None or not seen.ready) and name not in observed.failing:
            devices[name] = SeenDevice(
                name, type=device.type, memory=device.memory, cc=device.cc, speed=device.speed
            )
    return replace(observed, devices=devices)

"""Whether decisions can be carried out: those of a policy that is not built in may be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rankfold.plural import count
from rankfold.policy.vocabulary import Decision, Fleet, Job, Locality

NOTE_MAX = 1000  # characters


def objection(fleet: Fleet, jobs: Iterable[Job], decisions: Mapping[str, Decision]) -> str:
    """The first thing that is wrong with decisions on jobs; empty if they can be carried out. A job
    without a decision stays as it is."""
    known = {job.name: job for job in jobs}
    for name in decisions:
        if name not in known:
            return f"there is no job {name!r}"
    group_of = {
        position: number for number, group in enumerate(fleet.groups) for position in group.free
    }
    holders: dict[int, str] = {}
    for job in known.values():
        decision = decisions.get(job.name)
        if decision is not None and (wrong := _wrong(job, decision, group_of)):
            return wrong
        if decision is not None and decision.devices and job.locality != "any":
            places = {_place(fleet, group_of.get(at), job.locality) for at in decision.devices}
            if len(places) > 1 and set(decision.devices) != set(job.own):
                return f"{job.name} gets devices of several {job.locality}s"
        for position in _devices(job, decision):
            if position in holders:
                return f"device {position} is given to {holders[position]} and to {job.name}"
            holders[position] = job.name
    return ""


def _place(fleet: Fleet, group: int | None, locality: Locality) -> tuple[str, ...]:
    """The node or domain of a group."""
    if group is None:
        return ()
    found = fleet.groups[group]
    return (found.domain, found.node) if locality == "node" else (found.domain,)


def _devices(job: Job, decision: Decision | None) -> tuple[int, ...]:
    """The devices that a job has after a decision."""
    if decision is None or decision.stays:
        return job.own
    return decision.devices or ()


def _wrong(job: Job, decision: Decision, group_of: Mapping[int, int]) -> str:
    if len(decision.note) > NOTE_MAX:
        return f"the note of {job.name} has more than {NOTE_MAX} characters"
    if decision.stays:
        return ""
    if decision.devices and job.wants != "devices":
        return f"{job.name} wants no devices"
    if decision.devices is None and job.on_devices:
        return f"{job.name} has devices: it stays, gets others, or gets none, which is ()"
    devices = decision.devices or ()
    least, most = job.least or job.devices, job.most or job.devices
    if devices and not least <= len(devices) <= most:
        wanted = f"{least} to {most}" if least < most else str(most)
        return f"{job.name} gets {count(len(devices), 'device')}; it can use {wanted}"
    for position in devices:
        if position not in job.own and group_of.get(position) not in job.groups:
            return f"device {position} is not free, or not for {job.name}"
    return ""

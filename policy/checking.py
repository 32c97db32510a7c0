"""Whether decisions can be carried out: those of a policy that is not built in may be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rankfold.plural import count
from rankfold.policy.vocabulary import Decision, Fleet, Job

NOTE_MAX = 1000  # characters


def objection(fleet: Fleet, jobs: Iterable[Job], decisions: Mapping[str, Decision]) -> str:
    """The first thing that is wrong with decisions on jobs; empty if they can be carried out. A job
    without a decision stays as it is."""
    known = {job.name: job for job in jobs}
    for name in decisions:
        if name not in known:
            return f"there is no job {name!r}"
    group_of = {at: number for number, group in enumerate(fleet.groups) for at in group.free}
    holders: dict[int, str] = {}
    for job in known.values():
        decision = decisions.get(job.name)
        if decision is not None and (wrong := _wrong(job, decision, group_of)):
            return wrong
        for at in _devices(job, decision):
            if at in holders:
                return f"device {at} is given to {holders[at]} and to {job.name}"
            holders[at] = job.name
    return ""


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
    for at in devices:
        if at not in job.own and group_of.get(at) not in job.groups:
            return f"device {at} is not free, or not for {job.name}"
    return ""

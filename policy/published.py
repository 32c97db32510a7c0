"""Two published policies for simulations: least attained service, as in Tiresias, and Optimus.

Both need the nodes of the fleet, and optimus the seconds of each job's steps. They keep nothing
between decisions: what they need of the past is in the notes of the jobs.
"""

from __future__ import annotations

from collections.abc import Iterable

from rankfold.policy.vocabulary import Decision, Fleet, Job, Rules

DEMOTED_S = 16 * 3600.0  # device-seconds after which a job is in the second queue


def las(fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float) -> dict[str, Decision]:
    """Least attained service, with two queues: a job that has been served for long goes to the end
    of the second queue, and stays there. All jobs of the first queue go before those of the
    second. A job that does not fit in what is left is passed by others. The note of a job of the
    second queue is when it was demoted, and its place among those that were demoted then."""
    jobs = list(jobs)
    first = sorted((job for job in jobs if not job.note), key=lambda job: (job.created, job.name))
    second = sorted((job for job in jobs if job.note), key=lambda job: _demoted(job.note))
    notes = {job.name: job.note for job in second}
    for place, job in enumerate(list(first)):
        if job.served >= DEMOTED_S:
            notes[job.name] = f"{now} {place}"
            first.remove(job)
            second.append(job)
    left = sum(map(len, fleet.nodes))
    wanted = {}
    for job in (*first, *second):
        fits = job.devices <= left
        wanted[job.name] = job.devices if fits else 0
        left -= job.devices * fits
    return placed(fleet, [*first, *second], wanted, notes)


def _demoted(note: str) -> tuple[float, int]:
    when, place = note.split()
    return float(when), int(place)


def optimus(fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float) -> dict[str, Decision]:
    """Each job in turn gets one device; then always that job one more which saves most time by
    it, if its steps that are left took as long as estimated."""
    left = sum(map(len, fleet.nodes))
    jobs = sorted(jobs, key=lambda job: (job.created, job.name))
    wanted = {job.name: int(number < left) for number, job in enumerate(jobs)}
    left -= sum(wanted.values())
    gains = {job.name: _gain(job, wanted[job.name], left) for job in jobs}
    by_name = {job.name: job for job in jobs}
    while left and max(gains.values()) > 0:
        best = max(gains, key=lambda name: gains[name])
        wanted[best] += 1
        left -= 1
        gains[best] = _gain(by_name[best], wanted[best], left)
    return placed(fleet, sorted(jobs, key=lambda job: wanted[job.name]), wanted, {})


def _gain(job: Job, devices: int, left: int) -> float:
    """Seconds that a job saves on one device more."""
    if not left or not 0 < devices < len(job.step_s):
        return 0.0
    return (job.step_s[devices - 1] - job.step_s[devices]) * (job.steps or 1.0)


def placed(
    fleet: Fleet, jobs: Iterable[Job], wanted: dict[str, int], notes: dict[str, str]
) -> dict[str, Decision]:
    """Jobs whose number stays keep their devices; the others, in order, get theirs from the node
    with the most free ones, the first of equals, and then from the next."""
    jobs = list(jobs)
    stays = {job.name for job in jobs if job.own and len(job.own) == wanted[job.name]}
    taken = {at for job in jobs if job.name in stays for at in job.own}
    free = [[at for at in node if at not in taken] for node in fleet.nodes]
    found = {}
    for job in jobs:
        note = notes.get(job.name, "")
        if job.name in stays:
            found[job.name] = Decision(job.own, stays=True, note=note)
            continue
        devices: list[int] = []
        while len(devices) < wanted[job.name]:
            node = max(free, key=len)
            number = min(len(node), wanted[job.name] - len(devices))
            devices += node[:number]
            del node[:number]
        found[job.name] = Decision(tuple(devices), cause="order", note=note)
    return found

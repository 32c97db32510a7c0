"""Policies that are wrong in one way each, for entry points of the same names."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from rankfold.policy.vocabulary import Decision, Fleet, Job, Rules

Decisions = dict[str, Decision]


def first_device(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Decisions:
    """Right: one device for the first job."""
    return {jobs[0].name: Decision((fleet.groups[0].free[0],))}


def raises(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Decisions:
    if now == 1.0:
        raise ValueError("no idea")
    return first_device(fleet, jobs, rules, now)


def loops(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Decisions:
    while now == 1.0:
        time.sleep(0.01)
    return first_device(fleet, jobs, rules, now)


def exits(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Decisions:
    if now == 1.0:
        os._exit(3)
    return first_device(fleet, jobs, rules, now)


def twice(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Decisions:
    if now == 1.0:
        return {job.name: Decision((0,)) for job in jobs}
    return first_device(fleet, jobs, rules, now)


def nonsense(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Any:
    return {jobs[0].name: 5} if now == 1.0 else first_device(fleet, jobs, rules, now)


def prints(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Decisions:
    print("not a reply", flush=True)
    os.write(1, b"nor this")
    return first_device(fleet, jobs, rules, now)


def starts(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Decisions:
    """It leaves a process that would live for long."""
    subprocess.Popen(["sleep", "1000"])
    return first_device(fleet, jobs, rules, now)


def number(fleet: Fleet, jobs: list[Job], rules: Rules, now: float) -> Decisions:
    """The note of each job is the number of its process."""
    return {job.name: Decision((), note=str(os.getpid())) for job in jobs}

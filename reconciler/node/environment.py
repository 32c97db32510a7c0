"""What a rank's environment begins with, before what makes it a rank (see the launcher).

A job that a file describes runs the same whoever started the reconciler, in whatever shell: it gets
who and where it is, and nothing that changes what is loaded or computed. docs/spec.md lists it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from rankfold.reconciler.model.desired import Job

# Names, or patterns of names, of the reconciler's environment that ranks of such jobs have too.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR")
# What the launcher, a program of Python, needs besides to be found and loaded as we were.
_LAUNCHERS = ("RANKFOLD_*", "PYTHON*", "LD_*")


def of_ranks(job: Job, ours: Mapping[str, str]) -> dict[str, str]:
    """For the ranks of a job; `ours` is the reconciler's environment."""
    if job.env_whole:  # `rankfold run`: that command's, not that of whoever started us
        return dict(job.env)
    return _chosen(ours, INHERITED) | dict(job.env)


def of_launcher(ours: Mapping[str, str]) -> dict[str, str]:
    """For the launcher's own process: a rank may read it."""
    ours = {name: value for name, value in ours.items() if name != "RANKFOLD_FAULT"}
    return _chosen(ours, (*INHERITED, *_LAUNCHERS))


def _chosen(ours: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in ours.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


# ---- for people: values are secrets ------------------------------------------------------------

Pairs = Iterable[tuple[str, str]]


def names(env: Pairs) -> list[str]:
    return [name for name, _ in env]


def changed_names(old: Pairs, new: Pairs) -> list[str]:
    """The names of `new`; those that have another value than in `old` say so."""
    was = dict(old)
    return [
        name if was.get(name, value) == value else f"{name} (another value)" for name, value in new
    ]


def change_in_words(old: Pairs, new: Pairs) -> str:
    """``A has another value, B is new, C is missing``"""
    was, now = dict(old), dict(new)
    told = [f"{name} has another value" for name in was if name in now and was[name] != now[name]]
    told += [f"{name} is new" for name in now if name not in was]
    told += [f"{name} is missing" for name in was if name not in now]
    return ", ".join(told)

"""The base of a rank's environment, to which the launcher adds what makes the process a rank.

A job that a file describes must run the same whoever started the reconciler, in any shell. Its
ranks inherit variables about the user, paths and the locale, and none that changes what is loaded
or computed. docs/spec.md lists the variables.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from rankfold.reconciler.model.desired import Job

# Names, or patterns of names, in the reconciler's environment that ranks of such jobs inherit.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR")
# Variables by which the launcher, a Python program, is found and loaded as the reconciler was.
_LAUNCHERS = ("RANKFOLD_*", "PYTHON*", "LD_*")


def of_ranks(job: Job, ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job's ranks; `ours` is the reconciler's environment."""
    if job.env_whole:  # `rankfold run`: the environment of that command
        return dict(job.env)
    return _chosen(ours, INHERITED) | dict(job.env)


def of_launcher(ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of the launcher's own process, which a rank may read."""
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
    """The names in `new`; a name is marked if its value in `old` is different."""
    was = dict(old)
    return [
        name if was.get(name, value) == value else f"{name} (another value)" for name, value in new
    ]


def change_in_words(old: Pairs, new: Pairs) -> str:
    """For example ``A has another value, B is new, C is missing``."""
    was, now = dict(old), dict(new)
    changes = [
        f"{name} has another value" for name in was if name in now and was[name] != now[name]
    ]
    changes += [f"{name} is new" for name in now if name not in was]
    changes += [f"{name} is missing" for name in was if name not in now]
    return ", ".join(changes)

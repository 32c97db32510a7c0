"""What steers the reconciler from the environment (docs/switches.md), where it is a number."""

from __future__ import annotations

import math
import os

from rankfold.reconciler.deadlines import STUCK_S

LINGER_S = 2.0
REST_DUMP_AFTER_S = 2.0  # watchdogs of 5 s notice nothing: a rank's clock goes on until then


class BadSwitch(ValueError):
    """Names the variable, its value and what it may be."""


def check() -> None:
    """Raises BadSwitch, before anything is done."""
    linger_s(), stuck_s(), rest_dump_after_s(), host_memory()


def linger_s() -> float:
    return _seconds("RANKFOLD_LINGER", LINGER_S)


def stuck_s() -> float:
    return _seconds("RANKFOLD_STUCK", STUCK_S)


def rest_dump_after_s() -> float | None:
    """For so long a job rests in memory, before it is dumped; None: always."""
    name = "RANKFOLD_REST_DUMP_AFTER"
    if os.environ.get(name) == "never":
        return None
    return _seconds(name, REST_DUMP_AFTER_S, ", or never")


def host_memory() -> int | None:
    """Bytes; None: nobody has said."""
    name = "RANKFOLD_HOST_MEMORY"
    if not (text := os.environ.get(name)):
        return None
    if not text.isdecimal():
        raise BadSwitch(f"{name} is {text!r}; it must be a number of bytes")
    return int(text)


def _seconds(name: str, default: float, otherwise: str = "") -> float:
    if not (text := os.environ.get(name)):
        return default
    try:
        if math.isfinite(seconds := float(text)) and seconds >= 0:
            return seconds
    except ValueError:
        pass
    raise BadSwitch(f"{name} is {text!r}; it must be a number of seconds{otherwise}")

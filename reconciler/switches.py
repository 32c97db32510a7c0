"""The reconciler's numeric environment variables (docs/switches.md)."""

from __future__ import annotations

import math
import os

from rankfold.reconciler.deadlines import STUCK_S

LINGER_S = 2.0
REST_SAVE_AFTER_S = 2.0  # short for watchdogs of 5 s: a rank's clock runs until its local snapshot


class BadSwitch(ValueError):
    """The message has the variable, its value and the values that are allowed."""


def check() -> None:
    """Check all variables, before anything is done. Raises BadSwitch."""
    linger_s(), stuck_s(), rest_save_after_s(), host_memory()


def linger_s() -> float:
    return _seconds("RANKFOLD_LINGER", LINGER_S)


def stuck_s() -> float:
    return _seconds("RANKFOLD_STUCK", STUCK_S)


def rest_save_after_s() -> float | None:
    """Seconds for which a job rests in memory before its local snapshot is made; None: it stays."""
    name = "RANKFOLD_REST_SAVE_AFTER"
    if os.environ.get(name) == "never":
        return None
    return _seconds(name, REST_SAVE_AFTER_S, ", or never")


def host_memory() -> int | None:
    """Bytes of host memory for jobs; None: not set."""
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

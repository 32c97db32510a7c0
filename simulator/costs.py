"""How long a job stands still when it starts, stops or moves."""

from __future__ import annotations

from msgspec import Struct


class Costs(Struct, frozen=True):
    """Seconds. start: until a job that got devices for the first time computes. suspend: until the
    devices of a job that loses them are free. resume: until a job that gets devices again
    computes. resize: until a job whose number of devices changed computes again."""

    start: float = 0.0
    suspend: float = 0.0
    resume: float = 0.0
    resize: float = 0.0

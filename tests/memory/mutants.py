"""Faults seeded into the memory room, one at a time: each must be noticed by the tests."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str


MUTANTS: list[Fault] = []

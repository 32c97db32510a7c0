"""How fast jobs with the same program were, on each type and number of devices.

That is in the records of all jobs, also of those that have ended. When a record is removed, the
journal keeps its rates.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

from msgspec.structs import replace

from rankfold.policy.vocabulary import Rate
from rankfold.reconciler.model.desired import Device, Job
from rankfold.reconciler.model.observed import Measured
from rankfold.reconciler.model.recorded import Record

_On = tuple[str, int]  # a type and number of devices


class History:
    """removed: of jobs whose records are no longer among `records`. devices: all that there are;
    their speeds compare types on which a program has not run."""

    def __init__(
        self, records: Iterable[Record], removed: Iterable[Measured], devices: Iterable[Device]
    ):
        self._speed: dict[str, float] = {}  # of the slowest device of each type
        self._found: dict[str, dict[_On, tuple[tuple[Rate, str], ...]]] = {}
        for measured in removed:
            self._add(measured, "")
        for record in records:
            if record.rates and (found := measured_of(record)) is not None:
                self._add(found, record.name)
        for device in devices:
            known = self._speed.get(device.type, device.speed)
            self._speed[device.type] = min(known, device.speed)

    def _add(self, measured: Measured, job: str) -> None:
        found = self._found.setdefault(measured.program, {})
        for rate in measured.rates:
            on = (measured.device_type, rate.devices)
            # The last one, and the last of another job.
            found[on] = tuple(sorted((*found.get(on, ()), (rate, job)), key=_age))[-2:]

    def of(self, job: Job, record: Record, device_type: str) -> tuple[Rate, ...]:
        """The last rates of other jobs with the job's program, on devices of this type, the fewest
        first. If there are none, those on another type, as the speeds of the types say."""
        found = self._found.get(_program(record.fixed or job))
        of_type: dict[str, dict[int, Rate]] = {}
        for (name, devices), rates in (found or {}).items():
            for rate, whose in rates:
                if whose != job.name:
                    of_type.setdefault(name, {})[devices] = rate
        if not of_type:
            return ()
        chosen = device_type
        if chosen not in of_type:
            chosen = max(of_type, key=lambda name: (_last(of_type[name].values()), name))
        factor = self._speed.get(device_type, 1.0) / self._speed.get(chosen, 1.0)
        return tuple(
            each if chosen == device_type else replace(each, per_s=each.per_s * factor)
            for _, each in sorted(of_type[chosen].items())
        )


def measured_of(record: Record) -> Measured | None:
    """The rates of a job; None if it has none."""
    if not record.rates or record.fixed is None or not record.device_type:
        return None
    rates = tuple(replace(each, before=None) for each in record.rates)
    return Measured(_program(record.fixed), record.device_type, rates)


def _program(job: Job) -> str:
    """Equal for jobs that run the same."""
    return _digest(job.command, job.workdir, tuple(sorted(job.env)), job.world_size)


@functools.lru_cache(maxsize=1 << 14)
def _digest(*program: object) -> str:
    """Without what the command and the environment say, which may be secret."""
    return hashlib.blake2b(repr(program).encode(), digest_size=16).hexdigest()


def _age(each: tuple[Rate, str]) -> tuple[float, str]:
    return (each[0].at, each[1])


def _last(rates: Iterable[Rate]) -> float:
    return max(each.at for each in rates)

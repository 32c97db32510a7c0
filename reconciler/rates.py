"""How fast each job is on the devices that it has: measures it, and records it.

A step is a collective that each rank has called, as for `everySteps`. A job that calls none has no
rate. The counts of a placement are in the reconciler's memory; the next reconciler begins again.
Each rate that was found is in the job's record, on which the policy decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from rankfold.policy.rates import RETRY_S, estimate, in_words, is_slower
from rankfold.policy.speed import deviates
from rankfold.policy.vocabulary import Rate
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import Desired, Job
from rankfold.reconciler.model.history import History
from rankfold.reconciler.model.observed import JobOnDevice, Observed
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.wording import count

SETTLE_S = 10.0  # from the first step of a placement on: code is loaded, memory swapped in
BLOCK_S = 2.0  # the rates of blocks of this length give the standard error
BLOCKS = 8  # of these a rate is known; at twice as many, two become one of twice the length
BLOCK_MAX_S = 32.0  # longer blocks are not needed: the oldest half is dropped
FRESH_S = 1200.0  # a program may change what it does: older rates are not compared
# Seconds between two writes, times the number of measured jobs: the planner runs after each.
APART_S = 0.01


class Window:
    """The steps of a job in one placement. Times in seconds, on any clock that does not jump."""

    def __init__(self, epoch: int):
        self.epoch = epoch
        self.blocks: list[tuple[float, int]] = []  # seconds and steps, the oldest first
        self._length = BLOCK_S
        self._seconds, self._steps = 0.0, 0  # of the block that is not full
        self._most = 0  # steps that were seen at once
        self._last: tuple[float, int] | None = None
        self._first: int | None = None  # steps when it was seen first
        self._begins = math.inf  # nothing earlier counts

    def note(self, steps: int | None, now: float) -> bool:
        """Count what the job has done since the last call; whether there is a new rate. steps: of
        each rank, since it began; None: it does not run now."""
        last, self._last = self._last, None if steps is None else (now, steps)
        if steps is None:
            return False
        if self._first is None or steps < self._first:
            self._first = steps
        if steps > self._first and self._begins == math.inf:
            self._begins = now + SETTLE_S
        if last is None or steps < last[1] or now <= last[0] or last[0] < self._begins:
            return False
        self._seconds += now - last[0]
        self._steps += steps - last[1]
        self._most = max(self._most, steps - last[1])
        return self._seconds >= self._length and self._end_block()

    def _end_block(self) -> bool:
        self.blocks.append((self._seconds, self._steps))
        self._seconds, self._steps = 0.0, 0
        if len(self.blocks) < 2 * BLOCKS:
            return len(self.blocks) == BLOCKS and self._length == BLOCK_S
        if self._length >= BLOCK_MAX_S:
            del self.blocks[:BLOCKS]
        else:
            pairs = zip(self.blocks[::2], self.blocks[1::2], strict=True)
            self.blocks = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]
            self._length *= 2
        return True

    def rate(self, devices: int, now: float) -> Rate | None:
        """None: the job has done too little."""
        seconds = sum(each for each, _ in self.blocks)
        steps = sum(each for _, each in self.blocks)
        if steps < BLOCKS:
            return None
        mean = steps / seconds
        squares = sum((done / took - mean) ** 2 for took, done in self.blocks)
        number = len(self.blocks)
        edges = self._most / seconds / 2  # steps that come together are in the first block or not
        error = math.hypot(math.sqrt(squares / (number - 1) / number), edges)
        return Rate(devices, mean, error, now, seconds)


class Rates:
    """The rates of a fleet's jobs."""

    def __init__(self, journal: Journal):
        self._journal = journal
        self._windows: dict[str, Window] = {}
        self._due: set[str] = set()  # jobs with a rate that is not recorded
        self._recorded_at = -math.inf

    def update(
        self, desired: Desired, records: Mapping[str, Record], observed: Observed, now: float
    ) -> None:
        """Call in each turn. now: fleet time. Raises sqlite3.Error."""
        windows = {}
        for name, record in records.items():
            if record.step != "placed" or len(record.placement) < 2 or name not in desired.jobs:
                continue
            window = self._windows.get(name)
            if window is None or window.epoch != record.epoch:
                window = Window(record.epoch)
            windows[name] = window
            if window.note(_steps(record, observed), now):
                self._due.add(name)
        self._windows = windows
        self._due &= windows.keys()
        if self._due and not 0 <= now - self._recorded_at < APART_S * len(windows):
            self._recorded_at = now
            devices = desired.devices().values()
            history = History(records.values(), observed.measured, devices)
            self._record(desired, history, now)

    def _record(self, desired: Desired, history: History, now: float) -> None:
        with self._journal.transaction():
            for name in sorted(self._due):
                record, window = self._journal.record(name), self._windows[name]
                if record is None or record.epoch != window.epoch:
                    continue
                rate = window.rate(len(set(record.placement)), now)
                if rate is not None:
                    job = desired.jobs[name]
                    others = history.of(job, record, record.device_type)
                    self._record_rate(record, rate, job, others)
        self._due.clear()

    def _record_rate(self, record: Record, rate: Rate, job: Job, history: tuple[Rate, ...]) -> None:
        last = next((each for each in record.rates if each.devices == rate.devices), None)
        begun = record.placed_since or 0.0
        if last is not None and last.at >= begun and _holds(last, rate.at):
            return  # it has been found slower: that decides
        if job.elastic:
            rate = replace(rate, before=before(record.rates, rate, begun))
        others = (each for each in record.rates if each.devices != rate.devices)
        rates = tuple(sorted((*others, rate), key=lambda each: each.devices))
        self._journal.save(replace(record, rates=rates))
        if rate.before is not None and is_slower(rate):
            why = in_words(rate, rate.before)
            text = f"{why}: it gets at most {count(rate.before.devices, 'device')} for an hour"
            self._journal.event(f"Job/{record.name}", "Slower", text, "Warning")
        elif last is None:
            self._compare(record, rate, history)

    def _compare(self, record: Record, rate: Rate, history: tuple[Rate, ...]) -> None:
        """Report that a rate is not as estimated: the first on that number of devices."""
        guess = estimate(len(record.placement), rate.devices, record.rates, history, rate.at)
        if guess is not None and deviates(rate.per_s, guess):
            text = (
                f"{rate.per_s:.3g} steps per s on {count(rate.devices, 'device')}, not {guess:.3g} "
                "as estimated: estimates for other numbers of devices follow from it, too"
            )
            self._journal.event(f"Job/{record.name}", "Corrected", text)


def _holds(rate: Rate, now: float) -> bool:
    return is_slower(rate) and 0 <= now - rate.at < RETRY_S


def before(rates: Sequence[Rate], rate: Rate, begun: float) -> Rate | None:
    """The rate with which a new one is compared: the highest that the job had on fewer devices
    shortly before. begun: when it got the devices that it has."""
    if rate.at - begun > FRESH_S:
        return None
    fewer = [
        each for each in rates if each.devices < rate.devices and 0 <= begun - each.at <= FRESH_S
    ]
    found = max(fewer, key=lambda each: each.per_s, default=None)
    return None if found is None else replace(found, before=None)


def _steps(record: Record, observed: Observed) -> int | None:
    """Steps of the rank that has done the fewest; None if the job does not run now, or is being
    saved."""
    if record.save is not None and record.save.stage != "uploading":
        return None
    counted: dict[int, int] = {}
    for name in dict.fromkeys(record.placement):
        report = _report(name, record, observed)
        if report is None:
            return None
        for each in report.ranks:
            counted[each.rank] = int(each.counters.get("collectives", 0))
    return min(counted.values()) if len(counted) == len(record.placement) else None


def _report(device: str, record: Record, observed: Observed) -> JobOnDevice | None:
    found = observed.devices.get(device)
    there = found.job(record.name) if found is not None and found.ready else None
    if there is None or there.epoch != record.epoch or there.state != "running":
        return None
    return there

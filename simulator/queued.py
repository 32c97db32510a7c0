"""A scheduler of tiers that decides, at each event, on the jobs that have devices or a guaranteed
fraction, and on the first ones of those that wait: the decision on the others is that they wait.

A job that is left out changes nothing, and waits:

- Jobs that wait are lines of equal precedence. One of them that waits after a decision has a claim
  on the free devices of its group. Later ones of its line can neither use nor borrow any, and their
  claims would be the same.
- Jobs that wait are also lines of equal need in their tier. If the fraction of one of them is not
  guaranteed, too few devices are left for it; later ones of its line find as many or fewer.

So the first jobs of each line are decided on, until one of them still waits, or has no guarantee.
That holds for jobs of one group each, without limits of quotas, waits, disturbances and host
memory, and not with backfill, which has no claims.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping

from rankfold.policy.fractions import fraction_of, need_of
from rankfold.policy.incremental import Changes
from rankfold.policy.lending import least_of
from rankfold.policy.vocabulary import TIERS, Decision, Fleet, Guaranteed, Job, Rules
from rankfold.simulator.whole import Decide, Known, Whole

FIRST = 2  # jobs of a line that are decided on first; more if all of these change

Key = tuple[object, ...]


class _Lines:
    """Jobs that wait, by a key, in the order of their age. still: whether a job of a line is the
    last that has to be decided on."""

    def __init__(
        self, key: Callable[[Job], Key | None], still: Callable[[Job, Decision], bool], first: int
    ):
        self._key, self._still, self._first = key, still, first
        self._lines: dict[Key, list[tuple[float, str]]] = {}
        self._keys: dict[str, Key] = {}

    def add(self, job: Job) -> None:
        if (key := self._key(job)) is not None:
            self._keys[job.name] = key
            insort(self._lines.setdefault(key, []), (job.created, job.name))

    def remove(self, job: Job) -> None:
        if (key := self._keys.pop(job.name, None)) is not None:
            line = self._lines[key]
            del line[bisect_left(line, (job.created, job.name))]
            if not line:
                del self._lines[key]

    def numbers(self) -> dict[Key, int]:
        return dict.fromkeys(self._lines, self._first)

    def names(self, numbers: Mapping[Key, int]) -> Iterable[str]:
        """The first jobs of each line."""
        for key, line in self._lines.items():
            for _, name in line[: numbers[key]]:
                yield name

    def grow(
        self, numbers: dict[Key, int], jobs: Mapping[str, Job], found: Mapping[str, Decision]
    ) -> bool:
        """Take more jobs of lines whose jobs so far all change; whether there are such lines."""
        grown = False
        for key, line in self._lines.items():
            number = numbers[key]
            if number < len(line):
                last = line[number - 1][1]
                if not self._still(jobs[last], found[last]):
                    numbers[key], grown = 2 * number, True
        return grown


class Queued(Whole):
    """Takes time for the jobs that have devices and for the lines of those that wait. As `Whole`
    with `alone`."""

    def __init__(self, fleet: Fleet, decide: Decide, rules: Rules):
        super().__init__(fleet, decide, rules, alone=True)
        self._active: dict[str, Known] = {}  # jobs that have devices or a guarantee
        self._lines = (
            _Lines(self._precedence, self._has_claim, FIRST),
            _Lines(self._need, lambda job, decision: not decision.admitted, 1),
        )

    def arrive(self, job: Job) -> None:
        super().arrive(job)
        self._wait(job)

    def end(self, name: str, now: float) -> Guaranteed | None:
        if self._active.pop(name, None) is None:
            self._leave(self._known[name].job)
        return super().end(name, now)

    def _decide_on(self, now: float) -> tuple[list[Job], Mapping[str, Decision]]:
        active = [known.seen(now) for known in self._active.values()]
        numbers = [lines.numbers() for lines in self._lines]
        jobs: dict[str, Job] = {}
        while True:
            for lines, each in zip(self._lines, numbers, strict=True):
                for name in lines.names(each):
                    if name not in jobs:
                        jobs[name] = self._known[name].seen(now)
            decided = [*active, *jobs.values()]
            decisions = self._decide(self._fleet, decided, now)
            grown = [
                lines.grow(each, jobs, decisions)
                for lines, each in zip(self._lines, numbers, strict=True)
            ]
            if not any(grown):
                return decided, decisions

    def _carry_out(self, decisions: Mapping[str, Decision], now: float) -> Changes:
        changes = super()._carry_out(decisions, now)
        for name in decisions:
            known = self._known[name]
            if known.devices or known.guaranteed is not None:
                if name not in self._active:
                    self._leave(known.job)
                    self._active[name] = known
            elif self._active.pop(name, None) is not None:
                self._wait(known.job)
        return changes

    def _awake(self) -> Iterable[Known]:
        return self._active.values()

    # ---- lines

    def _wait(self, job: Job) -> None:
        for lines in self._lines:
            lines.add(job)

    def _leave(self, job: Job) -> None:
        for lines in self._lines:
            lines.remove(job)

    def _precedence(self, job: Job) -> Key:
        """Equal for jobs that are next to one another in line, if nothing is guaranteed to them."""
        tier = TIERS[0] if fraction_of(job, self._rules) else job.tier
        return (job.groups, tier, job.priority, job.guarantee != 0, job.begun)

    def _need(self, job: Job) -> Key | None:
        if not fraction_of(job, self._rules):
            return None
        return (job.groups, job.tier, job.priority, need_of(job, self._rules))

    def _has_claim(self, job: Job, decision: Decision) -> bool:
        could = self._fleet.groups[job.groups[0]].to_come >= least_of(job)
        return not decision.devices and not decision.admitted and could

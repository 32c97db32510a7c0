"""What sharing did in a job, from what the proxies counted of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rankfold.reconciler.model import JobOnDevice, Json, Observed, Record, SeenDevice

COUNTED = ("squashed", "spared", "copies", "unforeseen")


def serving(record: Record, observed: Observed) -> Iterator[tuple[SeenDevice, JobOnDevice]]:
    """The devices that serve the job's last epoch, with what each says of it."""
    for name in sorted(record.holds()):
        seen = observed.devices.get(name)
        there = seen.job(record.name) if seen else None
        if seen and there and there.epoch == record.epoch:
            yield seen, there


def done(record: Record, observed: Observed) -> Json | None:
    """`sharing` of docs/status.md: of its ranks since they began. None: nobody tells, as while it
    rests."""
    devices = list(serving(record, observed))
    ranks = [rank.counters for _, there in devices for rank in there.ranks]
    if record.step == "ended":
        ranks = list(record.counters.values())
    if not ranks:
        return None
    on = {seen.shares for seen, _ in devices} - {None}
    return {
        "on": any(on) if on else None,
        "shared": sum(there.shared for _, there in devices),
        **{name: sum(int(rank.get(name, 0)) for rank in ranks) for name in COUNTED},
    }

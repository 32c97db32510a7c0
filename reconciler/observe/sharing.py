"""Benefits and costs of sharing devices for a job, from the proxies' counters. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rankfold.messages import chunk_bytes
from rankfold.reconciler.model.observed import JobOnDevice, Observed, ObservedDevice
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.model.values import Json

REPORTED = {  # proxies' counter → name in docs/status.md
    "squashed": "operationsSquashed",
    "spared": "bytesNotSwapped",
    "copies": "copiesOnWrite",
    "unforeseen": "copiesUnforeseen",
    "prepared": "chunksPrepared",
}
STARTUP_S = 10.0  # on a device, before overhead is reported: the beginning does not count
OVERHEAD_MAX = 0.05  # share of the devices' time; above it there is a condition
REASONS = {  # of condition `Overhead`: by the largest part of it, with advice
    "switches": (
        "Switches",
        "its ranks take turns on their devices often: give it more devices, or let it compute more "
        "between two collectives",
    ),
    "copies": (
        "Copies",
        "the memory of its ranks does not fit into their devices at once, or they write to what "
        "they share: give it more devices, or devices with more memory",
    ),
    "waiting": (
        "Waiting",
        "its ranks wait for each other to reach the same work, and some are late or do "
        "something else: give it more devices",
    ),
}


def serving(record: Record, observed: Observed) -> Iterator[tuple[ObservedDevice, JobOnDevice]]:
    """The devices that serve the job's last epoch, with each device's report on the job."""
    for name in sorted(record.holds()):
        device = observed.devices.get(name)
        report = device.job(record.name) if device else None
        if device and report and report.epoch == record.epoch:
            yield device, report


def shared_counts(record: Record, observed: Observed) -> Json | None:
    """`sharing` of docs/status.md: counted since the ranks began. None: no device reports it, for
    example while the job rests."""
    devices = list(serving(record, observed))
    ranks = [rank.counters for _, report in devices for rank in report.ranks]
    if record.step == "ended":
        ranks = list(record.counters.values())
    if not ranks:
        return None
    on = {device.shares for device, _ in devices} - {None}
    shared = sum(report.shared for _, report in devices)
    measured = any(report.guard and report.guard.measured for _, report in devices)
    return {
        "on": any(on) if on else None,
        "guard": "validated" if measured else "sets",
        "chunksShared": shared // chunk_bytes() if shared else 0,
        **{
            shown: sum(int(rank.get(name, 0)) for rank in ranks) for name, shown in REPORTED.items()
        },
    }


def guard(record: Record, observed: Observed) -> Json | None:
    """`guard` of docs/status.md. None: nothing is compared."""
    shown = [report.guard for _, report in serving(record, observed) if report.guard]
    if not shown:
        return None
    return {
        "every": max(each.every for each in shown),
        **{
            name: sum(getattr(each, name) for each in shown)
            for name in ("compared", "unwatched", "measured", "alike")
        },
    }


def collectives(record: Record, observed: Observed) -> Json | None:
    """`collectives` of docs/status.md. None: its devices are not several GPUs."""
    found = [(device.name, report) for device, report in serving(record, observed)]
    if not any(report.direct or report.indirect or report.links_bytes for _, report in found):
        return None
    return {
        "directBytes": sum(report.direct for _, report in found),
        "hostBytes": sum(report.through_host for _, report in found),
        "throughHost": [
            {"from": other, "to": name, "reason": why}
            for name, report in found
            for other, why in report.indirect
        ],
        "ncclBytes": sum(report.links_bytes for _, report in found),
        "withoutNccl": sorted({report.links_why_not for _, report in found} - {""}),
    }


def overhead(record: Record, observed: Observed) -> Json | None:
    """`overhead` of docs/status.md. None: no device reports it."""
    spent = [report.spent for _, report in serving(record, observed) if report.spent.seconds]
    if not spent:
        return None
    seconds = sum(each.seconds for each in spent)
    shares = {name: sum(getattr(each, name) for each in spent) / seconds for name in REASONS}
    return {
        "seconds": round(max(each.seconds for each in spent), 3),
        **{name: round(share, 4) for name, share in shares.items()},
    }


def too_much(record: Record, observed: Observed) -> Condition | None:
    """A condition if the devices spend too much of their time on other things than the job's
    work."""
    shares = overhead(record, observed)
    if shares is None or shares["seconds"] < STARTUP_S:
        return None
    total = sum(shares[name] for name in REASONS)
    if total <= OVERHEAD_MAX:
        return None
    most = max(REASONS, key=lambda name: shares[name])
    reason, advice = REASONS[most]
    parts = ", ".join(f"{shares[name]:.0%} {name}" for name in REASONS)
    message = (
        f"{total:.0%} of its devices' time since it was placed was not spent "
        f"on its work ({parts}): {advice}"
    )
    return Condition("Overhead", "True", reason, message)

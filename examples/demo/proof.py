"""Evaluates the proxies' counters: that ranks were really folded, and that no step was repeated.

A rank's counters travel with it: ``kernels`` counts over its whole life, ``kernels_here`` since it
came to its present device. The difference is its count at arrival, so the kernels run on each
device are exact, whenever the fleet was queried.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .fleet import FleetError, Json
from .run import JOB, WORLD_SIZE, Record, job_of


@dataclass(frozen=True)
class Sharing:
    """Savings of ranks that shared a device, over all ranks and the whole run."""

    on: bool  # whether any device permitted sharing
    shared_max: int  # maximum of shared chunks, in any sample
    squashed: int  # operations that were not repeated
    spared: int  # bytes that were not swapped in
    copies: int  # chunks that were copied to be written
    unforeseen: int  # unforeseen writes


@dataclass(frozen=True)
class Proof:
    """Numbers of one run."""

    kernels: dict[str, dict[int, int]]  # device → rank → kernels that it ran there
    collectives: tuple[int, ...]  # of each rank, over its whole life
    switches: dict[str, int]  # device → number of changes of the active rank
    swapped_in: dict[str, int]  # device → bytes
    swapped_out: dict[str, int]
    used_max: dict[str, int]  # device → maximum of bytes in use, in any sample
    pids: tuple[int, ...]
    pids_constant: bool
    folded_on: str  # the device that ran everything while there was one; "" if none did
    folded_kernels: int  # kernels run there in that time
    sharing: Sharing

    def kernels_of(self, rank: int) -> int:
        return sum(ranks.get(rank, 0) for ranks in self.kernels.values())


def proof(record: Record) -> Proof:
    """Evaluate the fleet's status during a run. Raises FleetError if the status is incomplete."""
    arrivals, final = _arrivals(record), _final_counters(record)
    kernels: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    folded: dict[int, tuple[str, int]] = {}  # rank → where, and kernels there
    single = _single_epochs(record)
    for rank in range(WORLD_SIZE):
        stays = sorted(arrivals[rank].items())  # (epoch, (device, kernels at arrival))
        ends = [count for _, (_, count) in stays[1:]] + [int(final[rank]["kernels"])]
        for (epoch, (device, start)), end in zip(stays, ends, strict=True):
            kernels[device][rank] += end - start
            if epoch in single:
                folded[rank] = (device, end - start)
    devices = {name for name, _ in folded.values()}
    everything = len(folded) == WORLD_SIZE and len(devices) == 1 and _others_empty(record, single)
    pids = _pids(record)
    return Proof(
        kernels={device: dict(ranks) for device, ranks in sorted(kernels.items())},
        collectives=tuple(int(final[rank]["collectives"]) for rank in range(WORLD_SIZE)),
        **_device_totals(record),
        pids=tuple(min(each) for each in pids),
        pids_constant=all(len(each) == 1 for each in pids),
        folded_on=devices.pop() if everything else "",
        folded_kernels=sum(count for _, count in folded.values()),
        sharing=_sharing(record, final),
    )


def _sharing(record: Record, final: list[Json]) -> Sharing:
    sharing = [job_of(sample.status).get("sharing") or {} for sample in record.samples]
    squashed, spared, copies, unforeseen = (
        sum(int(rank.get(name, 0)) for rank in final)
        for name in ("squashed", "spared", "copies", "unforeseen")
    )
    return Sharing(
        on=any(each.get("on") for each in sharing),
        shared_max=max(int(each.get("chunksShared", 0)) for each in sharing),
        squashed=squashed,
        spared=spared,
        copies=copies,
        unforeseen=unforeseen,
    )


def lost_steps(reference: Proof, elastic: Proof, steps: int) -> int:
    """Steps computed more than once, by the slowest rank.

    Counts collectives beyond those of the undisturbed run, which belong to the printed steps.
    Raises FleetError for a run with fewer, which has skipped some.
    """
    extra = [e - r for e, r in zip(elastic.collectives, reference.collectives, strict=True)]
    if min(extra) < 0:
        raise FleetError(f"{-min(extra)} collectives fewer than in the undisturbed run")
    per_step = max(1, min(reference.collectives) // steps)
    return -(-max(extra) // per_step)


def _arrivals(record: Record) -> list[dict[int, tuple[str, int]]]:
    """Per rank: epoch → (device, kernels that the rank had run when it arrived)."""
    found: list[dict[int, tuple[str, int]]] = [{} for _ in range(WORLD_SIZE)]
    for sample in record.samples:
        job = job_of(sample.status)
        for each in job.get("ranks", []):
            counters = each.get("counters", {})
            if each["device"] and each.get("onDevice") == "attached" and "kernels" in counters:
                start = int(counters["kernels"]) - int(counters["kernels_here"])
                found[each["rank"]].setdefault(job["epoch"], (each["device"], start))
    epochs = {frozenset(each) for each in found}
    if len(epochs) != 1 or not found[0]:
        raise FleetError("the fleet did not report every rank's counters in every placement")
    return found


def _final_counters(record: Record) -> list[Json]:
    ranks = record.job()["ranks"]
    if any("kernels" not in each.get("counters", {}) for each in ranks):
        raise FleetError("the fleet does not report the counters of the finished job")
    return [each["counters"] for each in ranks]


def _single_epochs(record: Record) -> set[int]:
    """Epochs in which the whole job was on one device."""
    return {
        job_of(sample.status)["epoch"]
        for sample in record.samples
        if len(sample.placement) == WORLD_SIZE and len(set(sample.placement.values())) == 1
    }


def _others_empty(record: Record, epochs: set[int]) -> bool:
    """True if no other device held a rank while the job was on one device."""
    for sample in record.samples:
        job = job_of(sample.status)
        if job.get("epoch") not in epochs or len(sample.placement) < WORLD_SIZE:
            continue
        holders = [d["name"] for d in sample.status["devices"] if d["ranks"]]
        if len(holders) != 1:
            return False
    return True


def _device_totals(record: Record) -> dict[str, dict[str, int]]:
    """Counters of the devices themselves; each only grows while its proxy lives."""
    totals: dict[str, dict[str, int]] = {
        name: defaultdict(int) for name in ("switches", "swapped_in", "swapped_out", "used_max")
    }
    for sample in record.samples:
        for device in sample.status["devices"]:
            name = device["name"]
            totals["used_max"][name] = max(totals["used_max"][name], int(device["used"]))
            for counter in ("switches", "swapped_in", "swapped_out"):
                now = int(device["counters"].get(counter, 0))
                totals[counter][name] = max(totals[counter][name], now)
    return {name: dict(each) for name, each in totals.items()}


def _pids(record: Record) -> list[set[int]]:
    """All pids of each rank before a crash."""
    seen: list[set[int]] = [set() for _ in range(WORLD_SIZE)]
    end = record.recovery.time if record.recovery else float("inf")
    for sample in record.samples:
        if sample.time > end:
            break
        for each in job_of(sample.status).get("ranks", []):
            if each["pid"] is not None:
                seen[each["rank"]].add(int(each["pid"]))
    if not all(seen):
        raise FleetError(f"the fleet did not report the pids of all ranks of {JOB}")
    return seen

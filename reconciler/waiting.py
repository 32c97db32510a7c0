"""Why a job gets no further though all its processes live: what its ranks wait for. Pure.

Nothing is done about it. A rank may compute on the host for an hour, and then go on; whether it
does, or hangs, its author knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rankfold.reconciler.observed import Observed, RankOnDevice, SeenRank
from rankfold.reconciler.recorded import Condition, Record
from rankfold.reconciler.sharing import serving
from rankfold.reconciler.words import some

WAITS_S = 60.0  # before it is said: long for a step, and far less than programs' own watchdogs take


def waiting(
    record: Record, observed: Observed, processes: Mapping[int, SeenRank]
) -> Condition | None:
    """The condition `Waiting` of a job that is on devices. `processes`: its ranks' launchers."""
    served = list(serving(record, observed))
    if stopped := [each for each in processes.values() if each.stopped] if served else []:
        return Condition("Waiting", "True", "RankStopped", _stopped(stopped))
    ranks = {each.rank: each for _, there in served for each in there.ranks}
    late = {each.rank for each in ranks.values() if each.quiet_s >= WAITS_S}
    for_others = [rank for rank in sorted(late) if ranks[rank].at == "others"]
    if for_others:
        rest = [ranks[rank] for rank in sorted(ranks) if ranks[rank].at != "others"]
        if not rest and len(ranks) == len(record.placement):
            return Condition("Waiting", "True", "ForOneAnother", _DEADLOCK)
        return Condition("Waiting", "True", "ForRanks", _for_ranks(for_others, rest, processes))
    stopping = (each for _, there in served if there.state == "stopping" for each in there.ranks)
    if runs := [each.rank for each in stopping if each.at == "device" and each.rank in late]:
        what = f"it is to stand still, and waits for a kernel or a copy of {_ranks(runs)} to end"
        return Condition("Waiting", "True", "ForKernels", what)
    return None


_DEADLOCK = (
    "for more than a minute all its ranks have waited for one another: they have called different "
    "collectives, or in different communicators; so it can neither go on nor stand still"
)
_WHERE = {
    "host": "on the host, computing, waiting there or hanging",
    "device": "in a kernel or a copy that has not ended",
    "turn": "waiting for a turn on the device",
    "waiting": "without a device, which has not been asked for yet",
    "exited": "ended",
}


def _stopped(found: Sequence[SeenRank]) -> str:
    who = [f"{', '.join(each.stopped)} of rank {each.rank} (pid {each.pid})" for each in found]
    has = "is" if len(found) == 1 else "are"
    return (
        f"{some(who)} {has} stopped by a signal, or held by a debugger; `kill -CONT` lets it go on"
    )


def _for_ranks(
    held: Sequence[int], rest: Iterable[RankOnDevice], processes: Mapping[int, SeenRank]
) -> str:
    others: dict[str, list[str]] = {}
    for each in rest:
        process = processes.get(each.rank)
        pid = f" (pid {process.pid})" if process and process.pid else ""
        at = each.at if each.state == "attached" else each.state
        others.setdefault(at, []).append(f"rank {each.rank}{pid}")
    told = [f"{_WHERE[at]}: {some(who)}" for at, who in sorted(others.items()) if at in _WHERE]
    have = "has" if len(held) == 1 else "have"
    text = f"for more than a minute {_ranks(held)} {have} waited for what others are to call, too"
    return "; ".join([text, *told])


def _ranks(ranks: Sequence[int]) -> str:
    numbers = some([str(rank) for rank in ranks])
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"

"""Determines why a job makes no progress although all its processes live: what its ranks wait for.
Pure.

A job makes progress while work of any of its ranks begins or ends. A stall has no consequence: a
rank may compute on the host for an hour and then continue, and only the program's author knows
whether it does. Waiting outside of CUDA and NCCL, for example for a message of another rank, is not
visible here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rankfold.reconciler.model.observed import Observed, ObservedRank, RankOnDevice
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.observe.sharing import serving
from rankfold.reconciler.wording import first_few, some_ranks

WAITS_S = 60.0  # before it is reported: long for a step, far shorter than programs' watchdogs
STOPPED_S = 3.0  # for a rank: a program may stop a process of its own and continue it


def waiting(
    record: Record, observed: Observed, processes: Mapping[int, ObservedRank]
) -> Condition | None:
    """The condition `Waiting` of a job that is on devices, or whose checkpoint is uploaded or
    fetched. `processes`: the launchers of its ranks."""
    served = list(serving(record, observed))
    ranks = sorted((each for _, job in served for each in job.ranks), key=lambda each: each.rank)
    attached = [each for each in ranks if each.state == "attached"]
    moves = {each.rank for each in attached if each.quiet_s < STOPPED_S}
    stopped = [each for rank, each in processes.items() if each.stopped and rank not in moves]
    if served and stopped:
        return Condition("Waiting", "True", "RankStopped", _stopped(stopped))
    if (transfer := observed.transfers.get(record.name)) is not None and transfer.stopped:
        return Condition("Waiting", "True", "TransferStopped", _stopped_transfer(transfer.stopped))
    if not attached or any(each.quiet_s < WAITS_S for each in attached):
        return None
    held = [each.rank for each in attached if each.at == "others"]
    if held and len(held) == len(record.placement):
        return Condition("Waiting", "True", "ForOneAnother", _DEADLOCK)
    if held:
        others = [each for each in ranks if each.rank not in held]
        return Condition("Waiting", "True", "ForRanks", _for_ranks(held, others, processes))
    if runs := [each.rank for each in attached if each.at == "device"]:
        return Condition("Waiting", "True", "ForKernels", _for_kernels(runs))
    if code := [each.rank for each in attached if each.at == "code"]:
        return Condition("Waiting", "True", "ForCode", _for_proxy(code, _CODE))
    if turn := [each.rank for each in attached if each.at == "turn"]:
        return Condition("Waiting", "True", "ForTurn", _for_proxy(turn, _TURN))
    return None


_DEADLOCK = (
    "for more than a minute all its ranks have waited for one another: they have called "
    "different collectives, it seems, or in different communicators; so it can "
    "neither continue nor stop at a cut"
)
_WHERE = {
    "host": "on the host, computing, waiting or stuck",
    "device": "in a kernel or a copy that has not ended",
    "turn": "waiting for a turn on the device, or for its proxy",
    "code": "waiting for code that is loaded or compiled",
    "waiting": "without a request for a device yet",
    "exited": "ended",
}
_CODE = (
    "code that is loaded or compiled: if the compiler hangs, `rankfold status` names it, and the "
    "logs of the devices say what failed"
)
_TURN = "a turn on the device, or for memory there: see the logs of the devices"


def _stopped(ranks: Sequence[ObservedRank]) -> str:
    processes = [f"{first_few(each.stopped)} of rank {each.rank}" for each in ranks]
    return f"stopped by a signal: {first_few(processes)}; `kill -CONT PID` lets them continue"


def _stopped_transfer(pid: int) -> str:
    return (
        f"a signal has stopped process {pid}, which transfers its checkpoint: "
        f"`kill -CONT {pid}` lets it continue"
    )


def _for_ranks(
    held: Sequence[int], rest: Iterable[RankOnDevice], processes: Mapping[int, ObservedRank]
) -> str:
    others: dict[str, list[str]] = {}
    for each in rest:
        process = processes.get(each.rank)
        pid = f" (pid {process.pid})" if process and process.pid else ""
        state = each.at if each.state == "attached" else each.state
        others.setdefault(state, []).append(f"rank {each.rank}{pid}")
    others_wait = [
        f"{_WHERE[state]}: {first_few(who)}"
        for state, who in sorted(others.items())
        if state in _WHERE
    ]
    have = "has" if len(held) == 1 else "have"
    text = (
        f"for more than a minute {some_ranks(held)} {have} waited for collectives "
        "that other ranks have not called"
    )
    return "; ".join([text, *others_wait])


def _for_kernels(runs: Sequence[int]) -> str:
    return (
        f"for more than a minute a kernel or a copy of {some_ranks(runs)} has not ended, and "
        "nothing else of the job has begun; until then it cannot stop "
        "at a cut, to be moved or saved"
    )


def _for_proxy(ranks: Sequence[int], what: str) -> str:
    have = "has" if len(ranks) == 1 else "have"
    return f"for more than a minute {some_ranks(ranks)} {have} waited for {what}"

"""The states of a job (`Record.step`) and the transitions between them: the only table.

A record has no other state. The journal reports a transition that is not in the table, a bug, and
carries it out, because a job must not stop for it; tests fail on one. `make documents` writes the
diagram and the table of docs/architecture.md from here.
"""

from __future__ import annotations

from msgspec import Struct

STATES = {
    "new": "nothing is started",
    "started": "its launchers run, or are being started",
    "placing": "the proxies of a new epoch are getting its ranks",
    "placed": "all of these proxies serve it",
    "detaching": "its devices are saving it, and release it",
    "detached": "its memory and state are in the images; it holds no device",
    "vacating": "a checkpoint or a local snapshot has it; its ranks are being ended",
    "stored": "it has no process",
    "restoring": "its ranks are being restored; they are frozen until they are placed",
    "ended": "final",
}
ON_DEVICES = ("placing", "placed", "detaching")
LIVE = tuple(state for state in STATES if state not in ("new", "ended"))
RESTING = tuple(state for state in LIVE if state not in ON_DEVICES)


class Transition(Struct, frozen=True):
    source: str
    target: str
    cause: str


TRANSITIONS = (
    Transition("new", "started", "it has a placement: launchers are started"),
    Transition("new", "stored", "it continues from a checkpoint of another owner"),
    Transition("new", "ended", "cancelled before it started"),
    Transition("started", "placing", "devices are allocated"),
    Transition("placing", "placed", "all proxies have accepted it"),
    Transition("placed", "detaching", "at a cut, to move or to suspend"),
    Transition("detaching", "detached", "all devices have released it"),
    Transition("detached", "placing", "next epoch"),
    Transition("started", "vacating", "a checkpoint has it"),
    Transition("detached", "vacating", "a checkpoint or a local snapshot has it"),
    Transition("vacating", "stored", "no process is left"),
    Transition("stored", "vacating", "its local snapshot is uploaded, too"),
    Transition("stored", "restoring", "its snapshots are on this node"),
    Transition("restoring", "detached", "all ranks are restored"),
    Transition("restoring", "stored", "it is tried again, or an older checkpoint is used"),
)
# From each state in LIVE.
AT_ANY_TIME = (
    Transition("live", "stored", "restart from the newest checkpoint"),
    Transition("live", "new", "restart without a checkpoint"),
    Transition("live", "ended", "success, failure or cancellation"),
)

_DECLARED = {(each.source, each.target) for each in TRANSITIONS} | {
    (source, each.target) for each in AT_ANY_TIME for source in LIVE
}


def declared(source: str, target: str) -> bool:
    """Whether a job may go from one state to the other, or stays in it."""
    return source == target or (source, target) in _DECLARED

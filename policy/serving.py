"""How many replicas of a service run: more as soon as its load rises; fewer when the load has been
lower for a delay, and then as many as it needed at most during the delay."""

from __future__ import annotations

import math

from msgspec import Struct


class Replicas(Struct, frozen=True):
    """number: how many run now.
    since: since when the load needs fewer, in seconds; None: it does not.
    most: the most that it has needed since then.
    """

    number: int
    since: float | None = None
    most: int = 0


def needed(load: float, per_replica: float, least: int, most: int) -> int:
    """The fewest replicas that carry a load, from `least` to `most`. load: 0 or more; per_replica:
    the load that one replica carries, above 0."""
    if load >= per_replica * most:
        return most
    return max(least, math.ceil(load / per_replica))


def scaled(before: Replicas | None, wanted: int, now: float, delay: float) -> Replicas:
    """The replicas that run from now on, if the load needs `wanted`. before: those until now; None:
    there are none yet. A clock that is set back starts the delay again."""
    if before is None or wanted >= before.number:
        return Replicas(wanted)
    since, most = now, wanted
    if before.since is not None and before.since <= now:
        since, most = before.since, max(before.most, wanted)
    if now - since < delay:
        return Replicas(before.number, since, most)
    return Replicas(most) if most == wanted else Replicas(most, now, wanted)


def bounded(found: Replicas | None, least: int, most: int) -> int:
    """The number of replicas within limits that may have changed."""
    return least if found is None else min(most, max(least, found.number))

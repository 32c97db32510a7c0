"""The types of the journal's rows, and the desired state that they form. Pure.

Each row is decoded into one of these types and checked (journal.py). Fields that were added later
have a default, because older journals do not have them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct, structs

from rankfold.policy.serving import Replicas, bounded
from rankfold.reconciler.model.desired import (
    Defragmentation,
    Desired,
    Job,
    Origin,
    Pool,
    QuotaRule,
    TierRule,
)
from rankfold.reconciler.model.observed import Measured
from rankfold.reconciler.model.values import Count, ObjectName, Ranks, Seconds


class Override(TypedDict, total=False):
    """Fields of a job that a person has overridden."""

    gpus: Ranks
    suspend: bool
    store: bool
    cancelled: bool


def overridden(job: Job, fields: Override) -> Job:
    """A job with fields that a person has overridden; a number of devices replaces a range."""
    if "gpus" in fields:
        job = job.with_gpus(fields["gpus"])
    return structs.replace(job, **fields)


class ObjectRow(Struct):
    kind: Literal["Job", "Pool"]
    name: ObjectName
    spec: str
    source: str | None
    file: str
    line: Count
    revision: str
    generation: Count
    created: Seconds
    removed: Annotated[int, Meta(ge=0, le=1)]
    override: str


class ActionRow(TypedDict):
    epoch: Count
    kind: str
    begun_at: Seconds
    done_at: Seconds | None


class Attempted(TypedDict):
    revision: str
    time: Seconds
    faults: list[str]


class Unreachable(TypedDict):
    message: str
    since: Seconds


class Unwatched(TypedDict):
    source: str
    since: Seconds


META: dict[str, Any] = {
    "source": str,
    "revision": str,
    "attempted": Attempted,
    "watching": str | None,
    "unreachable": Unreachable | None,
    "unwatched": Unwatched | None,
    "told_to_end": list[str],
    "failing": dict[str, str],
    "checkpoint_store": str,
    "growth_delay_s": Seconds,
    "preemption_delay_s": Seconds,
    "max_wait_s": Seconds,
    "disturbances": dict[str, Count],
    "defragmentation": Defragmentation,
    "tiers": dict[str, TierRule],
    "replicas": dict[str, Replicas],
    "load_problems": dict[str, str],
    "quotas": dict[str, QuotaRule],
    "no_saves": str,
    "incarnations": dict[str, Count],
    "over": dict[str, Seconds],
    "measured": tuple[Measured, ...],
}


class Object(Struct, frozen=True, dict=True):
    """A desired object and its origin."""

    kind: str
    name: str
    spec: Job | Pool
    source: str | None
    origin: Origin
    revision: str
    generation: int
    created: float
    removed: bool
    override: Override

    def effective(self) -> Job | Pool:
        """The spec with overrides applied, and marked as orphaned if its file was removed."""
        return self._effective

    @functools.cached_property
    def _effective(self) -> Job | Pool:
        if not isinstance(self.spec, Job):
            return self.spec
        job = structs.replace(self.spec, created=self.created, orphaned=self.removed)
        if self.override:
            job = overridden(job, self.override)
            job = structs.replace(job, drifted=self.source is not None)
        return job


class Event(Struct, frozen=True):
    id: Count
    time: Seconds
    object: str
    type: str
    reason: str
    message: str


def in_service(job: Job, replicas: Mapping[str, Replicas]) -> Job:
    """A job; idle if it is a replica that its service does not need now. replicas: how many run, by
    service."""
    if job.service is None or not job.service.load:
        return job
    found = replicas.get(job.service.name)
    number = bounded(found, job.service.least, job.service.most)
    return structs.replace(job, idle=job.replica >= number)


def desired_of(objects: Iterable[Object], replicas: Mapping[str, Replicas] = {}) -> Desired:
    """replicas: how many run, by service."""
    pools: dict[str, Pool] = {}
    jobs: dict[str, Job] = {}
    for each in objects:
        spec = each.effective()
        if isinstance(spec, Job):
            jobs[spec.name] = in_service(spec, replicas)
        else:
            pools[spec.name] = spec
    return Desired(pools, jobs)

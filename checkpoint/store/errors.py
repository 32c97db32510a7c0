"""Errors of the store, in words for people: where, what, and a remedy."""

from __future__ import annotations


class StoreError(Exception):
    """Names the store's URL, the object and the rank, as far as they are known, and the remedy."""

    def __init__(
        self, url: str, problem: str, remedy: str = "", *, name: str = "", rank: int | None = None
    ):
        self.url, self.what, self.remedy, self.name, self.rank = url, problem, remedy, name, rank
        where = f"{url.rstrip('/')}/{name}" if name else url
        of = f"rank {rank}: " if rank is not None else ""
        super().__init__(f"{where}: {of}{problem}" + (f"; {remedy}" if remedy else ""))


class Unavailable(StoreError):
    """The store cannot be reached, read or written now. Interrupted work can be resumed."""


class Full(Unavailable):
    """There is no space left in the store."""


class Refused(StoreError):
    """The store is intact, but this must not be done with it, or not by this caller."""


class OldIncarnation(Refused):
    """The job has been restored since: the caller belongs to an earlier incarnation."""


class Overtaken(Refused):
    """Another process has taken this save over."""


class Damaged(StoreError):
    """Something in the store is not what was written; it is never used."""


class Missing(Damaged):
    """Something that should be in the store is missing."""

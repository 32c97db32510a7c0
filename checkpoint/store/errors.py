"""What goes wrong with a store, in words for people: where, what, what to do."""

from __future__ import annotations


class StoreError(Exception):
    """Says the store's URL, the object and the rank, as far as they are known, and the remedy."""

    def __init__(
        self, url: str, what: str, remedy: str = "", *, name: str = "", rank: int | None = None
    ):
        self.url, self.what, self.remedy, self.name, self.rank = url, what, remedy, name, rank
        where = f"{url.rstrip('/')}/{name}" if name else url
        of = f"rank {rank}: " if rank is not None else ""
        super().__init__(f"{where}: {of}{what}" + (f"; {remedy}" if remedy else ""))


class Unavailable(StoreError):
    """The store cannot be reached, read or written now. What was begun can be taken up again."""


class Full(Unavailable):
    """There is no room left in the store."""


class Refused(StoreError):
    """Nothing is wrong with the store, but this may not be done with it, or not by this one."""


class OldIncarnation(Refused):
    """The job has been restored since: who asks belongs to what was before."""


class Overtaken(Refused):
    """Somebody else has taken this save over."""


class Damaged(StoreError):
    """Something in the store is not what was written: it is never used."""


class Missing(Damaged):
    """Something that should be in the store is not there."""

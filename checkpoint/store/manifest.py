"""A checkpoint as described by its manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rankfold.checkpoint.store import documents, names
from rankfold.checkpoint.store.errors import Damaged
from rankfold.checkpoint.store.names import Id, Place

Kind = Literal["buffers", "pages", "blob"]


class PackUse(NamedTuple):
    """A pack that a checkpoint uses: size of the file, rows of its index, bytes of all its units,
    and bytes of the units that this checkpoint needs, including as references."""

    size: int
    rows: int
    raw: int
    used: int


@dataclass(frozen=True)
class Part:
    """A part of a rank, or of the whole job if `rank` is None. `table`: the digest of the unit with
    its table; `rows`: the number of its ranges; `size`: their bytes."""

    rank: int | None
    name: str
    kind: Kind
    grain: int
    size: int
    table: bytes
    rows: int


@dataclass(frozen=True)
class Manifest:
    fleet: str
    job: str
    id: Id
    base: Id | None
    saved: str
    about: dict[str, Any]
    parts: tuple[Part, ...]
    objects: dict[Place, int] = field(repr=False)
    packs: dict[Place, PackUse] = field(repr=False)

    @property
    def size(self) -> int:
        """The size of all parts, each counted by itself."""
        return sum(part.size for part in self.parts)

    @property
    def files(self) -> dict[Place, int]:
        """All files that the checkpoint needs, and their sizes in bytes."""
        return {**self.objects, **{place: use.size for place, use in self.packs.items()}}

    @property
    def stored(self) -> int:
        """The size of the files that hold the checkpoint; other checkpoints may need them, too."""
        return sum(self.files.values())

    def encode(self) -> bytes:
        sources: dict[str, Any] = {}
        for place, size in self.objects.items():
            source = sources.setdefault(place.folder, {"objects": {}, "packs": {}})
            source["objects"][place.digest] = size
        for place, use in self.packs.items():
            source = sources.setdefault(place.folder, {"objects": {}, "packs": {}})
            source["packs"][place.digest] = list(use)
        return documents.seal(
            "manifest",
            fleet=self.fleet,
            job=self.job,
            id=str(self.id),
            base=str(self.base) if self.base else None,
            saved=self.saved,
            about=self.about,
            parts=[{**vars(part), "table": part.table.hex()} for part in self.parts],
            sources=sources,
        )

    @classmethod
    def decode(cls, url: str, job: str, each: Id, data: bytes, name: str = "") -> Manifest:
        """Decode a manifest. `name`: its path, if it is not among the manifests. Raises `Refused`
        or `Damaged`."""
        name = name or names.manifest(job, each)
        document = documents.unseal(url, name, "manifest", data)
        if document["job"] != job or document["id"] != str(each):
            problem = f"is the manifest of {document['id']} of job {document['job']}"
            raise Damaged(url, problem, name=name)
        parts = tuple(
            Part(**{**part, "table": bytes.fromhex(part["table"])}) for part in document["parts"]
        )
        if len({(part.rank, part.name) for part in parts}) != len(parts):
            raise Damaged(url, "has two parts of the same name", name=name)
        sources = document["sources"].items()
        return cls(
            document["fleet"],
            job,
            each,
            Id.parse(document["base"]) if document["base"] else None,
            document["saved"],
            document["about"],
            parts,
            {
                Place(folder, "objects", digest): size
                for folder, source in sources
                for digest, size in source["objects"].items()
            },
            {
                Place(folder, "packs", digest): PackUse(*use)
                for folder, source in sources
                for digest, use in source["packs"].items()
            },
        )

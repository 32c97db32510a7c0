"""Names of a store's files, relative to its URL. docs/checkpoints.md describes their meaning."""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

HEX = r"[0-9a-f]{64}"
JOB = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
ROOT = "store.json"

_ID = re.compile(r"([1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})\Z")
_FOLDER = re.compile(r"([1-9][0-9]{0,9}-[1-9][0-9]{0,9})-[0-9a-f]{8}\Z")
_NUMBERED = re.compile(r"([1-9][0-9]{0,9})\.json\Z")
_DATA = re.compile(rf"([0-9]+-[0-9]+-[0-9a-f]{{8}})/(objects|packs)/({HEX})\Z")


class Id(NamedTuple):
    """The id of a job's checkpoint: those of a later incarnation are newer."""

    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> Id | None:
        match = _ID.match(text)
        return cls(int(match[1]), int(match[2])) if match else None

    @classmethod
    def of_folder(cls, folder: str) -> Id | None:
        match = _FOLDER.match(folder)
        return cls.parse(match[1]) if match else None

    def new_folder(self) -> str:
        """A new name for the folder of its data, never used before or again: so a late removal
        cannot hit data that was written since."""
        return f"{self}-{secrets.token_hex(4)}"


class Place(NamedTuple):
    """A data file: the folder of its save, its kind, its name (BLAKE3)."""

    folder: str
    kind: str  # "objects" or "packs"
    digest: str

    @property
    def name(self) -> str:
        return f"{self.folder}/{self.kind}/{self.digest}"

    @classmethod
    def parse(cls, name: str) -> Place | None:
        match = _DATA.match(name)
        return cls(*match.groups()) if match else None


def probe(name: str = "") -> str:
    """A name outside of all jobs, for a test whether the store can be written."""
    return "probe" + (f"/{name}" if name else "")


def jobs() -> str:
    return "jobs"


def job(name: str) -> str:
    return f"jobs/{name}"


def data(job_name: str, place: Place | None = None) -> str:
    return f"jobs/{job_name}/data" + (f"/{place.name}" if place else "")


def manifest(job_name: str, each: Id | None = None) -> str:
    return f"jobs/{job_name}/manifests" + (f"/{each}.json" if each else "")


def doomed(job_name: str, each: Id | None = None) -> str:
    return f"jobs/{job_name}/doomed" + (f"/{each}.json" if each else "")


def claim(job_name: str, number: Id | None = None) -> str:
    return f"jobs/{job_name}/claims" + (f"/{number}.json" if number else "")


def incarnation(job_name: str, number: int | None = None) -> str:
    return f"jobs/{job_name}/incarnations" + (f"/{number}.json" if number else "")


def fence(job_name: str, since: Id | None = None) -> str:
    return f"jobs/{job_name}/fences" + (f"/{since}.json" if since else "")


def damage(job_name: str, place: Place | None = None) -> str:
    """A mark: this file was found damaged, and no save may rely on it."""
    return f"jobs/{job_name}/damaged" + (f"/{place.name.replace('/', '.')}" if place else "")


def of_damage(name: str) -> Place | None:
    return Place.parse(name.rpartition("/")[2].replace(".", "/"))


def id_of(name: str) -> Id | None:
    """The id in the name of a manifest, a claim or a fence."""
    file = name.rpartition("/")[2]
    return Id.parse(file.removesuffix(".json")) if file.endswith(".json") else None


def number_of(name: str) -> int | None:
    """The number in the name of an incarnation."""
    match = _NUMBERED.match(name.rpartition("/")[2])
    return int(match[1]) if match else None

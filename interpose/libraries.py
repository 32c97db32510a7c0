"""The table of NVIDIA's libraries that ours replace: ``api/libraries.def`` explains its rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

API = Path(__file__).resolve().parent / "api"
_ROW = re.compile(r"^RF_(LIBRARY|SONAME)\((.*)\)", re.MULTILINE)


@dataclass(frozen=True)
class Soname:
    """A library as one major version of CUDA has it."""

    library: str
    cuda: str  # "13"; "any": all versions
    soname: str
    symbols: str  # the version of its symbols; "": they have none

    @property
    def overlay(self) -> Path:
        """The description of what differs from a newer version, if something does."""
        return API / f"{self.library}-{self.cuda}.yaml"

    @property
    def table(self) -> str:
        """The name of the table of its functions in C."""
        return f"api_{self.library}_{self.cuda}"

    @property
    def link(self) -> str:
        """The name without a version."""
        return self.soname.partition(".so")[0] + ".so"


@dataclass(frozen=True)
class Row:
    """A library, with its versions, newest first."""

    name: str
    header: str
    versioned: bool
    prefixes: tuple[str, ...]
    sonames: tuple[Soname, ...] = ()


def parse(text: str) -> dict[str, Row]:
    """The libraries of the table, by name."""
    rows: dict[str, Row] = {}
    for kind, arguments in _ROW.findall(text):
        name, *rest = (word.strip().strip('"') for word in arguments.split(","))
        if kind == "LIBRARY":
            rows[name] = Row(name, rest[0], rest[1] == "1", tuple(rest[2].split()))
            continue
        row, (cuda, soname) = rows[name], rest
        version = Soname(name, cuda, soname, soname if row.versioned else "")
        rows[name] = replace(row, sonames=(*row.sonames, version))
    return rows


@cache
def table() -> dict[str, Row]:
    return parse((API / "libraries.def").read_text())

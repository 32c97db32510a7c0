"""Builds C files of the product into a library of their own and opens it: for pure parts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cffi

REPOSITORY = Path(__file__).parents[2]
CORE = REPOSITORY / "proxy" / "core"


def build(
    folder: Path, sources: Sequence[Path], name: str = "under-test", warnings: bool = True,
    args: Sequence[str] = (),
) -> Path:  # fmt: skip
    """A shared library of `sources` in `folder`; a compiler error fails the test with its text."""
    library = folder / f"{name}.so"
    strict = ["-Wall", "-Wextra", "-Werror"] if warnings else ["-w"]
    command = [os.environ.get("CC", "gcc"), "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-shared",
               "-fPIC", *strict, *args, *shlex.split(os.environ.get("CFLAGS", "")),
               f"-I{REPOSITORY / 'interpose/channel'}", f"-I{CORE}", f"-I{CORE / 'barrier'}",
               f"-I{REPOSITORY / 'proxy/hal'}",
               "-o", str(library), *map(str, sources)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return library


def declarations(*headers: Path) -> str:
    """What cffi needs of headers: without comments, directives and attributes.

    Names that a header defines as plain numbers are put in where an array's length uses them.
    """
    text = ""
    numbers: dict[str, str] = {}
    for header in headers:
        source = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        numbers |= dict(re.findall(r"#define\s+(\w+)\s+(\d+)u?\s*$", source, flags=re.M))
        source = re.sub(r"^\s*#(.*\\\n)*.*$", "", source, flags=re.M)
        text += re.sub(r"__attribute__\(\(.*?\)\)\)|__attribute__\(\(.*?\)\)", "", source)
    return re.sub(r"\[(\w+)\]", lambda m: f"[{numbers.get(m[1], m[1])}]", text)


def structures(header: Path, *names: str) -> str:
    """Only these structures of a header."""
    text = declarations(header)
    return "\n".join(re.findall(rf"^struct (?:{'|'.join(names)}) {{.*?^}};", text, re.M | re.S))


def load(library: Path, *headers: Path, before: str = "") -> tuple[cffi.FFI, Any]:
    """The library and its cffi description; `before`: declarations that the headers need."""
    ffi = cffi.FFI()
    ffi.cdef(before + declarations(*headers))
    return ffi, ffi.dlopen(str(library))

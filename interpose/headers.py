"""Reads the functions that NVIDIA's headers declare, by their names for the linker.

A C parser reads the output of the compiler's preprocessor. ``DEFINES`` make the headers declare
everything: also older forms of a function and its variants for per-thread default streams.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

from rankfold.interpose import libraries

# Replacements for the C library's headers, which the parser cannot read.
LIBC = {
    "stddef.h": "typedef unsigned long size_t;",
    "stdlib.h": "typedef unsigned long size_t;",
    "string.h": "",
    "math.h": "",
    "stdio.h": "typedef struct FILE FILE;",
    "limits.h": "",
    "stdint.h": "".join(
        f"typedef {sign}{kind} {prefix}int{bits}_t;\n"
        for bits, kind in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
        for sign, prefix in (("signed ", ""), ("unsigned ", "u"))
    ),
}
DEFINES = (
    "__attribute__(x)=",
    "__inline__=",
    "__extension__=",
    "__CUDA_API_VERSION_INTERNAL=1",
    "NVML_NO_UNVERSIONED_FUNC_DEFS=1",
)
FILES = {row.name: row.header for row in libraries.table().values() if row.header}


@dataclass(frozen=True)
class Declared:
    """A declaration as text, and its number of parameters."""

    text: str
    parameters: int


def preprocess(header: Path, *include: Path, compiler: str = "gcc") -> str:
    """The preprocessed header and its includes, except the C library's. Raises `OSError`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in LIBC.items():
            (Path(folder) / name).write_text(text)
        command = [
            compiler,
            "-E",
            "-P",
            "-std=c99",
            "-nostdinc",
            f"-I{folder}",
            f"-I{header.parent}",
            *(f"-I{path}" for path in include),
            *(f"-D{d}" for d in DEFINES),
            str(header),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{header}: {done.stderr.strip()}")
    return done.stdout


def declared(library: str, text: str) -> dict[str, Declared]:
    """The functions of that library in preprocessed C. Raises `pycparser`'s ParseError."""
    found = {}
    printer = c_generator.CGenerator()
    for node in c_parser.CParser().parse(text).ext:
        if not (isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl)):
            continue
        if library_of(node.name) != library:
            continue
        found[node.name] = Declared(printer.visit(node), count_parameters(node.type))
    return found


def library_of(name: str) -> str:
    """The library to which a function belongs; '': none."""
    known = [(prefix, row.name) for row in libraries.table().values() for prefix in row.prefixes]
    return max((len(p), library) for p, library in [*known, ("", "")] if name.startswith(p))[1]


def count_parameters(function: c_ast.FuncDecl) -> int:
    parameters = function.args.params if function.args else []
    if len(parameters) == 1 and isinstance(parameters[0].type, c_ast.TypeDecl):
        kind = parameters[0].type.type
        if isinstance(kind, c_ast.IdentifierType) and kind.names == ["void"]:
            return 0
    return len(parameters)


def read(library: str, folders: list[Path]) -> dict[str, Declared]:
    """Read the first of the folders that has the library's header; without one: empty."""
    for folder in folders:
        if library in FILES and (folder / FILES[library]).exists():
            return declared(library, preprocess(folder / FILES[library]))
    return {}

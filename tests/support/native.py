"""Builds C files of the product into a library of their own and opens it: for pure parts."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cffi

from rankfold import paths

REPOSITORY = Path(__file__).parents[2]
CORE = REPOSITORY / "proxy" / "core"
OBJECTS = REPOSITORY / "build/tests/objects"  # named by the content of all they are made from


def build(
    folder: Path,
    sources: Sequence[Path],
    name: str = "under-test",
    warnings: bool = True,
    args: Sequence[str] = (),
) -> Path:
    """A shared library of `sources` (C files and objects) in `folder`; a compiler error fails the
    test with its text. A file that was compiled before is not compiled again (`OBJECTS`)."""
    library = folder / f"{name}.so"
    strict = ["-Wall", "-Wextra", "-Werror"] if warnings else ["-w"]
    compiler = [
        os.environ.get("CC", "gcc"),
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O1",
        "-g",
        "-fPIC",
        *strict,
        *args,
        *shlex.split(os.environ.get("CFLAGS", "")),
    ]
    includes = [
        f"-I{REPOSITORY / 'interpose/channel'}",
        f"-I{CORE}",
        f"-I{CORE / 'barrier'}",
        f"-I{REPOSITORY / 'proxy/hal'}",
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = pool.map(lambda source: _object(source, [*compiler, *includes]), sources)
        _run([*compiler, "-shared", "-o", str(library), *map(str, objects)])
    return library


def _object(source: Path, compiler: Sequence[str]) -> Path:
    """The object of a C file, compiled unless `OBJECTS` has it."""
    if source.suffix != ".c":
        return source
    flags = [flag for flag in compiler if not flag.startswith("-Wl,")]
    content = hashlib.sha256("\0".join([source.name, *flags, _headers()]).encode())
    for file in (source, *sorted(source.parent.glob("*.h")), *_included(source)):
        content.update(file.read_bytes())
    path = OBJECTS / f"{source.stem}-{content.hexdigest()[:24]}.o"
    if not path.exists():
        OBJECTS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=OBJECTS) as fresh:
            made = Path(fresh, path.name)
            _run([*flags, "-c", "-o", str(made), str(source)])
            made.rename(path)
    return path


def _included(source: Path) -> Iterator[Path]:
    """The C files that it includes, by their names wherever they are."""
    for name in re.findall(r'^#include "(?:.*/)?(.*\.c)"', source.read_text(), re.MULTILINE):
        for room in ("interpose", "proxy", "tests"):
            yield from sorted((REPOSITORY / room).rglob(name))


@functools.cache
def _headers() -> str:
    """A digest of the compiler's version and of all headers that a C file may include."""
    compiler = [os.environ.get("CC", "gcc"), "--version"]
    version = subprocess.run(compiler, check=True, capture_output=True).stdout
    content = hashlib.sha256(version)
    for room in ("interpose", "proxy"):
        for file in sorted((REPOSITORY / room).rglob("*")):
            if file.suffix in (".h", ".def"):
                content.update(file.read_bytes())
    return content.hexdigest()


def _run(command: Sequence[str]) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{' '.join(command)}\n{process.stderr}"


def built_with(source: Path, changed: Path, folder: Path) -> Path:
    """A folder for RANKFOLD_NATIVE: the build, with a library of the proxy's or the client's in
    which `changed` replaces `source`. Only that file is compiled."""
    made = folder / "native"
    shutil.copytree(paths.native("include"), made / "include")
    shutil.copytree(paths.native("lib"), made / "lib", symlinks=True)
    objects = paths.native("obj")
    here = objects / source.relative_to(REPOSITORY).with_suffix(".o")
    part = source.relative_to(REPOSITORY).parts[0]
    others = [  # an earlier commit's build may have left more
        each
        for each in (objects / part).rglob("*.o")
        if each != here
        and any(
            (REPOSITORY / each.relative_to(objects)).with_suffix(kind).exists()
            for kind in (".c", ".S")
        )
    ]
    made_of = _proxy_arguments(source) if part == "proxy" else _client_arguments()
    library = "librankfold-proxy.so" if part == "proxy" else "librankfold.so"
    subprocess.run(
        [
            "cc",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-fPIC",
            "-shared",
            "-O1",
            "-w",
            "-o",
            str(made / "lib" / library),
            str(changed),
            *map(str, others),
            *made_of,
            "-lpthread",
            "-lm",
            "-ldl",
        ],
        check=True,
    )
    return made


def _proxy_arguments(source: Path) -> list[str]:
    includes = (
        source.parent,
        *(REPOSITORY / at for at in ("interpose/channel", "proxy/core", "proxy/hal")),
        paths.native("gen"),
    )
    return [f"-I{each}" for each in includes]


def _client_arguments() -> list[str]:
    """As interpose/build.mk has them; a file that replaces another finds all layers."""
    generated = paths.native("gen")
    layers = [REPOSITORY / "interpose/client" / at for at in ("base", "issue", "graph", "api")]
    return [
        *(f"-I{each}" for each in (REPOSITORY / "interpose/channel", *layers, generated)),
        "-ftls-model=initial-exec",
        "-DRF_CLIENT",
        "-Wl,-Bsymbolic",
        "-Wl,-soname,librankfold.so",
        f"-Wl,--version-script={generated / 'client.map'}",
        *map(str, paths.native("obj/gen").glob("api_*.o")),
        "-static-libgcc",
        "-Wl,--exclude-libs,libgcc.a:libgcc_eh.a",
    ]


def declarations(*headers: Path) -> str:
    """The declarations of headers for cffi, without comments, directives and attributes.

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
    """Only these structures and enumerations of a header."""
    text = declarations(header)
    pattern = rf"^(?:struct|enum) (?:{'|'.join(names)}) {{.*?^}};"
    return "\n".join(re.findall(pattern, text, re.M | re.S))


def load(library: Path, *headers: Path, before: str = "") -> tuple[cffi.FFI, Any]:
    """The library and its cffi description; `before`: declarations that the headers need."""
    ffi = cffi.FFI()
    ffi.cdef(before + declarations(*headers))
    return ffi, ffi.dlopen(str(library))

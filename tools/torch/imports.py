"""Lists what PyTorch's libraries import from NVIDIA's libraries that rankfold replaces.

``imports.py DESTINATION NAME=PATH ...``: each PATH is a wheel, or a folder with libraries; NAME is
what the list calls it. tests/interpose/imported_by_pytorch.yaml is such a list, and test_exports.py
next to it compares it with what rankfold's libraries export. A wheel is fetched by
``pip download --no-deps --only-binary :all: torch==2.15.0``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rankfold.interpose import libraries

UNDEFINED = re.compile(r"^ +[Uw] (\w+)(?:@(\S+))?$", re.MULTILINE)
INDENT = 4 * " "
HEADING = """\
# The functions that PyTorch imports from libraries of interpose/api/libraries.def, with the version
# of each symbol. tools/torch/imports.py wrote it from the wheels of PyPI (2.6.0 for CUDA 12.4; the
# others for CUDA 13), which are named by their versions.
"""


def imported(library: Path) -> Iterator[str]:
    """Yields each function that a library imports from a library of the table: name@version."""
    command = ["nm", "-D", "--undefined-only", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    links = {each.link for row in libraries.table().values() for each in row.sonames}
    prefixes = [each for row in libraries.table().values() for each in row.prefixes]
    unversioned = re.compile(f"({'|'.join(prefixes)})[A-Z]")
    for name, version in UNDEFINED.findall(text):
        if version.partition(".so")[0] + ".so" in links:
            yield f"{name}@{version}"
        elif not version and unversioned.match(name):
            yield name


def libraries_of(source: Path) -> Iterator[Path]:
    """Yields the shared libraries of a folder or a wheel, which are unpacked one after another."""
    if source.is_dir():
        yield from sorted(each for each in source.rglob("*.so*") if each.is_file())
        return
    with zipfile.ZipFile(source) as wheel, tempfile.TemporaryDirectory() as folder:
        for name in sorted(wheel.namelist()):
            if re.search(r"\.so(\.\d+)*$", name):
                library = Path(wheel.extract(name, folder))
                yield library
                library.unlink()


def text(importers: dict[str, list[str]]) -> str:
    """Returns the list as YAML. `importers`: the names of what imports each function."""
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for function, names in sorted(importers.items()):
        name, _, version = function.partition("@")
        groups[version, " ".join(names)].append(name)
    lines = [HEADING]
    for (version, names), functions in sorted(groups.items()):
        lines += [f"- builds: {names}", f'  version: "{version}"', "  functions: >"]
        lines += textwrap.wrap(
            " ".join(functions), 100, initial_indent=INDENT, subsequent_indent=INDENT
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    destination, *sources = sys.argv[1:]
    importers: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        name, _, path = source.partition("=")
        found = {each for library in libraries_of(Path(path)) for each in imported(library)}
        for function in found:
            importers[function].append(name)
    Path(destination).write_text(text(importers))


if __name__ == "__main__":
    main()

"""Promise: calls in the proxy's core go down: from folder to folder, and within a folder whose
header lists the order of its files."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from rankfold import paths
from support.linked import Calls, calls, circle
from support.native import CORE, REPOSITORY

# From the lowest to the highest; those of one row know nothing of each other.
ROOMS = (
    ("versions", "order"),
    ("memory", "barrier", "collective"),
    ("crosscheck", "peer"),
    ("opaque",),
    ("rank",),
    ("queue",),
    ("loop",),
)
# The headers that say their folder's order: a line for each file, from the lowest to the highest.
ORDERS = {
    "order": "order.h",
    "memory": "memory.h",
    "barrier": "barrier_parts.h",
    "collective": "engine.h",
    "crosscheck": "crosscheck.h",
    "opaque": "opaque.h",
    "rank": "rank.h",
    "queue": "item.h",
}


def objects() -> dict[str, Path]:
    """``queue/item.c`` and its object."""
    folder = paths.native("obj") / "proxy/core"
    names = [source.relative_to(CORE) for source in CORE.rglob("*.c")]
    return {str(name): folder / name.with_suffix(".o") for name in names}


def folder_of(file: str) -> str:
    return file.partition("/")[0]


def floor(file: str) -> int:
    return next(n for n, rooms in enumerate(ROOMS) if folder_of(file) in rooms)


def upward_calls(found: Calls) -> dict[tuple[str, str], set[str]]:
    """Calls from a folder to one that is not below it."""
    bad: dict[tuple[str, str], set[str]] = {}
    for (a, b), what in found.items():
        if folder_of(a) != folder_of(b) and floor(a) <= floor(b):
            bad.setdefault((folder_of(a), folder_of(b)), set()).update(what)
    return bad


def listed(header: Path) -> list[str]:
    text = header.read_text().partition("*/")[0]
    return re.findall(r"^ \*   (\w+\.c) ", text, re.MULTILINE)


def order(name: str) -> list[str]:
    return [f"{name}/{file}" for file in listed(CORE / name / ORDERS[name])]


def upward(found: Calls, says: list[str]) -> Calls:
    return {(a, b): what for (a, b), what in found.items() if says.index(a) < says.index(b)}


def test_no_folder_calls_one_that_is_not_below_it() -> None:
    found = calls(objects())
    floors = {floor(name) for pair in found for name in pair}
    assert len(found) > 150 and floors == set(range(len(ROOMS)))
    assert upward_calls(found) == {}


@pytest.mark.parametrize("name", ORDERS)
def test_the_files_of_a_folder_call_in_the_order_that_its_header_says(name: str) -> None:
    says = order(name)
    assert set(says) == {f"{name}/{source.name}" for source in (CORE / name).glob("*.c")}
    inside = {file: path for file, path in objects().items() if folder_of(file) == name}
    found = calls(inside)
    assert found and circle(found) == []
    assert upward(found, says) == {}


def test_the_files_of_the_nvidia_hal_call_in_the_order_that_its_header_says() -> None:
    folder = CORE.parent / "hal/nvidia"
    says = listed(folder / "nvidia_hal.h")
    assert set(says) == {source.name for source in folder.glob("*.c")}
    built = paths.native("obj") / "proxy/hal/nvidia"
    found = calls({name: (built / name).with_suffix(".o") for name in says})
    assert len(found) > 20 and upward(found, says) == {}
    assert upward({("space.c", "thread.c"): {"a"}}, says)


def test_no_file_sees_a_header_of_a_folder_that_is_not_below_it() -> None:
    """The build gives each folder a folder of links, so that a wrong include does not compile."""
    below = set[tuple[str, str]]()
    for name, path in objects().items():
        depends = path.with_suffix(".d").read_text()
        seen = set(re.findall(rf"/rooms/{folder_of(name)}/(\w+)/", depends))
        below |= {(folder_of(name), each) for each in seen - {folder_of(name)}}
        assert "/../" not in depends, name
    assert ("loop", "queue") in below and ("queue", "rank") in below
    assert [(a, b) for a, b in below if floor(a) < floor(b)] == []


HEADERS = sorted(str(path.relative_to(CORE)) for path in CORE.glob("*/*.h"))
OF_DEVICES = ["soft/soft.h", "nvidia/nvidia_hal.h"]


def compiled(name: str, text: str) -> str:
    """The compiler's errors for this source, compiled as a file of the folder."""
    command = ["gcc", "-fsyntax-only", "-xc", "-", f"-I{REPOSITORY / 'interpose/channel'}"]
    folders = [f"-I{paths.native('rooms') / each}" for each in ("hal", name)]
    done = subprocess.run([*command, *folders], input=text, capture_output=True, text=True)
    return done.stderr


@pytest.mark.parametrize("name", [each for row in ROOMS for each in row])
def test_a_folder_finds_its_own_headers_and_those_below_and_no_others(name: str) -> None:
    text = "".join(
        f'#if __has_include("{header}")\n#error found {header}\n#endif\n'
        for header in [*HEADERS, *OF_DEVICES]
    )
    found = set(re.findall(r"#error found (\S+)\n", compiled(name, text)))
    assert {header for header in HEADERS if folder_of(header) == name} <= found
    assert found.isdisjoint(OF_DEVICES)
    others = {folder_of(header) for header in found} - {name}
    assert [each for each in others if floor(each) >= floor(name)] == []


def test_a_wrong_include_does_not_compile() -> None:
    assert compiled("queue", '#include "rank/rank.h"\n') == ""
    assert "loop/internal.h: No such file" in compiled("queue", '#include "loop/internal.h"\n')
    assert compiled("memory", '#include "versions/digest.h"\n') == ""
    assert "rank/rank.h: No such file" in compiled("memory", '#include "rank/rank.h"\n')


def test_header_folders_have_links_within_the_checkout() -> None:
    """A copied checkout would otherwise compile the headers of the original."""
    links = [path for path in paths.native("rooms").rglob("*") if path.is_symlink()]
    assert links and not [link for link in links if os.path.isabs(os.readlink(link))]


def test_the_rules_bite() -> None:
    found: Calls = {("memory/a.c", "queue/b.c"): {"b"}, ("loop/c.c", "memory/a.c"): {"a"}}
    assert upward_calls(found) == {("memory", "queue"): {"b"}}
    found = {("barrier/a.c", "collective/b.c"): {"b"}, ("queue/a.c", "barrier/a.c"): {"a"}}
    assert upward_calls(found) == {("barrier", "collective"): {"b"}}

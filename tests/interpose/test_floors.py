"""The client's floors (interpose/client/base/base.h), and what must not happen inside a job."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rankfold import paths
from support.linked import Calls, calls, circle
from support.native import REPOSITORY
from support.preloaded import CLIENT

FLOORS = ("base", "issue", "graph", "api")
OBJECTS = paths.native("obj")
INSIDE = CLIENT / "base/inside.h"


def objects() -> dict[str, Path]:
    """``issue/copy.c`` and its object; generated bodies belong to the highest floor."""
    found = {
        str(source.relative_to(CLIENT)): OBJECTS / source.relative_to(REPOSITORY).with_suffix(".o")
        for source in CLIENT.glob("*/*.c")
    }
    generated = {f"api/generated {o.stem}": o for o in (OBJECTS / "gen").glob("*.o")}
    return found | generated


def floor(file: str) -> int:
    return FLOORS.index(file.partition("/")[0])


def upward(found: Calls) -> list[tuple[str, str, set[str]]]:
    return [(a, b, what) for (a, b), what in found.items() if floor(a) < floor(b)]


def test_nothing_calls_a_higher_floor_and_nothing_runs_in_a_circle() -> None:
    found = calls(objects())
    assert len(found) > 200 and {floor(name) for pair in found for name in pair} == {0, 1, 2, 3}
    assert upward(found) == []
    # The tables of generated entries are data, in which lookup.c finds all functions.
    plain = {p: what for p, what in found.items() if p[0] != "api/lookup.c" or "gen" not in p[1]}
    assert circle(plain) == []


def test_the_search_for_calls_bites() -> None:
    found: Calls = {("base/a.c", "issue/b.c"): {"b"}, ("issue/b.c", "issue/c.c"): {"c"}}
    assert upward(found) == [("base/a.c", "issue/b.c", {"b"})] and circle(found) == []
    found["issue/c.c", "issue/b.c"] = {"d"}
    assert set(circle(found)) == {"issue/b.c", "issue/c.c"}


def test_no_file_sees_a_header_of_a_higher_floor() -> None:
    for name, path in objects().items():
        headers = re.findall(r"interpose/client/(\w+/\w+\.h)", path.with_suffix(".d").read_text())
        assert headers and [h for h in headers if floor(h) > floor(name)] == [], name


def compiled(tmp_path: Path, text: str, *args: str) -> subprocess.CompletedProcess[str]:
    source = tmp_path / "inside.c"
    source.write_text(text)
    command = [
        "gcc",
        "-std=c11",
        "-D_GNU_SOURCE",
        "-fsyntax-only",
        "-include",
        str(INSIDE),
        f"-I{CLIENT / 'base'}",
        f"-I{REPOSITORY / 'interpose/channel'}",
        *args,
        str(source),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "statement",
    [
        "exit(1)",
        "abort()",
        'puts("here")',
        'printf("here")',
        'fprintf(stderr, "here")',
        'getenv("HOME")',
        "fork()",
        "signal(2, 0)",
        "pthread_create(0, 0, 0, 0)",
        "pthread_mutex_lock(0)",
        "assert(0)",
        'system("ls")',
    ],
)
def test_calls_forbidden_inside_a_job_do_not_compile(tmp_path: Path, statement: str) -> None:
    text = '#include <stdio.h>\n#include "base.h"\nvoid f(void);\n'
    text += "void f(void)\n{\n\t%s;\n}\n"
    assert compiled(tmp_path, text % "lock(HEAP_LOCK)").returncode == 0
    done = compiled(tmp_path, text % statement)
    name = "stderr" if "stderr" in statement else statement.partition("(")[0]
    assert done.returncode and f'attempt to use poisoned "{name}"' in done.stderr


def test_each_exception_has_one_caller() -> None:
    allowed = {
        "inside_environment": "base/connect.c",
        "inside_stdout": "issue/print.c",
        "inside_thread": "base/thread.c",
        "inside_visible_devices": "base/visible.c",
    }
    assert set(re.findall(r"\b(inside_\w+)\(", INSIDE.read_text())) == set(allowed)
    for name, file in allowed.items():
        users = [str(p.relative_to(CLIENT)) for p in CLIENT.glob("*/*.c") if name in p.read_text()]
        assert users == [file]
        assert f"/* {Path(file).name}" in INSIDE.read_text()


def test_a_lock_out_of_order_ends_a_build_with_the_sanitizer(tmp_path: Path) -> None:
    program = tmp_path / "locks"
    source = tmp_path / "locks.c"
    source.write_text("""#include "base.h"
    int main(int count, char **unused)
    {
        (void)unused;
        lock(count > 1 ? HEAP_LOCK : RING_LOCK);
        lock(count > 1 ? RING_LOCK : HEAP_LOCK);
        return 0;
    }""")
    command = [
        "gcc",
        "-std=c11",
        "-D_GNU_SOURCE",
        "-fsanitize=address",
        "-include",
        str(INSIDE),
        f"-I{CLIENT / 'base'}",
        f"-I{REPOSITORY / 'interpose/channel'}",
        str(source),
        str(CLIENT / "base/locks.c"),
        str(CLIENT / "base/log.c"),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    assert subprocess.run([program, "in order"], check=False).returncode == 0
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode and "HEAP_LOCK is taken while RING_LOCK is held" in done.stderr

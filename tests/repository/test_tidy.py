"""Rules about the repository's own files that no linter knows."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from rankfold.interpose import carried
from rankfold.paths import REPOSITORY

FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
TAB = 4
C_LIKE = (".c", ".h", ".cu", ".cuh", ".cc", ".cpp", ".hpp")
BUILT = re.compile(r"\.(so(\.\d+)*|o|a|d|pyc|ptx|fatbin|cubin|whl|log)$|(^|/)(build|__pycache__)/")
# Functions that were longer when the rule came, with their length then: they may only shrink.
LONGER: dict[str, int] = {}


def own_files(*more: str) -> list[str]:
    """Those that are committed."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", *more], cwd=REPOSITORY, capture_output=True, check=True, text=True
    )
    return [n for n in listing.stdout.split("\0") if n and os.path.lexists(REPOSITORY / n)]


def sources(*suffixes: str) -> list[str]:
    """Those that the next commit may add, too: a rule is seen before it."""
    return [
        name
        for name in own_files("--cached", "--others", "--exclude-standard")
        if name.endswith(suffixes) and not (REPOSITORY / name).is_symlink()
    ]


@cache
def read(name: str) -> str:
    return (REPOSITORY / name).read_text()


def test_nothing_built_is_committed() -> None:
    """Except the PTX of our own kernels: rankfold is built without nvcc, and tests/interpose and
    tests/nvidia check that it is of its source."""
    kept = {f"interpose/{c.library}/{kind}.ptx" for c in carried.ALL for kind in c.types}
    kept.add("proxy/hal/nvidia/kernels/sums.ptx")
    assert [name for name in own_files() if BUILT.search(name) and name not in kept] == []


def test_links_lead_somewhere_inside() -> None:
    links = [REPOSITORY / name for name in own_files() if (REPOSITORY / name).is_symlink()]
    assert links, "the import names are links"
    bad = [
        link for link in links if not link.exists() or not link.resolve().is_relative_to(REPOSITORY)
    ]
    assert bad == []


def test_each_c_file_opens_with_what_it_is_for() -> None:
    bad = [name for name in sources(*C_LIKE) if not read(name).startswith(("/*", "//"))]
    assert bad == []


def test_lines_fit() -> None:
    """Python's lines are ruff's business."""
    bad = [
        f"{name}:{number}"
        for name in sources(*C_LIKE)
        for number, line in enumerate(read(name).splitlines(), 1)
        if len(line.expandtabs(TAB)) > COLUMNS_MAX
    ]
    assert bad == []


def test_no_line_ends_in_blanks() -> None:
    bad = [
        f"{name}:{number}"
        for name in sources(*C_LIKE, ".py", ".mk", ".md", ".yaml", ".toml", ".sh", "Makefile")
        for number, line in enumerate(read(name).splitlines(), 1)
        if line != line.rstrip()
    ]
    assert bad == []


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    pending: list[Any] = [ast.parse(text)]  # statements only, which are few: no expressions
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending += getattr(node, block, ())


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """A body opens with a brace in the first column, or at the end of a line that starts there."""
    start, name = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line[:1].isalpha() and "(" in line and not line.rstrip().endswith(";"):
            start = number
            found = re.search(r"(\w+)\(", line)
            name = found[1] if found else ""
        if line.startswith("}") and name:
            yield name, number - start + 1
            name = ""


def test_functions_can_be_seen_whole() -> None:
    lengths = {
        f"{file}:{function}": lines
        for suffixes, functions in (((".py",), python_functions), (C_LIKE, c_functions))
        for file in sources(*suffixes)
        for function, lines in functions(read(file))
        if lines > FUNCTION_LINES_MAX
    }
    grown = {where: n for where, n in lengths.items() if n > LONGER.get(where, 0)}
    assert grown == {}, f"longer than {FUNCTION_LINES_MAX} lines"
    shrunk = {where: n for where, n in LONGER.items() if lengths.get(where, 0) < n}
    assert shrunk == {}, "shorter by now: lower the number in LONGER, or remove the line"


def test_the_length_check_bites() -> None:
    long_python = "def f():\n" + "    pass\n" * 80
    long_c = "static int\nf(void)\n{\n" + "\tx();\n" * 80 + "}\n"
    assert list(python_functions(long_python)) == [("f", 81)]
    assert list(c_functions(long_c)) == [("f", 83)]
    assert list(c_functions("int f(int a,\n\tint b) {\n\treturn 1;\n}\nint g;\n")) == [("f", 4)]


def make_targets() -> set[str]:
    text = "\n".join(read(name) for name in sources("Makefile", ".mk"))
    return set(re.findall(r"^([a-z][a-z-]*)[^:=\n]*:", text, re.MULTILINE)) | {
        name for line in re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE) for name in line.split()
    }


def test_documents_name_targets_that_exist() -> None:
    named = {
        (name, target)
        for name in [*sources(".md"), ".ci/run"]
        for target in re.findall(r"(?:`|^step |^ {4})make ([a-z][a-z-]*)", read(name), re.MULTILINE)
    }
    assert named
    assert {(n, t) for n, t in named if t not in make_targets()} == set()


@pytest.mark.parametrize("name", sources(".md"))
def test_links_in_documents_lead_somewhere(name: str) -> None:
    folder = (REPOSITORY / name).parent
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", read(name))
    local = [t for t in targets if not re.match(r"[a-z]+:", t)]
    assert [t for t in local if not (folder / t).exists()] == []


def test_scripts_are_executable_and_parse() -> None:
    scripts = [n for n in own_files() if (REPOSITORY / n).is_file() and _shebang(n)]
    assert ".ci/run" in scripts
    for name in scripts:
        assert os.access(REPOSITORY / name, os.X_OK), f"chmod +x {name}"
        if "sh" in _shebang(name):
            subprocess.run(["bash", "-n", REPOSITORY / name], check=True)


def _shebang(name: str) -> str:
    with open(REPOSITORY / name, "rb") as file:
        line = file.readline(200)
    return line.decode() if line.startswith(b"#!") else ""


PRODUCT = (
    "checkpoint/",
    "elastic/",
    "interpose/",
    "policy/",
    "proxy/",
    "rankfold/",
    "reconciler/",
    "simulator/",
)
THINGS = "(bytes|ranks|devices|jobs|kernels|communicators|processes)"
# A limit or a fixed size is a name in capitals, and never 1.
UNCOUNTED = re.compile(
    rf"\{{(?![A-Z_]+\}}|[^{{}}]*\b(plural|count)\()[^{{}}]*\}} {THINGS}\b"
    rf"|%(?:ll|z|h)?[dui] {THINGS}\b"
)
ALWAYS_SEVERAL = (
    "a sealed memfd of %llu bytes",
    "its parameters take %u bytes, more than CUDA's",
    "{record.device_type} devices",
)


def uncounted(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if UNCOUNTED.search(line) and not any(each in line for each in ALWAYS_SEVERAL)
    ]


def test_messages_say_one_byte_and_two_bytes() -> None:
    """A number of things goes through `count` of plural.py, or `plural` of plural.h."""
    assert uncounted("a", 'f"{n} ranks of {size} bytes"\nsay("%zu bytes at", n)')[1:]
    assert uncounted("a", 'f"{count(n, \'rank\')} with {LIMIT} bytes"\n"%u rank%s"') == []
    names = [name for name in sources(".py", ".c", ".h") if name.startswith(PRODUCT)]
    assert [line for name in names for line in uncounted(name, read(name))] == []

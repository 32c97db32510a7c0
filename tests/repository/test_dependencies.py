"""The run-time dependencies in pyproject.toml are what is imported at run time; all are pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

from .test_tidy import read, sources

# Name of the package in the index, where it is not that of the module.
PACKAGES = {"yaml": "pyyaml"}
# Some formats of traces need this package; without it, rankfold reports its name as missing.
SIMULATE_ONLY = ("simulator/pollux.py",)
# Needs PyTorch, which users bring along; the command names it where it is missing.
ELASTIC = {"numpy", "torch"}
BUILD_ONLY = (
    "interpose/generate.py",
    "interpose/descriptions.py",
    "interpose/headers.py",
    "interpose/carried.py",
    "proxy/hal/nvidia/kernels/build.py",
)
PROJECT = tomllib.loads(read("pyproject.toml"))["project"]


def needed(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[~!]", each)[0].lower() for each in requirements}


def imported(names: list[str]) -> set[str]:
    found = set()
    for name in names:
        for node in ast.walk(ast.parse(read(name))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    ours = {"rankfold", *sys.stdlib_module_names}
    return {PACKAGES.get(module, module) for module in found - ours if not module.startswith("_")}


def test_the_runtime_needs_what_it_imports_and_nothing_else() -> None:
    files = sources(".py")
    running = [
        name
        for name in files
        if name.startswith(
            (
                "checkpoint/",
                "interpose/",
                "policy/",
                "proxy/",
                "rankfold/",
                "reconciler/",
                "simulator/",
            )
        )
        and name not in (*BUILD_ONLY, *SIMULATE_ONLY)
    ]
    elastic = [name for name in files if name.startswith("elastic/")]
    assert imported(elastic) == ELASTIC
    assert imported(running) == needed(PROJECT["dependencies"])
    simulate = needed(PROJECT["optional-dependencies"]["simulate"])
    assert imported(list(SIMULATE_ONLY)) - needed(PROJECT["dependencies"]) == simulate
    build = needed(PROJECT["optional-dependencies"]["build"])
    assert imported(list(BUILD_ONLY)) - needed(PROJECT["dependencies"]) == build


def test_every_requirement_has_its_pin() -> None:
    lines = read("tools/constraints.txt").splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line}
    extras = PROJECT["optional-dependencies"]
    asked = needed(
        [*PROJECT["dependencies"], *extras["build"], *extras["simulate"], *extras["test"]]
    ) - {"rankfold"}
    assert {name.replace("_", "-") for name in asked} <= {n.replace("_", "-") for n in pinned}
    assert [line for line in lines if not re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line)] == []

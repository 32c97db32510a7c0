"""Call sites have the same numbers in all ranks, walked or remembered."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.native import REPOSITORY
from support.preloaded import FLOORS

CLIENT = REPOSITORY / "interpose/client"
SOURCE = CLIENT / "issue/call_site.c"


def build(folder: Path, source: Path) -> Path:
    program = folder / "call_sites"
    floors = [f"-I{REPOSITORY / 'interpose/channel'}", *(f"-I{floor}" for floor in FLOORS)]
    sources = [str(source), str(Path(__file__).with_name("call_sites.c"))]
    command = [
        "gcc",
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O2",
        "-fno-optimize-sibling-calls",
        "-w",
        "-fPIE",
        "-pie",
        "-Wl,--wrap=_Unwind_Backtrace",
        *floors,
        "-o",
        str(program),
        *sources,
        "-lpthread",
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def check(program: Path) -> None:
    runs = []
    for _ in range(2):
        done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
        runs.append([line.split() for line in done.stdout.splitlines()])
    (*one, where), (*other, elsewhere) = runs
    assert where != elsewhere, "both are loaded at the same address: nothing is shown"
    assert one == other, "a call site has another number in another process"
    assert one.pop() == ["walked", "9", "0"]
    half = len(one) // 2
    assert one[:half] == one[half:], "a call site that is remembered has another number"
    calls = {(name, site, path) for name, site, path in one}
    sites = {name: site for name, site, _ in calls}
    paths = {name: path for name, _, path in calls}
    assert len(calls) == len(sites), "a call site has two numbers"
    assert sites["parameters"] != sites["gradients"] and paths["parameters"] == paths["gradients"]
    assert sites["through"] not in (sites["parameters"], sites["gradients"])
    assert paths["through"] != paths["parameters"] != paths["deep"] != paths["through"]
    assert sites["deep"] != sites["deeper"] == sites["deepest"], "the nearest frames count"


def test_they_are_the_same_wherever_the_program_is_loaded_and_distinguished(tmp_path: Path) -> None:
    check(build(tmp_path, SOURCE))

"""Promise: each invariant of proxy and client, once broken, is named, and its process aborts.

`broken.c` (the core) and `broken_client.c` corrupt one structure at a time, each in a child of its
own. Invariants that only a change of the code can break have a seeded fault in
hostile/seeded_faults.py.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from hostile.programs import built
from hostile.seeded_faults import named_as_people_run_it

from rankfold import paths
from rankfold.paths import REPOSITORY
from support.patience import scaled


def invariants(*folders: str) -> set[str]:
    """The texts of the invariants in these folders."""
    found = set[str]()
    for source in sorted(each for at in folders for each in (REPOSITORY / at).rglob("*.[ch]")):
        for begin in re.finditer(r"\b(?:INVARIANT|WRONG)\((?!condition)", source.read_text()):
            call = source.read_text()[begin.end() :].split(");\n", 1)[0]
            if source.name == "spin.h":  # its callers give the text: channel/test_moment.py
                continue
            said = re.findall(r'"((?:[^"\\]|\\.)*)"', call)
            assert said, f"{source}: an invariant without a text: {call}"
            found.add(said[-1])
    return found


def named_by(program: Path) -> set[str]:
    without_leaks = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # corrupted ones are left
    done = subprocess.run(
        [program], env=without_leaks, capture_output=True, text=True, timeout=scaled(60)
    )
    lines = done.stdout.splitlines()
    wrong = [line for line in lines if line.startswith("not named: ")]
    assert done.returncode == 0 and not wrong, "\n".join([*wrong, done.stderr])
    return set(lines)


def test_each_invariant_of_the_core_is_named_when_it_is_broken() -> None:
    named = named_by(built("broken"))
    there = invariants("proxy")
    assert len(there) > 100
    assert there - named - named_as_people_run_it() == set()


def test_each_invariant_of_the_client_is_named_when_it_is_broken() -> None:
    native = f"NATIVE={paths.native('obj').parent}"
    there = invariants("interpose/client", "interpose/channel")
    assert len(there) > 20
    assert there - named_by(built("broken-client", (native,), "client")) == set()

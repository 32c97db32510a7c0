"""Promise: the proxy's threads share nothing without saying so (the thread sanitizer)."""

from __future__ import annotations

import subprocess

from rankfold.paths import REPOSITORY


def test_calls_ranks_that_work_and_move_and_the_devices_workers_do_not_race() -> None:
    program = REPOSITORY / "build/fuzz/threads"
    make = ["make", "--silent", "-f", "tests/hostile/build.mk", "build/fuzz/threads"]
    for command in (make, [str(program)]):
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

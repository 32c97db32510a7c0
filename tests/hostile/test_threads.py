"""Promise: the proxy's threads share nothing without saying so (the thread sanitizer)."""

from __future__ import annotations

import subprocess

import pytest

from .programs import built


@pytest.mark.slow
def test_calls_ranks_that_work_and_move_and_the_devices_workers_do_not_race() -> None:
    done = subprocess.run([built("threads")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

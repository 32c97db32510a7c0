"""Promise: a proxy that is out of host memory, or whose device has no room, harms no rank silently.

`short.c` with the address and undefined-behaviour sanitizers: each allocation fails once.
"""

from __future__ import annotations

import json
import subprocess

from .programs import built
from .test_decoder import ENVIRONMENT


def test_each_allocation_fails_once_and_so_does_mapping_a_chunk() -> None:
    done = subprocess.run([built("short")], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)  # how many allocations there were
    assert report["open"] > 5 and report["serve"] > 60
    assert report["save"] > 2 and report["leave"] > 2 and report["restore"] > 40

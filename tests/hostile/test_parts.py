"""Promise: what the core keeps for later is right and leaks nothing, also where no record shows it.

`parts.c` with the address and undefined-behaviour sanitizers.
"""

from __future__ import annotations

import subprocess

from .programs import built
from .test_decoder import ENVIRONMENT


def test_functions_keep_their_layout_and_items_share_an_execution() -> None:
    done = subprocess.run([built("parts")], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""The demo itself, on the real thing: what it writes, and that its verdict is about those files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.run import CHANGES
from examples.demo.verdict import verdict
from rankfold.paths import REPOSITORY
from support.leaks import State


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_main_job(state: State, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "examples.demo", "--steps", "240", "--out", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    report = json.loads((out / "report.json").read_text())
    assert report["bit_identical"] is True and report["lost_steps"] == 0
    assert (report["world_size"], report["steps"]) == (4, 240)
    sharing = report["proof"]["sharing"]
    assert sharing["on"] and sharing["squashed"] > 0 and sharing["shared_max"] > 0
    assert [each["to"] for each in report["changes"]] == [change.gpus for change in CHANGES]
    crash = report["recovery"]
    assert crash["checkpoint"] == "1-1" and crash["again"] > 0 and crash["killed"] >= 4 + 4 + 3 + 1
    assert all(each["pause_s"] > 0 and each["converge_s"] > 0 for each in report["changes"])
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")

    params = out / "elastic/params-rank2.bin"
    data = bytearray(params.read_bytes())
    data[len(data) // 2] ^= 1
    params.write_bytes(data)
    assert verdict(out / "reference", out / "elastic").bit_identical is False

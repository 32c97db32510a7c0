"""Promise: no bytes in a ring crash the decoder, make it leak, or touch another rank's memory.

`fuzz_decoder.c` with the address and undefined-behaviour sanitizers, driven by coverage.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .programs import built

ENVIRONMENT = {
    **os.environ,
    # The device's workers have signal stacks of their own. Host memory may be short, not fatal.
    "ASAN_OPTIONS": "use_sigaltstack=0:allocator_may_return_null=1:max_allocation_size_mb=4096"
    ":quarantine_size_mb=16:detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    return built("fuzz-decoder")


def fuzz(fuzzer: Path, folder: Path, records: int, seed: int) -> dict[str, int]:
    kept = folder / "input"
    command = [str(fuzzer), "--records", str(records), "--seed", str(seed), "--keep", str(kept)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{fuzzer} --replay {kept}"
    report: dict[str, int] = json.loads(done.stdout)
    assert report["records"] >= records
    return report


@pytest.mark.parametrize("records", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_records(fuzzer: Path, tmp_path: Path, records: int) -> None:
    report = fuzz(fuzzer, tmp_path, records, 1)
    assert report["edges"] > 2500 and report["moves"] > 5


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(10, 14))
def test_ten_million_records(fuzzer: Path, tmp_path: Path, seed: int) -> None:
    fuzz(fuzzer, tmp_path, 2_500_000, seed)

"""The parts of `make gpu-check` that give tables run to their end, over the fake driver: one that
breaks on a machine with a GPU costs the time of that machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nvidia.fake_driver import build

from gpu import parts, tables
from rankfold.paths import REPOSITORY
from support.privileges import need_criu

# There is no plain CUDA here: what would run on it runs under rankfold, too.
PART = """
from pathlib import Path
from gpu import parts, tables
parts.plain = lambda *words, **env: "\\n".join(parts.on_gpu(1, 1, *words, memory="1GiB"))
parts.FIGURES = Path({figures!r})
parts.python_with = lambda sees, what: {python!r}
tables.SAVED_STEPS, tables.FOLDED = "80", (2,)


class Size:  # the fake computes products, slowly
    memory, memory_of_two, models, moved, scale = "1GiB", "1GiB", "mlp", "mlp", "0.125"


tables.Size = Size
tables.{name}()
"""
TORCH = REPOSITORY / "build/torch/python"


def figures_of(name: str, folder: Path) -> dict[str, float]:
    """Run a part; the figures that it reports."""
    figures = folder / "figures.json"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PART.format(figures=str(figures), python=str(TORCH), name=name),
        ],
        env={
            **os.environ,
            "RANKFOLD_CUDA_DRIVER": str(build()),
            "RANKFOLD_CUBLASLT": str(build()),
            "DRIVER_CALLS_CUPTI": str(build()),
            "RANKFOLD_FAKE_KERNELS": "1",
            "PYTHONPATH": "tests",
        },
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {each["name"]: each["value"] for each in json.loads(figures.read_text())}


def test_the_slowest_rank_of_a_model_counts() -> None:
    def row(model: str, ms: float) -> str:
        return json.dumps({"model": model, "ms": ms})

    lines = [
        "step 3 loss 1.0",
        row("mlp", 1.0),
        f"[0] {row('gpt2', 3.0)}",
        f"[1] {row('mlp', 2.0)}",
    ]
    assert [(each["model"], each["ms"]) for each in tables.rows_of(lines)] == [
        ("mlp", 2.0),
        ("gpt2", 3.0),
    ]
    with pytest.raises(SystemExit, match="no figures"):
        tables.rows_of(["step 3 loss 1.0"])


def test_figures_are_added_to_those_of_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "FIGURES", tmp_path / "probe.json")
    for number in range(2):
        tables.report(f"figure_{number}", number, "s", "how")
    found: list[dict[str, Any]] = json.loads((tmp_path / "probe.json").read_text())
    assert [each["name"] for each in found] == ["figure_0", "figure_1"]


COUNTED = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
driver.cuInit(0)
for _ in range(25):
    driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
"""


def test_the_calls_of_a_process_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVER_CALLS_CUPTI", str(build()))
    counted = {**os.environ, **tables.counted(str(tmp_path)), "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    for calls in (25, 50):
        command = [sys.executable, "-c", COUNTED, str(build())]
        subprocess.run(command, env=counted, check=True)
        files = [path.read_bytes() for path in tmp_path.iterdir()]
        assert sum(int.from_bytes(each, sys.byteorder) for each in files) == calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("switch", {"switch_first_per_gib", "switch_per_gib", "switch_small"}),
        (
            "copies",
            {
                "copy_pinned_to_device",
                "copy_device_to_pinned",
                "copy_pageable_to_device",
                "copy_device_to_pageable",
                "copy_within_the_device",
            },
        ),
    ],
)
def test_a_table_is_there_in_the_end(name: str, reported: set[str], tmp_path: Path) -> None:
    assert set(figures_of(name, tmp_path)) == reported


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["overhead", "calls", "allocators", "moves"])
def test_a_table_of_pytorch_is_there_in_the_end(name: str, tmp_path: Path) -> None:
    if not TORCH.exists():
        pytest.skip("build/torch/python is missing: `make torch` fetches PyTorch (572 MB)")
    if name == "moves":
        need_criu()
    found = figures_of(name, tmp_path)
    assert found and all(value >= 0 for value in found.values()), found

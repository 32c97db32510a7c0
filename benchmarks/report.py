"""Writes the result of a benchmark: build/bench/NAME.json, figures with targets and methods."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rankfold.paths import REPOSITORY

FOLDER = REPOSITORY / "build/bench"


@dataclass(frozen=True)
class Figure:
    """One number, its target if there is one, and how it was measured."""

    value: float
    unit: str
    target: float | None
    better: Literal["lower", "higher"]
    how: str

    @property
    def holds(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def machine() -> str:
    """Processor, cores and kernel; load and cores determine how much noise to expect."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0]
    return (
        f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores, "
        f"Linux {platform.release()}, load {load:.1f} at the start"
    )


def commit() -> str:
    """The measured commit, with a + if the tree differs from it."""
    git = ["git", "-C", str(REPOSITORY)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True).stdout
    return head.strip() + ("+" if changed else "")


def write(name: str, where: str, figures: Mapping[str, Figure], folder: Path = FOLDER) -> Path:
    """Write `folder`/NAME.json atomically; `where` is `machine()` before the measurements."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {
        "commit": commit(),
        "machine": where,
        "figures": {key: {**asdict(f), "holds": f.holds} for key, f in figures.items()},
    }
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(content, indent=2) + "\n")
    fresh.rename(path)
    return path


def table(figures: Mapping[str, Figure]) -> str:
    """The figures as text for people."""
    lines = []
    for name, f in figures.items():
        sign = "≤" if f.better == "lower" else "≥"
        verdict = "holds" if f.holds else "DOES NOT HOLD"
        aim = "no target" if f.target is None else f"{sign} {f.target:<7g} {verdict}"
        lines.append(f"{name:28} {f.value:10.4g} {f.unit:9} {aim}")
    return "\n".join(lines)

"""Promise: `make` passes a known environment to its commands, and installs the virtual environment
when it must."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rankfold.paths import REPOSITORY

READ_BY_MAKE = (
    "Makefile",
    "pyproject.toml",
    "tools/constraints.txt",
    "proxy/build.mk",
    "interpose/build.mk",
)


def test_python_keeps_its_bytecode_wherever_the_environment_forbids_it() -> None:
    """Without bytecode files each process would compile all of its source again and start in twice
    the time."""
    done = subprocess.run(
        ["make", "--silent", "--eval=shown: ; @env", "shown"],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PYTHONUNBUFFERED=1" in done.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout


def planned(checkout: Path) -> str:
    """The commands that `make setup` would run."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--dry-run", "setup"],
        cwd=checkout,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_a_copied_checkout_installs_an_environment_of_its_own(tmp_path: Path) -> None:
    original, copied = tmp_path / "original", tmp_path / "copied"
    for name in READ_BY_MAKE:
        (original / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, original / name)
    assert "pip install" in planned(original)
    stamp = original / ".venv/.installed"
    stamp.parent.mkdir()
    stamp.write_text(f"{original}\n")  # as the recipe leaves it
    assert "pip install" not in planned(original)
    shutil.copytree(original, copied)
    commands = planned(copied)
    assert "rm -rf .venv" in commands and "pip install" in commands
    original.rename(tmp_path / "moved")
    assert "pip install" in planned(tmp_path / "moved")


def test_tools_learn_how_each_c_file_is_compiled(tmp_path: Path) -> None:
    target = tmp_path / "commands.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(
        [sys.executable, "tools/compile_commands.py", target],
        cwd=REPOSITORY,
        env=environment,
        check=True,
    )
    rows = {row["file"]: row for row in json.loads(target.read_text())}
    sources = [*REPOSITORY.glob("proxy/**/*.c"), *REPOSITORY.glob("interpose/client/**/*.c")]
    assert sources and {str(each.relative_to(REPOSITORY)) for each in sources} <= rows.keys()
    row = rows["proxy/core/queue/item.c"]
    command = [*row["command"].partition(" -MMD")[0].split(), "-fsyntax-only", row["file"]]
    subprocess.run(command, cwd=row["directory"], check=True)

"""Builds what is distributed: `python tools/dist.py`, after `make native`; see `make dist`.

Writes into ``dist/`` the wheel of rankfold and ``rankfold``: one executable file (a PEX), which
contains that wheel and the wheels of all its dependencies for each supported version of Python. On
its first start it installs those for the Python that it finds into a virtual environment, below
``~/.local/share/rankfold``. Later starts run from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging import tags

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "dist"
WHEELS = ROOT / "build/dist/wheels"  # what the executable contains
FETCHED = ROOT / "build/dist/fetched"
PINS = ROOT / "tools/constraints.txt"
START = ROOT / "tools/executable_start.py"
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
GLIBC = 35  # 2.35: the libraries' unwinder needs it; setup.py derives the wheel's tag from them
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
PLATFORMS.insert(PLATFORMS.index("manylinux_2_17_x86_64"), "manylinux2014_x86_64")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    WHEELS.parent.mkdir(parents=True, exist_ok=True)
    with open(WHEELS.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make()
    for made in (*OUT.glob("rankfold-*.whl"), OUT / "rankfold"):
        print(f"{made.relative_to(ROOT)}  {made.stat().st_size / 1e6:.0f} MB")


def make() -> None:
    """Make the wheel and, unless it is as the last one, the executable."""
    with tempfile.TemporaryDirectory(dir=WHEELS.parent) as folder:
        pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, ROOT)
        (wheel,) = Path(folder).iterdir()
        made, inputs = WHEELS.parent / "made", inputs_of(wheel)
        there = (OUT / wheel.name).exists() and (OUT / "rankfold").exists()
        if there and made.exists() and made.read_text() == inputs:
            return
        shutil.rmtree(WHEELS, ignore_errors=True)
        for python in PYTHONS:
            fetch(python, wheel, any_python("llvmlite"))
        executable(WHEELS, OUT / "rankfold")
        for old in OUT.glob("rankfold-*.whl"):
            old.unlink()
        shutil.copy(wheel, OUT)
        made.write_text(inputs)


def inputs_of(wheel: Path) -> str:
    """A digest of all that the executable is made of."""
    hasher = hashlib.sha256()
    for path in (Path(__file__), START, PINS):
        hasher.update(path.read_bytes())
    with zipfile.ZipFile(wheel) as opened:
        for each in opened.infolist():
            hasher.update(f"{each.filename} {each.CRC} {each.file_size}\n".encode())
    return hasher.hexdigest()


def pip(*arguments: str | Path) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", *quiet, *arguments], check=True)


def any_python(package: str) -> Path:
    """The package's wheel, labelled as one for any Python 3: the executable then contains it once.
    That is true of llvmlite. Its library (180 MB) does not use Python's C API, and its wheels for
    different versions of Python differ only in their labels."""
    lines = PINS.read_text().splitlines()
    (version,) = (line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))
    relabelled = FETCHED / "any"
    name = f"{package}-{version}-py3-none-*.whl"
    if not list(relabelled.glob(name)):
        relabelled.mkdir(parents=True, exist_ok=True)
        pip(
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            FETCHED,
            f"{package}=={version}",
        )
        (wheel,) = FETCHED.glob(f"{package}-{version}-*.whl")
        shutil.move(wheel, relabelled)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "wheel",
                "tags",
                "--remove",
                "--python-tag=py3",
                "--abi-tag=none",
                relabelled / wheel.name,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    (found,) = relabelled.glob(name)
    return found


def fetch(python: tuple[int, int], *wheels: Path) -> None:
    """Put these wheels, and those of their dependencies for this Python, into WHEELS."""
    pip(
        "download",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python[0]}.{python[1]}",
        *(f"--platform={name}" for name in PLATFORMS),
        f"--constraint={PINS}",
        "--dest",
        WHEELS,
        *wheels,
    )


def executable(wheels: Path, path: Path) -> None:
    """Make the executable from the wheels in a folder."""
    targets = (f"--complete-platform={json.dumps(target(python))}" for python in PYTHONS)
    # The executable takes the place of an older one in one step: that one may be running.
    fresh = path.with_name(f".{path.name}.new")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pex",
            "rankfold",
            "--pre-resolved-dists",
            wheels,
            *targets,
            "--entry-point",
            "rankfold.executable:main",
            "--venv",
            "--sh-boot",
            "--no-strip-pex-env",
            "--preamble-file",
            START,
            "--no-emit-warnings",
            "--python-shebang=/usr/bin/env python3",
            "--no-pre-install-wheels",
            "--runtime-pex-root=~/.local/share/rankfold",
            "--output-file",
            fresh,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    os.replace(fresh, path)


def target(python: tuple[int, int]) -> dict[str, object]:
    """A description of this version of CPython on Linux, as `pex3 interpreter inspect` gives."""
    version = f"{python[0]}.{python[1]}"
    return {
        "marker_environment": {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
        },
        "compatible_tags": [str(tag) for tag in compatible(python)],
    }


def compatible(python: tuple[int, int]) -> Iterator[tags.Tag]:
    name = f"cp{python[0]}{python[1]}"
    yield from tags.cpython_tags(python, abis=[name], platforms=PLATFORMS)
    yield from tags.compatible_tags(python, interpreter=name, platforms=PLATFORMS)


if __name__ == "__main__":
    main()

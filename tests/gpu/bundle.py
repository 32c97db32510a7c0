"""make gpu-bundle: the wheels for `make gpu-check` on a machine with a GPU and without network.

    bundle.py collect DIR VERSION   get them for that Python (3.12) on x86-64 Linux, where there is
                                    an index; DIR is new, or a bundle that is replaced
    bundle.py install DIR VENV      make the virtual environment there, and ask no index

What the machine is known to have is not in it, because it is large: ON_MACHINE.
Needs Python alone; pip comes with the bundle.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ON_MACHINE = {"numpy", "llvmlite", "pytest"}
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def wanted() -> list[str]:
    """The project's dependencies and those of `gpu-check`, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["gpu-check"]]


def pip(command: str, *arguments: str) -> None:
    words = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check"]
    subprocess.run([*words, *arguments], check=True)


def collect(folder: Path, version: str) -> None:
    """Raises `CalledProcessError` where the index lacks something."""
    if folder.exists() and any(path.suffix != ".whl" for path in folder.iterdir()):
        raise SystemExit(f"{folder} holds more than wheels: name another folder")
    where = ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    where += [f"--platform={platform}" for platform in PLATFORMS]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        fresh, report = Path(name) / "bundle", Path(name) / "report"
        pip(
            "install",
            *where,
            "--dry-run",
            f"--target={name}/none",
            f"--report={report}",
            *wanted(),
            "pip",
        )
        found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
        exact = [
            f"{each['name']}=={each['version']}"
            for each in found
            if each["name"].lower() not in ON_MACHINE
        ]
        pip("download", *where, "--no-deps", f"--dest={fresh}", *exact)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    wheels = sorted(folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels)
    print(f"{folder}: {len(wheels)} wheels for Python {version}, {size / 1e6:.1f} MB")


def install(folder: Path, environment: Path) -> None:
    """The virtual environment with the wheels, this interpreter's own packages and the project."""
    wheels = sorted(folder.glob("*.whl"))
    installer = next((path for path in wheels if path.name.startswith("pip-")), None)
    if installer is None:
        raise SystemExit(
            f"{folder} is no bundle: `make gpu-bundle TO={folder}` makes one where "
            "there is a network"
        )
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin/python"
    done = subprocess.run(
        [
            python,
            installer / "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-index",
            "--no-deps",
            *wheels,
        ],
    )
    if done.returncode:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SystemExit(
            f"the wheels of {folder} do not go into Python {version}: "
            f"`make gpu-bundle GPU_PYTHON={version}` collects some that do"
        )
    site = sysconfig.get_path("purelib", vars={"base": str(environment)})
    own = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    Path(site, "rankfold-beside.pth").write_text("".join(f"{p}\n" for p in [str(ROOT), *own]))
    for module in sorted(ON_MACHINE):
        if subprocess.run([python, "-c", f"import {module}"]).returncode:
            raise SystemExit(f"{sys.executable} has no {module}, which a bundle leaves out")


def main() -> None:
    match sys.argv[1:]:
        case ["collect", folder, version]:
            collect(Path(folder).resolve(), version)
        case ["install", folder, environment]:
            install(Path(folder).resolve(), Path(environment).resolve())
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()

"""Another project's own tests, in a rank: what they are installed into, run by, and judged by."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from rankfold.paths import REPOSITORY
from support.command import Rankfold, Specs
from support.leaks import State
from support.patience import scaled

BUILD = REPOSITORY / "build/guests"


def environment(requirements: Path) -> Path:
    """A virtual environment with what that file says, made once for each content of the file."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = BUILD / f"{requirements.parent.name}-{digest}"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip(folder, "install", "--requirement", str(requirements))
        (folder / ".complete").touch()
    return folder


def pip(folder: Path, *arguments: str) -> None:
    """The pip of a virtual environment."""
    command = [str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True)


def site_packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python3.*/site-packages")
    return found


@dataclass
class Results:
    """What became of the tests of some files. `failed`: each one's reason."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Results) -> None:
        self.passed += other.passed
        self.failed |= other.failed
        self.skipped += other.skipped
        self.seconds += other.seconds

    def read(self, report: Path) -> None:
        """A report in JUnit's form. A test is named file.Class.function."""
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}".removeprefix("test.").strip(".")
            kinds = {child.tag: child for child in case}
            wrong = kinds.get("failure", kinds.get("error"))
            if wrong is not None:
                self.failed[name] = (wrong.get("message") or "").partition("\n")[0][:200]
            elif "skipped" in kinds:
                self.skipped.append(name)
            else:
                self.passed.append(name)

    def unlisted(self, listed: dict[str, str]) -> dict[str, str]:
        """The failures that no pattern of `listed` names."""
        return {
            name: why
            for name, why in self.failed.items()
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in listed)
        }

    def reasons(self, listed: dict[str, str]) -> dict[str, int]:
        """How many of the listed failures there were, by reason."""
        return Counter(
            next(why for pattern, why in listed.items() if fnmatch.fnmatchcase(name, pattern))
            for name in self.failed.keys() - self.unlisted(listed).keys()
        )


def run(
    rankfold: Rankfold, python: Path, name: str, tests: Sequence[str], timeout_s: float
) -> Results:
    """Tests with pytest in a job of one rank. What does not finish has failed."""
    report = rankfold.state.folder / f"{name}.xml"
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=180",
        "--timeout-method=signal",
        f"--junitxml={report}",
    ]
    results, since = Results(), time.monotonic()
    process = rankfold.start(
        "run",
        "--world-size",
        "1",
        "--gpus",
        "1",
        "--device",
        "soft",
        "--memory",
        "2GiB",
        "--name",
        name.replace("_", "-"),
        "--",
        str(python),
        "-m",
        "pytest",
        *options,
        *tests,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=scaled(60))
    (rankfold.state.folder / f"{name}.txt").write_text(out + err)
    if process.returncode in (0, 1) and report.exists():
        results.read(report)
    else:
        results.failed[name] = f"did not finish: {(out + err)[-1000:]}"
    results.seconds = time.monotonic() - since
    return results


def printed(
    state: State, folder: Path, timeout_s: float = 900.0, capability: str = "", **settings: str
) -> str:
    """What `computed.py` of a folder prints in a job of one rank, with what the folder's
    `requirements.txt` installs. HOME, where a guest may keep its kernels, is the state's.

    `capability`: the device's compute capability, if not the usual one. `settings`: variables of
    the job's environment."""
    python = environment(folder / "requirements.txt") / "bin/python"
    rankfold = Rankfold(state, job_environment(HOME=str(state.folder), PYTHONPATH="", **settings))
    if capability:
        specs = Specs(state.folder / "specs")
        specs.pool(1, "1GiB", capability)
        rankfold("apply", "-f", str(specs.folder), "--wait")
    run = ["run", "--world-size", "1", "--", str(python), str(folder / "computed.py")]
    process = rankfold.start(*run)
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
        rankfold.end()
    assert process.returncode == 0, err
    return out


def job_environment(**settings: str) -> dict[str, str]:
    """For a command whose jobs need nothing of the user's."""
    return {**os.environ, "RANKFOLD_LINGER": "0.5", "OMP_NUM_THREADS": "1", **settings}


def report(name: str, each: dict[str, Results], total: Results, listed: dict[str, str]) -> None:
    """What the tables in docs/ are written from: build/guests/NAME.json."""
    counts = {
        file: {
            "passed": len(r.passed),
            "failed": len(r.failed),
            "skipped": len(r.skipped),
            "seconds": round(r.seconds),
        }
        for file, r in {**each, "total": total}.items()
    }
    content = {"counts": counts, "reasons": total.reasons(listed), "failed": total.failed}
    (BUILD / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")

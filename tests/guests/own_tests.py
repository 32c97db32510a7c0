"""Another project's own tests, in a rank: how they run, and how their results are judged."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from support.command import Rankfold
from support.patience import scaled

from . import installed


@dataclass
class Results:
    """The results of the tests of some files. `failed`: the reason of each."""

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
    """Runs tests with pytest in a job of one rank. A test that does not finish has failed."""
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


def report(name: str, each: dict[str, Results], total: Results, listed: dict[str, str]) -> None:
    """Writes build/guests/NAME.json, from which the tables in docs/ are made."""
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
    (installed.BUILD / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")

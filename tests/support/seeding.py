"""Faults seeded into the source, one at a time: the tests that should detect each one do.

A folder of tests lists its faults in `seeded_faults*.py`: TABLE maps a source file to what detects
a fault in it, and that to the faults, each a name, a text of the file, and its replacement.
tests/faults/test_seeded_faults.py runs them all. `python -m support.tests_of FILE` prints what
detects faults in a file.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis.errors import Flaky

from rankfold.paths import REPOSITORY
from support.copied_tree import CopiedTree
from support.native import built_with

TESTS = REPOSITORY / "tests"
CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
PASSED, FAILED, ERROR = 0, 1, 3  # exit statuses of a child process; pytest has the first two


@dataclass(frozen=True)
class Copy:
    """A source file with a fault in it, and a folder for what is built from it."""

    source: Path
    changed: Path
    folder: Path

    def of(self, source: Path) -> Path:
        """The file to compile in place of `source`."""
        return self.changed if source == self.source else source


@dataclass(frozen=True)
class Check:
    """Detects faults in a part that can be built by itself.

    `prepare(copy, *arguments)` builds it and returns a function, which fails an assertion, or
    crashes, where the fault does harm. `quick`: it takes less than about a second.
    """

    prepare: Callable[..., Callable[[], object]]
    arguments: tuple[Any, ...] = ()
    quick: bool = False


# A test, by the name that pytest gives it from the repository's root on; or arguments of pytest,
# of whose tests at least one fails.
Detector = str | tuple[str, ...] | Check
Table = Mapping[str, Mapping[Detector, Mapping[str, tuple[str, str]]]]


@dataclass(frozen=True)
class SeededFault:
    """`old` occurs exactly once in `file`, a path from the repository's root; `new` replaces it.
    `room`: the folder of tests that lists it."""

    room: str
    name: str
    file: str
    old: str
    new: str
    noticed_by: Detector

    def __str__(self) -> str:
        return f"{self.room}-{self.name}"

    @property
    def quick(self) -> bool:
        return isinstance(self.noticed_by, Check) and self.noticed_by.quick

    @property
    def tests(self) -> set[str]:
        """The files or folders of tests that detect it; of a check, the folder that has it."""
        if isinstance(self.noticed_by, Check):
            return {f"tests/{self.room}"}
        named = [self.noticed_by] if isinstance(self.noticed_by, str) else self.noticed_by
        return {each.partition("::")[0] for each in named if each.startswith("tests/")}

    def undone(self) -> SeededFault:
        """Nothing is wrong."""
        return replace(self, new=self.old)

    def text(self) -> str:
        """The file with the fault in it. Raises AssertionError where the fault does not fit."""
        text = (REPOSITORY / self.file).read_text()
        count_ = text.count(self.old)
        assert count_ == 1, f"{self}: {self.file} has its text {count_} times: adapt the fault"
        return text.replace(self.old, self.new)


def faults() -> list[SeededFault]:
    """All of them, in the order of folders and lists."""
    return [
        SeededFault(room, name, file, old, new, detector)
        for room, table in _tables()
        for file, detectors in table.items()
        for detector, changes in detectors.items()
        for name, (old, new) in changes.items()
    ]


def _tables() -> Iterator[tuple[str, Table]]:
    for path in sorted(TESTS.glob("*/seeded_faults*.py")):
        room = path.parent.name
        yield room, importlib.import_module(f"tests.{room}.{path.stem}").TABLE


class Outcome(NamedTuple):
    """`skipped`: none of its tests can run here, for example because PyTorch is missing."""

    noticed: bool
    output: str
    skipped: bool = False


def outcome(fault: SeededFault, folder: Path, tree: CopiedTree) -> Outcome:
    """Whether what should detect the fault does. `folder`: an empty one, for what is built; `tree`:
    a copy of the working tree.

    Raises AssertionError where the part with the fault cannot be built, or the tests cannot run.
    """
    detector = fault.noticed_by
    if isinstance(detector, Check):
        return noticed(detector.prepare(_copy(fault, folder), *detector.arguments))
    arguments = [detector] if isinstance(detector, str) else detector
    if fault.file.endswith(".py"):
        with tree.with_text(fault.file, fault.text()):
            result = tree.pytest(*arguments)
    else:
        copy = _copy(fault, folder)
        result = _pytest_with(built_with(copy.source, copy.changed, folder), *arguments)
    judged = _judged(result.returncode, result.stdout + result.stderr)
    skipped = not judged.noticed and " passed" not in result.stdout.splitlines()[-1]
    return judged._replace(skipped=skipped)


def _copy(fault: SeededFault, folder: Path) -> Copy:
    source = REPOSITORY / fault.file
    changed = folder / source.name
    changed.write_text(fault.text())
    return Copy(source, changed, folder)


def _pytest_with(native: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Tests of the working tree with another build, until the first fails. By how little one fails
    is not sought: that may take Hypothesis longer than a test may."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=faults"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        env={**os.environ, "RANKFOLD_NATIVE": str(native)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


def noticed(check: Callable[[], object]) -> Outcome:
    """Does `check` fail an assertion or crash its process, as a broken invariant does?

    It runs in a child process, so that a library with a fault in it cannot harm the tests. Any
    other exception or exit of the child is an error of the test: AssertionError with its output.
    """
    with tempfile.TemporaryFile() as output:
        with warnings.catch_warnings():
            # The child runs only `check`: it needs no lock that another thread may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            _child(check, output.fileno())
        try:
            _, status = os.waitpid(child, 0)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        output.seek(0)
        text = output.read().decode(errors="replace")
    return _judged(os.waitstatus_to_exitcode(status), text)


def _judged(code: int, output: str) -> Outcome:
    """The outcome for an exit status. Raises AssertionError if the tests themselves are wrong."""
    ran = code in (PASSED, FAILED) or -code in CRASHES
    assert ran, f"the tests exited with {code}:\n{output}"
    return Outcome(code != PASSED, output)


def _child(check: Callable[[], object], output: int) -> None:
    code = ERROR
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(output, 1)
        os.dup2(output, 2)
        check()
        code = PASSED
    except BaseException as error:  # noqa: BLE001 - the parent reads what it was
        failed = isinstance(error, AssertionError) or (
            isinstance(error, BaseExceptionGroup) and error.subgroup(AssertionError)
        )
        code = FAILED if failed and not isinstance(error, Flaky) else ERROR
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)

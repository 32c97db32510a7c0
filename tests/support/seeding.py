"""Tests that faults seeded into the core's source, one at a time, are noticed by other tests."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from barrier.mutants import Mutant
from hypothesis.errors import Flaky

from support.native import CORE, REPOSITORY, noticed_by, with_fault

CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
NOTHING, FAILED, ELSE = 0, 1, 3  # what the child's exit status says


def noticed(check: Callable[[], object]) -> bool:
    """Does `check` fail an assertion or crash its process, as a broken invariant does?

    It runs in a child process, so a library with a fault in it cannot take the tests along. Any
    other exception or exit of the child is an error of the test: AssertionError with its output.
    """
    with tempfile.TemporaryFile() as said:
        with warnings.catch_warnings():
            # The child runs only `check`: it needs no lock that another thread may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            _child(check, said.fileno())
        try:
            _, status = os.waitpid(child, 0)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        said.seek(0)
        text = said.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    assert code in (NOTHING, FAILED) or -code in CRASHES, f"the child exited with {code}:\n{text}"
    return code != NOTHING


def _child(check: Callable[[], object], output: int) -> None:
    code = ELSE
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(output, 1)
        os.dup2(output, 2)
        check()
        code = NOTHING
    except BaseException as error:  # noqa: BLE001 - the parent reads what it was
        failed = isinstance(error, AssertionError) or (
            isinstance(error, BaseExceptionGroup) and error.subgroup(AssertionError)
        )
        code = FAILED if failed and not isinstance(error, Flaky) else ELSE
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def seeded(
    faults: Sequence[tuple[str, Mutant]], *by: str, options: Sequence[str] = ()
) -> tuple[Callable[[], None], Callable[[Path, str, Mutant], None]]:
    """Two tests: that each fault fits its file, which is named from proxy/core on; and (slow) that
    `by`, files from the repository on, fail with it. `options` are pytest's."""

    def fit() -> None:
        for source, mutant in faults:
            assert (CORE / source).read_text().count(mutant.old) == 1, mutant.name

    @pytest.mark.slow
    @pytest.mark.parametrize(("source", "mutant"), faults, ids=[m.name for _, m in faults])
    def noticed(tmp_path: Path, source: str, mutant: Mutant) -> None:
        native = with_fault(tmp_path, CORE / source, mutant.old, mutant.new)
        noticed_by(native, *(REPOSITORY / each for each in by), options=options)

    return fit, noticed

"""Fixtures for every test, first of all `state`: a fleet's own directory, and no leaks after it.

Only tests that use a fixture pay for it. Tests that start processes use `state`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_timeout

from rankfold.control import ControlError, call
from rankfold.paths import REPOSITORY
from support import leaks, order, patience, privileges, slices, unit, usual, warm
from support.fleet import KIND
from support.leaks import State

# Where pytest sees CI it prints all of a comparison that fails: with lists of many thousand numbers
# that takes longer than a test may, and the difference is never printed. Tests see
# RANKFOLD_TEST_CI.
if ci := os.environ.pop("CI", ""):
    os.environ["RANKFOLD_TEST_CI"] = ci

# No deadline: the machine may be busy. In CI the same examples every time.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# For tests of tests: that one fails is all that counts, not by how little.
hypothesis.settings.register_profile(
    "faults",
    deadline=None,
    derandomize=True,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile("ci" if os.environ.get("RANKFOLD_TEST_CI") else "default")

_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    order.add_options(parser)
    slices.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Whatever a test starts stays below this process, also after it was orphaned."""
    order.configure(config)
    slices.configure(config)
    unit.configure(config)
    usual.configure(config)
    patience.calibration()
    leaks.become_subreaper()
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        # Started in the background of a script it would ignore them, and so would all it starts.
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        leaks.interrupt_when_the_parent_exits()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector leaves out what collecting created: modules and tests live as long as
    this process, and some tests collect garbage often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """Before any test, so that none seems to have left it. Not where other processes run them."""
    warm.start()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    leaks.end_all()


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    """A test's own limit, too, is one for an idle machine."""
    limit = patience.scaled(settings.timeout)
    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=limit))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if marker := item.get_closest_marker("cuda_headers"):
        privileges.need_cuda_headers(*marker.args)


@pytest.fixture
def state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    """A state directory (also in the environment), and the proof that nothing is left after it.

    Teardown fails the test if a process, namespace, mount, socket or shared-memory name of it
    is still there, and then removes it. A failed test keeps its directory.
    """
    # Not TMPDIR, which may be long: a socket's path holds 108 bytes.
    parent = os.environ.get("RANKFOLD_TEST_FOLDER", "/tmp")
    folder = Path(tempfile.mkdtemp(prefix="rankfold-test-", dir=parent))
    place = State(folder, folder / "state", folder / "run", leaks.Watch(folder))
    place.path.mkdir()
    monkeypatch.setenv("RANKFOLD_STATE", str(place.path))
    monkeypatch.setenv("RANKFOLD_RUNTIME", str(place.runtime))
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    monkeypatch.setenv("RANKFOLD_REST_SAVE_AFTER", "never")  # or a slow test is another one
    if KIND == "nvidia":
        monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")
    # Compiled kernels are shared: named by content, and checked when they are read.
    monkeypatch.setenv("RANKFOLD_CACHE", str(REPOSITORY / "build/tests/kernels"))
    yield place
    failed = request.node.stash.get(_failed, False)
    if not failed:
        end_idle_compiler(place)
        place.watch.settle()
    left = place.watch.left()
    place.watch.clean()
    if failed or left:
        print(f"the test's files are kept in {folder}")
    else:
        place.watch.remove()
    if left and not failed:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


def end_idle_compiler(place: State) -> None:
    """The fleet's compiler ends by itself when it has been idle for a while: not waited for."""
    for path in place.runtime.glob("*/compiler-*.sock"):
        with contextlib.suppress(ControlError):
            call(path, "shutdown")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure prints where its files are, what still ran, and the ends of the logs."""
    report = yield
    if not report.failed or report.when == "teardown":
        return report
    item.stash[_failed] = True
    place = getattr(item, "funcargs", {}).get("state")
    if isinstance(place, State):
        running = [leaks.describe(pid) for pid in sorted(place.watch.new_processes())]
        if call.excinfo is not None and "Timeout" in str(call.excinfo.value):
            place.watch.stacks()
        text = [f"files: {place.folder}", "still running:", *running, place.watch.logs()]
        report.sections.append(("what the test left", "\n".join(text)))
    return report

"""tinygrad's own tests, unmodified, in ranks: own_tests.yaml says which, and what may fail."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankfold import paths
from support.command import Rankfold, job_environment
from support.leaks import State

from . import installed, own_tests

HERE = Path(__file__).parent / "tinygrad"
VERSIONS: dict[str, Any] = yaml.safe_load((HERE / "own_tests.yaml").read_text())
AT_ONCE = 2
FILE_TIMEOUT_S = 1500.0


def sources(environment: Path, version: str, into: Path) -> Path:
    """The source package from PyPI, unpacked."""
    package = installed.BUILD / f"tinygrad-{version}.tar.gz"
    if not package.exists():
        installed.pip(
            environment / "bin/python",
            "download",
            "--no-deps",
            "--no-binary",
            "tinygrad",
            "--dest",
            str(installed.BUILD),
            f"tinygrad=={version}",
        )
    assert hashlib.sha256(package.read_bytes()).hexdigest() == VERSIONS[version]["sha256"]
    with tarfile.open(package) as archive:
        archive.extractall(into, filter="data")
    return into / f"tinygrad-{version}"


def supply(tests: Path) -> None:
    """Two files that tests import and the packages leave out; without __init__.py, `test` is
    Python's own."""
    (tests / "unit").mkdir()
    (tests / "__init__.py").touch()
    shutil.copy(HERE / "supplied/helpers.py", tests)
    shutil.copy(HERE / "supplied/dtype_spec.py", tests / "unit/test_dtype_spec.py")


def toolkit(environment: Path, folder: Path) -> Path:
    """Makes the folder that tinygrad expects at CUDA_PATH, and a clang for its CPU device."""
    nvidia = installed.site_packages(environment) / "nvidia/cu13"
    (folder / "bin").mkdir(parents=True)
    (folder / "include").symlink_to(nvidia / "include")
    for library in nvidia.glob("lib/libnvrtc*"):
        (folder / library.name).symlink_to(library)
    (folder / "libnvrtc.so").symlink_to("libnvrtc.so.13")
    (folder / "libcuda.so.1").symlink_to(paths.native("lib/libcuda.so.1"))
    clang = folder / "bin/clang"
    zig = installed.site_packages(environment) / "ziglang/zig"
    clang.write_text(f'#!/bin/sh\nexec {zig} clang "$@"\n')
    clang.chmod(0o755)
    return folder


def settings(version: str, tools: Path, home: Path) -> dict[str, str]:
    """As in tinygrad's CI (CI, FORWARD_ONLY); TC=0: no tensor cores, for the counted results."""
    return {
        **VERSIONS[version]["device"],
        "CI": "1",
        "FORWARD_ONLY": "1",
        "TC": "0",
        "CUDA_PATH": str(tools),
        "NVRTC_PATH": str(tools),
        "LD_LIBRARY_PATH": str(tools),
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": ".",
        "CACHELEVEL": "0",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
    }


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", VERSIONS)
def test_tinygrad_s_own_tests(state: State, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: dict[str, str] = VERSIONS[version]["failing"]
    environment = installed.environment(HERE / "requirements.txt")
    source = sources(environment, version, state.folder)
    supply(source / "test")
    tools = toolkit(environment, state.folder / "toolkit")
    rankfold = Rankfold(state, job_environment(**settings(version, tools, state.folder / "home")))
    monkeypatch.chdir(source)  # where the jobs run

    def run(file: str) -> own_tests.Results:
        python = environment / "bin/python"
        return own_tests.run(rankfold, python, file, [f"test/{file}.py"], FILE_TIMEOUT_S)

    total = own_tests.Results()
    files = sorted(VERSIONS[version]["files"], key=lambda file: file != "test_ops")  # the longest
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        each = dict(zip(files, pool.map(run, files), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)
        rankfold.end()
    for results in each.values():
        total.add(results)
    own_tests.report(f"tinygrad-{version}", each, total, listed)
    assert total.unlisted(listed) == {}
    assert len(total.passed) >= 0.9 * (len(total.passed) + len(total.failed))

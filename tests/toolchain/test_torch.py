"""`make torch`: what it verifies, what an interrupted or failed run leaves behind."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rankfold.paths import REPOSITORY

TOOL = REPOSITORY / "tools/torch"
pytestmark = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg-deb")


@pytest.fixture(scope="module")
def fetch() -> ModuleType:
    sys.path.insert(0, str(TOOL))
    try:
        spec = importlib.util.spec_from_file_location("fetch_torch", TOOL / "fetch.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["fetch_torch"] = module  # its dataclass looks there
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(TOOL))


def test_every_package_of_the_list_has_one_version_and_none_is_nvidias(fetch: ModuleType) -> None:
    packages = fetch.read_list(fetch.LIST)
    names = [package.name for package in packages]
    assert names == sorted(set(names)) and set(fetch.WANTED) <= set(names)
    assert not set(names) & set(fetch.NOT_FETCHED)
    assert all(len(p.sha256) == 64 and p.bytes > 0 for p in packages)


def test_the_prefix_is_named_by_the_list(fetch: ModuleType) -> None:
    one = fetch.Package("a", "1", "0" * 64, 5)
    other = fetch.Package("a", "1", "1" * 64, 5)
    assert fetch.prefix_of([one]) == fetch.prefix_of([one]) != fetch.prefix_of([other])


def test_a_prefix_is_made_again_only_if_it_would_differ(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of the source fetches nothing; see FORMAT."""
    before = fetch.prefix_of([])
    monkeypatch.setattr(fetch, "__file__", __file__)
    monkeypatch.setattr(fetch.stubs, "__file__", __file__)
    assert fetch.prefix_of([]) == before
    monkeypatch.setattr(fetch, "FORMAT", fetch.FORMAT + 1)
    assert fetch.prefix_of([]) != before


def test_an_update_is_named_and_other_content_under_a_known_version_refused(
    fetch: ModuleType,
) -> None:
    old = fetch.Package("a", "1", "0" * 64, 5)
    assert fetch.differences([old], [old]) == []
    (line,) = fetch.differences([old], [fetch.Package("a", "2", "1" * 64, 5)])
    assert line.startswith("a 2 from Debian's signed index; packages.txt has 1")
    with pytest.raises(fetch.FetchError, match=r"a 1 is not what packages\.txt has"):
        fetch.differences([old], [fetch.Package("a", "1", "1" * 64, 5)])


def package(folder: Path, name: str) -> Path:
    """A package with one library, which needs a CUDA library that is not there."""
    tree, runtime = folder / name, folder / "libcudart.so.12"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: none\nDescription: none\n"
    )
    shared = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o"]
    versions = folder / "versions"
    versions.write_text("libcudart.so.12 { cudaGetDeviceCount; };\n")
    subprocess.run(
        [*shared, runtime, f"-Wl,--version-script={versions}", "-Wl,-soname,libcudart.so.12"],
        input="int cudaGetDeviceCount(void *n) { return 0; }",
        text=True,
        check=True,
    )
    subprocess.run(
        [*shared, tree / f"usr/lib/lib{name}.so", "-x", "none", runtime],
        input="int cudaGetDeviceCount(void *); int devices(void) { return cudaGetDeviceCount(0); }",
        text=True,
        check=True,
    )
    subprocess.run(["dpkg-deb", "--build", tree, folder], check=True, stdout=subprocess.DEVNULL)
    return folder / f"{name}_1_amd64.deb"


def test_a_prefix_is_whole_or_not_there_and_its_libraries_load(
    fetch: ModuleType, tmp_path: Path
) -> None:
    good, prefix = package(tmp_path, "good"), tmp_path / "cache/torch-1"
    bad = tmp_path / "bad.deb"
    bad.write_bytes(good.read_bytes()[:300])
    prefix.with_name("torch-1.new").mkdir(parents=True)  # of a run that was killed
    (prefix.with_name("torch-1.new") / "half").touch()
    with pytest.raises(fetch.FetchError, match=r"bad\.deb cannot be unpacked"):
        fetch.unpack([good, bad], [], prefix)
    assert list(prefix.parent.iterdir()) == []
    fetch.unpack([good], [], prefix)
    assert {path.name for path in prefix.parent.iterdir()} == {"torch-1"}
    assert not (prefix / "half").exists()
    code = "import ctypes; print(ctypes.CDLL('libgood.so').devices())"
    places = {"LD_LIBRARY_PATH": f"{prefix}/usr/lib:{fetch.stubs_in(prefix)}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("100\n", "")  # no device


def test_without_network_it_says_so_and_leaves_nothing_to_use(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, TOOL / "fetch.py", "--to", tmp_path / "torch"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("torch: not fetched: ")
    assert not (tmp_path / "torch").exists() and not list(
        tmp_path.glob("rankfold/torch-????????????")
    )


def test_a_run_that_waits_for_another_names_its_lock(tmp_path: Path) -> None:
    """The other run may be stopped, and then this one would wait in silence."""
    lock = tmp_path / "rankfold/torch.lock"
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [sys.executable, str(TOOL / "fetch.py"), "--to", str(tmp_path / "to")]
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as waiting:
            try:
                assert waiting.stderr is not None
                assert f"waiting for another run, which has {lock}" in waiting.stderr.readline()
            finally:
                waiting.kill()

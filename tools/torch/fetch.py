"""Prepares PyTorch for the software GPU: `make torch` runs `python tools/torch/fetch.py`.

Debian's build is used because it contains PTX for every kernel; PyPI's has only machine code. Its
packages are fetched with apt-get, which checks the signature of Debian's index, and compared with
`packages.txt`. They are unpacked below ``~/.cache/rankfold``; nothing is installed into the system.
NVIDIA's libraries are not fetched: in a rank rankfold serves them, elsewhere stubs do (stubs.py).

``fetch.py`` leaves the interpreter ``build/torch/python``; ``fetch.py --pin`` writes the versions
that Debian has now to `packages.txt`.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import unquote

import stubs

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("packages.txt")
SUITE, COMPONENTS = "trixie", "main contrib non-free"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
WANTED = ("python3-torch-cuda", "libopenblas0-pthread")
# Dependencies that are not fetched: NVIDIA's libraries, and what is only used when packages are
# installed into a system.
NOT_FETCHED = """
    libcublas12 libcublaslt12 libcuda1 libcudart12 libcufft11 libcurand10 libcusolver11
    libcusparse12 libnccl2 libnvrtc12 libnvtoolsext1 nvidia-cudnn
    adduser base-passwd ca-certificates curl debconf dpkg media-types netbase openssl passwd perl
    perl-base readline-common
    libhiredis1.1.0 libibverbs1 libopenmpi40
""".split()
UNPACKED_BYTES = 2_000_000_000
LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
FORMAT = 1  # of a prefix: it is made again under another name when this changes
PROGRESS_S = 5.0


class FetchError(Exception):
    """A step that failed, with the remedy."""


@dataclass(frozen=True, order=True)
class Package:
    name: str
    version: str
    sha256: str
    bytes: int

    def line(self) -> str:
        return f"{self.sha256} {self.bytes:>9} {self.name} {self.version}"


def read_list(path: Path) -> list[Package]:
    """Returns the packages of a list, in its order."""
    rows = [line.split() for line in path.read_text().splitlines() if line[:1] not in ("", "#")]
    return [Package(name, version, digest, int(size)) for digest, size, name, version in rows]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rankfold"


def prefix_of(packages: Iterable[Package]) -> Path:
    """Returns the folder into which this list is unpacked. Another list, or another FORMAT, has
    another folder."""
    text = "\n".join([f"format {FORMAT}", *(package.line() for package in packages)])
    return cache_folder() / f"torch-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def say(text: str) -> None:
    print(f"torch: {text}", file=sys.stderr, flush=True)


# ---- apt


class Apt:
    """apt-get with a state of its own in `folder`; the system's is neither read nor changed."""

    def __init__(self, folder: Path):
        for program in ("apt-get", "dpkg-deb"):
            if not shutil.which(program):
                raise FetchError(f"{program} is missing: this needs Debian or Ubuntu")
        if not os.access(KEYS, os.R_OK):
            raise FetchError(f"{KEYS} is missing: install the package debian-archive-keyring")
        self.archives = folder / "archives"
        for sub in ("parts", "lists/partial", "archives/partial"):
            (folder / sub).mkdir(parents=True, exist_ok=True)
        (folder / "status").write_text("".join(map(_installed, NOT_FETCHED)))
        (folder / "parts/debian.sources").write_text(_source())
        self.config = folder / "apt.conf"
        self.config.write_text(_configuration(folder))

    def run(self, *arguments: str, meanwhile: Callable[[], None] | None = None) -> str:
        """Runs apt-get and returns its output; calls `meanwhile` every PROGRESS_S. Raises
        FetchError with apt-get's reasons."""
        env = {**os.environ, "APT_CONFIG": str(self.config), "LC_ALL": "C"}
        with subprocess.Popen(
            ["apt-get", "--quiet=2", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as apt:
            while True:
                try:
                    output, _ = apt.communicate(timeout=PROGRESS_S)
                    break
                except subprocess.TimeoutExpired:
                    if meanwhile:
                        meanwhile()
        if apt.returncode:
            reasons = re.findall(r"^[EW]: (.*)", output, re.M) or [output.strip()[-500:]]
            raise FetchError("not fetched: " + "; ".join(reasons[-2:]))
        return output

    def current(self) -> list[Package]:
        """Returns the packages that Debian has now, from its signed index."""
        self.run("update", "--error-on=any")
        none = self.archives.with_name("none")  # apt-get omits packages that it has fetched
        (none / "partial").mkdir(parents=True, exist_ok=True)
        options = ("--yes", "--no-install-recommends", "--print-uris")
        output = self.run("install", *options, f"--option=Dir::Cache::archives={none}", *WANTED)
        found = []
        for file, size, digest in re.findall(r"^'.*' (\S+) (\d+) SHA256:(\w+)$", output, re.M):
            name, version, _arch = unquote(file).rsplit("_", 2)
            found.append(Package(name, version, digest, int(size)))
        if not found:
            raise FetchError(f"apt-get names no packages: {output.strip()[-500:]}")
        return sorted(found)

    def download(self, packages: list[Package]) -> list[Path]:
        """Fetches what is not there yet, continues a file that is incomplete, and returns the
        verified files."""
        total = sum(package.bytes for package in packages)

        def progress() -> None:
            say(f"{_bytes_in(self.archives) // 10**6} of {total // 10**6} MB")

        options = ("--yes", "--no-install-recommends", "--download-only")
        self.run("install", *options, *WANTED, meanwhile=progress)
        return [self._verified(package) for package in packages]

    def _verified(self, package: Package) -> Path:
        for path in self.archives.glob(f"{package.name}_*.deb"):
            if unquote(path.name).split("_")[1] == package.version:
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() == package.sha256:
                        return path
                path.unlink()
                raise FetchError(f"{path.name} is damaged: it was removed; run this again")
        raise FetchError(f"apt-get did not fetch {package.name} {package.version}")


def _installed(name: str) -> str:
    """Returns an entry that makes apt-get take a dependency for installed."""
    return (
        f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\n"
        f"Multi-Arch: foreign\nVersion: 999:1\nMaintainer: none\nDescription: not needed\n\n"
    )


def _source() -> str:
    """Returns a source like the system's own, for another suite."""
    uri = "http://deb.debian.org/debian"
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        if found := re.search(r"^URIs: *(\S+/debian/*)$", path.read_text(), re.M):
            uri = found.group(1)
            break
    return (
        f"Types: deb\nURIs: {uri}\nSuites: {SUITE}\nComponents: {COMPONENTS}\n"
        f"Architectures: amd64\nSigned-By: {KEYS}\n"
    )


def _configuration(folder: Path) -> str:
    return f"""Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/parts";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{folder}/parts";
Dir::State "{folder}";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}";
Dir::Cache::archives "{folder}/archives";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
APT::Keep-Downloaded-Packages "true";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
Acquire::ForceHash "SHA256";
Debug::NoLocking "true";
"""


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # apt-get moves files
            continue
    return total


# ---- the prefix


def unpack(files: list[Path], packages: list[Package], prefix: Path) -> None:
    """Makes `prefix` from packages, whole or not at all."""
    fresh = prefix.with_name(f"{prefix.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)  # of a run that was killed; the caller has the lock
    fresh.mkdir(parents=True)
    try:
        reported = time.monotonic()
        for number, file in enumerate(files, 1):
            done = subprocess.run(
                ["dpkg-deb", "--extract", file, fresh], capture_output=True, text=True
            )
            if done.returncode:
                raise FetchError(f"{file.name} cannot be unpacked: {done.stderr.strip()}")
            if time.monotonic() - reported >= PROGRESS_S:
                reported = time.monotonic()
                say(f"unpacked {number} of {len(files)} packages")
        shutil.rmtree(fresh / "usr/share/doc", ignore_errors=True)
        for library in (fresh / LIBRARIES).glob("libtorch_*.so.?.*"):  # torch opens the short name
            link = library.with_name(library.name.split(".so.")[0] + ".so")
            if not link.is_symlink() and not link.exists():
                link.symlink_to(library.name)
        (fresh / "packages.txt").write_text("".join(p.line() + "\n" for p in packages))
        os.rename(fresh, prefix)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def stubs_in(prefix: Path) -> Path:
    """Builds the stubs of this version, if they are not there yet, and returns their folder."""
    version = hashlib.sha256(Path(stubs.__file__).read_bytes()).hexdigest()[:12]
    folder = prefix / f"stubs-{version}"
    if not folder.is_dir():
        say("building stubs")
        fresh = prefix / "stubs.new"
        shutil.rmtree(fresh, ignore_errors=True)
        stubs.build(prefix / "usr", fresh)
        fresh.rename(folder)
    return folder


def write_command(prefix: Path, folder: Path) -> Path:
    """Writes ``python`` into `folder`: it starts the prefix's interpreter with the prefix's own
    loader and libraries. In a rank LD_LIBRARY_PATH names rankfold's, which come first. With
    pyvenv.cfg the interpreter finds its modules, and child processes start this command again."""
    folder.mkdir(parents=True, exist_ok=True)
    stubs_folder = stubs_in(prefix)
    python, settings = folder / "python", folder / "pyvenv.cfg"
    libraries = (LIBRARIES, f"{LIBRARIES}/openblas-pthread", "usr/lib", stubs_folder.name)
    places = ":".join(f"$root/{place}" for place in libraries)
    _replace(
        python,
        f"""#!/bin/sh
root='{prefix}'
exec "$root/{LOADER}" --argv0 "$0" \\
	--library-path "${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}{places}" \\
	"$root/usr/bin/python3.13" "$@"
""",
    )
    _replace(settings, f"home = {prefix}/usr/bin\ninclude-system-site-packages = true\n")
    return python


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.rename(path)


def check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FetchError(
            f"{folder} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed: free "
            "some, or set XDG_CACHE_HOME to a folder on another disk"
        )


def fetch(packages: list[Package], prefix: Path) -> None:
    """Fetches the list and makes `prefix`. A run that was interrupted continues."""
    total = sum(package.bytes for package in packages)
    downloads = cache_folder() / "torch-downloads"
    say(
        f"fetching {len(packages)} packages of Debian {SUITE} ({total / 1e6:.0f} MB) into {prefix} "
        f"({UNPACKED_BYTES / 1e9:.1f} GB)"
    )
    check_space(cache_folder(), UNPACKED_BYTES + total - _bytes_in(downloads))
    apt = Apt(downloads)
    found = apt.current()
    for line in differences(packages, found):
        say(line)
    files = apt.download(found)
    say("unpacking")
    unpack(files, found, prefix)
    shutil.rmtree(downloads)


def differences(pinned: list[Package], found: list[Package]) -> list[str]:
    """Describes what Debian has changed since the list was written. Raises FetchError if a package
    has other content in the same version."""
    lines = []
    known = {package.name: package for package in pinned}
    for package in found:
        old = known.get(package.name)
        if old == package:
            continue
        if old and old.version == package.version:
            raise FetchError(f"{package.name} {package.version} is not what {LIST.name} has")
        lines.append(
            f"{package.name} {package.version} from Debian's signed index; {LIST.name} has "
            f"{old.version if old else 'none'} (`make torch-pin` updates it)"
        )
    return lines


def pin() -> None:
    """Writes the versions that Debian has now to the list."""
    packages = Apt(cache_folder() / "torch-downloads").current()
    header = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
    LIST.write_text("\n".join([*header, *(package.line() for package in packages)]) + "\n")
    say(f"{len(packages)} packages, {sum(p.bytes for p in packages) / 1e6:.0f} MB: {LIST}")


def acquire(lock: IO[str]) -> None:
    """Waits until no other run has the lock, which the kernel releases if that run is killed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for another run, which has {lock.name} locked (`fuser {lock.name}` names it)")
        fcntl.flock(lock, fcntl.LOCK_EX)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pin", action="store_true", help="write packages.txt")
    parser.add_argument(
        "--to", type=Path, default=ROOT / "build/torch", help="the command's folder"
    )
    arguments = parser.parse_args()
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with (cache_folder() / "torch.lock").open("w") as lock:
            acquire(lock)
            if arguments.pin:
                pin()
                return 0
            packages = read_list(LIST)
            prefix = prefix_of(packages)
            if not prefix.is_dir():
                fetch(packages, prefix)
            command = write_command(prefix, arguments.to)
        say(f"{command} imports torch")
    except (FetchError, stubs.StubError, OSError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A root folder with Python, libc and `sh`: no compiler, no git, no CRIU, no rankfold.

Commands run in namespaces of their own for mounts and processes, which last as long as the `Root`.
At its end everything that they started is killed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from support.patience import scaled

# The first process: it mounts, enters the root, reports, and adopts orphans until it is killed.
# $0: the root; $1: Python; then, for each mount, its options, what is mounted, and where.
_ENTER = """
set -e
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
python=$1; shift
while [ $# -gt 0 ]; do
    mkdir -p "$0$3"
    mount --bind "$2" "$0$3"
    mount -o "remount,bind,$1" "$0$3"
    shift 3
done
exec chroot "$0" "$python/bin/python3" -c '
import os, signal
print("ready", flush=True)
signal.signal(signal.SIGCHLD, lambda *_: None)
while True:
    signal.sigwait([signal.SIGCHLD])
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError:
        pass
'
"""


class Root:
    """A context manager. `folder` is the root as seen from outside. Inside, the folders `read_only`
    cannot be written, and the folders `shared` are those from outside."""

    def __init__(
        self, folder: Path, read_only: tuple[str, ...] = (), shared: tuple[Path, ...] = ()
    ):
        self.folder, self.python = folder, Path(sys.base_prefix)
        self._mounts = [
            *("ro", str(self.python), str(self.python)),
            *(word for each in read_only for word in ("ro", f"{folder}{each}", each)),
            *(word for each in shared for word in ("rw", str(each), str(each))),
        ]
        for name in ("proc", "dev", "tmp", "bin", "etc", "root", "home/someone", "var/tmp"):
            (folder / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (folder / name).chmod(0o1777)
        shutil.copy("/bin/sh", folder / "bin/sh")
        extensions = self.python.glob("lib/python3*/lib-dynload/[!_]*.so")
        private = self.python.glob("lib/python3*/lib-dynload/_[!t]*.so")  # without Tk
        self.libraries(self.python / "bin/python3", folder / "bin/sh", *extensions, *private)

    def libraries(self, *programs: Path) -> None:
        """Copy the system's libraries that these programs need."""
        done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True)
        for path in {*re.findall(r"(/\S+\.so\S*) \(", done.stdout)}:
            there = self.folder / path[1:]
            if not Path(path).is_relative_to(self.python) and not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, there)

    def __enter__(self) -> Root:
        self._first = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                _ENTER,
                self.folder,
                self.python,
                *self._mounts,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._first.stdout and self._first.stdout.readline() == "ready\n"
        self._pid = self.child_of(self._first.pid)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._first.kill()
        self._first.wait()
        assert self._first.stdout
        self._first.stdout.close()

    def command(
        self, *arguments: str, user: str = "0", home: str = "/root", workdir: str = "/", **env: str
    ) -> list[str]:
        """The command that runs `arguments` inside, as the user with this id."""
        environment = {"PATH": f"{self.python}/bin:/bin", "HOME": home, **env}
        inside = f"cd {shlex.quote(workdir)} && exec {shlex.join(arguments)}"
        return [
            "env",
            "--ignore-environment",
            *map("=".join, environment.items()),
            shutil.which("nsenter") or "nsenter",
            f"--target={self._pid}",
            "--mount",
            "--pid",
            "--root",
            "--wd",
            f"--setuid={user}",
            f"--setgid={user}",
            "/bin/sh",
            "-c",
            inside,
        ]

    @staticmethod
    def child_of(pid: int) -> str:
        """The pid, as seen from outside, of what the process of a `command` runs inside."""
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return child

    def run(self, *arguments: str, **how: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments, **how)
        return subprocess.run(command, capture_output=True, text=True, timeout=scaled(120))

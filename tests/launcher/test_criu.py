"""Work that CRIU need not repeat for each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold import criu
from rankfold.interpose.launcher.criu.command import reason
from rankfold.paths import REPOSITORY
from support import privileges

# With mounts of its own, in which /run is a folder like any other.
_WITH_RUN = """
mount --bind "$1" /run &&
"$2" -c 'from rankfold import criu; assert criu.trouble() == ""' &&
"$3" check -v4 2>&1
"""


def test_criu_s_kernel_cache_is_kept_where_run_is_no_tmpfs(tmp_path: Path) -> None:
    privileges.need_criu()
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            _WITH_RUN,
            "sh",
            tmp_path,
            sys.executable,
            criu.command(),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Loaded kdat cache" in done.stdout, os.listdir(tmp_path)


@pytest.mark.parametrize("kernel_is_good", [True, False])
def test_a_system_s_criu_is_taken_if_it_is_new_and_finds_the_kernel_good(
    tmp_path: Path, kernel_is_good: bool
) -> None:
    """tools/criu and rankfold do the same."""
    if os.geteuid() != 0 or not (criu.FETCHED / "criu").exists():
        privileges.missing("needs root, and the CRIU that tools/criu fetches")
    theirs = tmp_path / "criu"
    status = 0 if kernel_is_good else 1
    theirs.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Version: 9.9" || exit {status}\n')
    (tmp_path / "nft").write_text("#!/bin/sh\n")
    for file in tmp_path.iterdir():
        file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ours = [sys.executable, "-c", "from rankfold import criu; print(criu.command())"]
    for command in (ours, [str(REPOSITORY / "tools/criu"), "--print-path"]):
        told = subprocess.run(
            command, cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        taken = Path(told.stdout.strip())
        assert taken == (theirs if kernel_is_good else criu.FETCHED / "criu"), command


_INFECTED = "(00.041) Error (compel/src/lib/infect.c:97): "


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            _INFECTED + "si_code=4 si_pid=3000 si_status=19",
            "process 3000: signal 19 from outside reached it while CRIU controlled it",
        ),
        (
            _INFECTED + "si_code=2 si_pid=3000 si_status=11",
            "process 3000: si_code=2 si_pid=3000 si_status=11",
        ),
        (
            _INFECTED + "si_code=4 si_pid=3000 si_status=11",
            "process 3000: si_code=4 si_pid=3000 si_status=11",
        ),
        (
            _INFECTED + "si_code=1 si_pid=3000 si_status=1",
            "process 3000: si_code=1 si_pid=3000 si_status=1",
        ),
        (
            "(00.05)   1000: Error (criu/files.c:7): a new complaint",
            "process 1000: a new complaint",
        ),
    ],
)
def test_criu_s_errors_are_translated_for_people(tmp_path: Path, line: str, said: str) -> None:
    log = tmp_path / "dump.log"
    log.write_text(f"(00.01) all is well\n{line}\n(00.06) Error (criu/cr.c:1): Dumping FAILED.\n")
    assert reason(log, alive=False) == said

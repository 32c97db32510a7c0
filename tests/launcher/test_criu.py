"""What CRIU need not do again for each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rankfold import criu
from rankfold.paths import REPOSITORY
from support import privileges

# With mounts of its own, in which /run is a folder like any other.
_WITH_RUN = """
mount --bind "$1" /run &&
"$2" -c 'from rankfold import criu; assert criu.trouble() == ""' &&
"$3" check -v4 2>&1
"""


def test_what_it_finds_out_about_the_kernel_is_kept_where_run_is_no_tmpfs(tmp_path: Path) -> None:
    privileges.need_criu()
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _WITH_RUN, "sh", tmp_path, sys.executable,
         criu.command()],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "Loaded kdat cache" in done.stdout, os.listdir(tmp_path)

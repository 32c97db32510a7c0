"""Without CRIU, or what that needs, all works but saving; who wants it hears why it cannot be."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rankfold import criu, paths
from support import privileges
from support.command import Rankfold, Specs
from support.leaks import State

from .conftest import Trained


class Lack(NamedTuple):
    """The command that runs a fleet so, and what is said then."""

    prefix: tuple[str, ...]
    why: str
    namespaces: str


def lacks_privileges(_folder: Path) -> Lack:
    privileges.need_criu()
    if not shutil.which("setpriv"):
        privileges.missing("needs setpriv (util-linux)")
    prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    return Lack(prefix, "CRIU needs to have the CAP_SYS_ADMIN", "note  pid namespaces: they cannot")


def lacks_criu(folder: Path) -> Lack:
    """The system's is too old, and none was fetched."""
    privileges.need_namespaces()
    theirs, nothing = folder / "criu", folder / "nothing"
    theirs.write_text("#!/bin/sh\necho Version: 3.17\n")
    theirs.chmod(0o755)
    nothing.mkdir()
    hide = 'if [ -e "$0" ]; then mount --bind "$1" "$0" || exit; fi; shift; exec "$@"'
    return Lack(
        ("unshare", "--mount", "sh", "-c", hide, str(criu.FETCHED), str(nothing)),
        f"no CRIU 4.2 or newer ({theirs} is 3.17): run {paths.REPOSITORY}/tools/criu",
        "ok    pid namespaces: ranks get",
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [lacks_privileges, lacks_criu])
def test_a_fleet_works_and_says_that_nothing_is_saved(
    make: Callable[[Path], Lack],
    rankfold: Rankfold,
    specs: Specs,
    program: Path,
    state: State,
    undisturbed: dict[str, bytes],
) -> None:
    folder = state.folder / "bin"
    folder.mkdir()
    prefix, why, namespaces = make(folder)
    path = f"{folder}:{os.environ['PATH']}"
    environment = {**rankfold.environment, "PATH": path, "RANKFOLD_REST_SAVE_AFTER": "0"}
    bare = Rankfold(state, environment, prefix)
    job = Trained(bare, specs, program, state.folder / "gpt")
    job.folder.mkdir()

    doctor = bare.run("doctor")
    assert doctor.returncode == 0 and why in doctor.stdout
    assert "cannot be checkpointed" in doctor.stdout and namespaces in doctor.stdout
    specs.program(["true"], "eager", extra="checkpoint: {interval: 1m}")
    refused = bare.run("apply", "-f", str(specs.folder))
    assert refused.returncode == 65
    assert "eager.yaml:8: spec.checkpoint: cannot be: " in refused.stderr and why in refused.stderr
    (specs.folder / "eager.yaml").unlink()

    job.apply(gpus=2)
    (told,) = [c["message"] for c in job.status["conditions"] if c["reason"] == "Unavailable"]
    assert why in told
    job.reaches(5)
    for command in (("checkpoint", job.name), ("suspend", job.name, "--store", "--override")):
        refused = bare.run(*command)
        assert refused.returncode == 1 and why in refused.stderr
    os.kill(job.status["ranks"][1]["pid"], signal.SIGKILL)
    bare.until(lambda: job.status["restarts"] == 1)
    assert "restarted from the beginning, since there is no checkpoint yet" in bare(
        "describe", job.name
    )
    job.reaches(5)
    job.apply(gpus=1)
    pids = [rank["pid"] for rank in job.status["ranks"]]
    bare("suspend", job.name, "--override")
    job.is_in("Suspended")
    assert job.status["suspendedIn"] == "memory"
    assert [rank["pid"] for rank in job.status["ranks"]] == pids
    bare("resume", job.name, "--override")
    assert job.results() == undisturbed
    assert job.status["checkpoints"] == [] and job.status["restarts"] == 1

"""Commands that only look: their words and exit codes are what scripts rely on."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from rankfold import __version__, criu, paths
from rankfold.job_limits import DEVICES_MAX
from rankfold.reconciler.commands.run import check_capacity, run_status
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import Defragmentation, Desired, Device, Job, Origin, Pool
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.model.values import too_many_devices
from rankfold.reconciler.report import doctor
from support import privileges
from support.leaks import State

POOL = "apiVersion: rankfold/v1alpha1\nkind: Pool\nmetadata: {name: local}\nspec: {devices: %s}\n"


def rankfold(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankfold", *map(str, arguments)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


# ---- the program --------------------------------------------------------------------------------

# Stands where the command looks for click, which is among the first modules it imports.
INTERRUPTED = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(100)"


def test_ctrl_c_while_the_command_starts_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(INTERRUPTED)
    done = rankfold("status", PYTHONPATH=str(tmp_path))
    assert done.returncode == -signal.SIGINT
    assert done.stdout == done.stderr == ""


# `status` reads the journal, queries processes and plans. The function that uses a module
# imports it, if only other commands need it.
OWN_MODULES_MAX = 76
NEEDLESS = (
    "asyncio blake3 cffi concurrent dataclasses difflib fsspec jsonschema llvmlite logging rich "
    "subprocess tempfile yaml zstandard rankfold.distribution rankfold.records "
    "rankfold.reconciler.act rankfold.reconciler.client rankfold.reconciler.source"
).split()


def test_status_imports_only_what_it_needs(tmp_path: Path) -> None:
    """Most of the CPU time of a short command is spent on imports."""
    with Journal(tmp_path) as journal:
        journal.put(Pool("local", (Device("local/soft-0", "soft", 1 << 26),)), "here", Origin(), "")
        job = Job("sleeper", ("sleep", "1"), "/", 2, 1)
        journal.put(job, "here", Origin(), "")
        held, device = ("local/soft-0",) * 2, {"memory_bytes": 1 << 26}
        journal.save(Record("sleeper", step="placed", placement=held, fixed=job, device=device))
    done = rankfold("--state", tmp_path, "status", PYTHONPROFILEIMPORTTIME="1")
    assert re.search(r"^sleeper +\w+ +2 +1/1 ", done.stdout, re.MULTILINE), done.stderr
    imported = re.findall(r"^import time:.*\| *(\S+)$", done.stderr, re.MULTILINE)
    assert len([name for name in imported if name.startswith("rankfold")]) <= OWN_MODULES_MAX
    assert set(imported).isdisjoint(NEEDLESS)


# ---- run -------------------------------------------------------------------------------------


def test_a_job_may_request_a_device_for_each_rank_up_to_the_limit_of_a_job() -> None:
    assert not too_many_devices(4, 4) and not too_many_devices(DEVICES_MAX, 2 * DEVICES_MAX)
    assert too_many_devices(5, 4) == (
        "must be at most worldSize (4), not 5: a rank uses one device"
    )
    more = too_many_devices(DEVICES_MAX + 1, 2 * DEVICES_MAX)
    assert more == f"must be at most {DEVICES_MAX}, not {DEVICES_MAX + 1}"


def test_run_refuses_more_devices_than_ranks(tmp_path: Path) -> None:
    done = rankfold("--state", tmp_path, "run", "--world-size=1", "--gpus=2", "--", "true")
    assert done.returncode == 64
    assert "--gpus must be at most worldSize (1), not 2: a rank uses one device" in done.stderr


def test_run_refuses_more_devices_than_there_are_of_one_type() -> None:
    """The devices of a job are of one type, whichever it is."""
    kinds = ("soft", "soft", "nvidia", "nvidia")
    pool = Pool("local", tuple(Device(f"local/{i}", k, 1 << 26) for i, k in enumerate(kinds)))
    check_capacity(Job("two", ("true",), "/", 4, 2), [pool])
    with pytest.raises(click.UsageError, match="--gpus 3: the pools have 2 devices of any kind"):
        check_capacity(Job("three", ("true",), "/", 4, 3), [pool])


# ---- validate --------------------------------------------------------------------------------


def test_version_names_the_commit() -> None:
    done = rankfold("--version")
    assert done.returncode == 0
    assert re.fullmatch(
        rf"rankfold {__version__} \(commit [0-9a-f]{{12}}(-dirty)?\)\n", done.stdout
    )


def test_a_missing_library_has_a_remedy_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKFOLD_NATIVE", raising=False)
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "rankfold")
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    found = doctor._library()
    assert not found.ok and found.detail.endswith(
        "librankfold.so is missing: install rankfold again"
    )
    (tmp_path / "Makefile").touch()
    assert f"run `make native` in {tmp_path}" in doctor._library().detail


def test_validate_refuses_each_fault_with_its_line_and_65(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL % "[{type: quantum}]")
    done = rankfold("validate", tmp_path)
    assert done.returncode == 65
    assert "pool.yaml:4: spec.devices[0].type: " in done.stdout + done.stderr


def test_validate_says_nothing_is_wrong_with_0(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL % "[{type: soft}]")
    assert rankfold("validate", tmp_path).returncode == 0


# ---- doctor ----------------------------------------------------------------------------------


def found(state: Path, what: str) -> doctor.Finding:
    (finding,) = [each for each in doctor.examine(state) if each.what == what]
    return finding


def test_doctor_finds_nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = rankfold("--state", tmp_path, "doctor", "-o", "json", RANKFOLD_RUNTIME=str(tmp_path))
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert {each["what"] for each in findings} >= {
        "kernel",
        "memfd",
        "interposer",
        "state directory",
        "socket folder",
        "git",
        "pid namespaces",
        "CRIU",
        "nft",
    }
    assert all(each["ok"] for each in findings if each["needed"])


def test_doctor_ends_with_1_where_something_needed_is_missing(tmp_path: Path) -> None:
    done = rankfold(
        "--state", tmp_path, "doctor", RANKFOLD_NATIVE=str(tmp_path), RANKFOLD_RUNTIME=str(tmp_path)
    )
    assert done.returncode == 1
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("MISS")]
    assert "interposer" in line and "make native" in line


@pytest.mark.parametrize(
    "release, ok",
    [("5.15.0-91-generic", False), ("5.16", True), ("6.1.0-18-amd64", True), ("10.0", True)],
)
def test_doctor_knows_which_kernel_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, ok: bool
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    finding = found(tmp_path, "kernel")
    assert finding.ok == ok and release in finding.detail
    assert ("5.16" in finding.detail) or ok


def test_doctor_says_that_a_socket_s_path_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 25)
    monkeypatch.setenv("RANKFOLD_RUNTIME", str(folder))
    finding = found(tmp_path, "socket folder")
    assert not finding.ok and "set RANKFOLD_RUNTIME to a short path" in finding.detail


def test_doctor_says_what_works_without_criu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(criu, "FETCHED", tmp_path / "nowhere")
    criu.command.cache_clear()
    criu.nft.cache_clear()
    findings = [found(tmp_path, "CRIU"), found(tmp_path, "nft")]
    criu.command.cache_clear()
    criu.nft.cache_clear()
    assert not any(each.ok or each.needed for each in findings)
    assert all("tools/criu" in each.detail or "root" in each.detail for each in findings)
    assert "cannot be checkpointed" in findings[0].detail


# Most overlays, like this one, give no file handles.
OVERLAY = """
mount -t tmpfs tmpfs "$0" && cd "$0" && mkdir lower upper work merged || exit
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 77
exec "$@"
"""


def test_doctor_names_a_mount_where_the_kernel_does_not_tell_of_files(
    tmp_path: Path, state: State
) -> None:
    privileges.need_namespaces()
    folder = tmp_path / "mounted"
    folder.mkdir()
    doctor_here = [sys.executable, "-m", "rankfold", "--state", str(state.path), "doctor"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", OVERLAY, str(folder), *doctor_here],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        privileges.missing(f"no overlay can be mounted: {done.stderr}")
    assert done.returncode == 0, done.stderr
    (line,) = [each for each in done.stdout.splitlines() if "fanotify" in each]
    assert line.startswith("note ") and f"{folder}/merged (overlay: name_to_handle_at" in line
    assert "a checkpoint does not contain them, and the files must be unchanged" in line


def test_a_criu_that_is_too_old_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "criu"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(criu, "FETCHED", tmp_path / "nowhere")
    for version, words in (("4.1.1", "4.1"), ("none", "none is installed")):
        theirs.write_text(f"#!/bin/sh\necho Version: {version}\n")
        theirs.chmod(0o755)
        criu.command.cache_clear()
        with pytest.raises(criu.Missing, match=words):
            criu.command()
    theirs.write_text("#!/bin/sh\necho Version: 4.10\n")
    criu.command.cache_clear()
    assert criu.command() == str(theirs)
    criu.command.cache_clear()


def test_doctor_s_socket_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKFOLD_RUNTIME", str(tmp_path / "r"))
    assert found(tmp_path, "socket folder").ok
    assert [path for path in (tmp_path / "r").rglob("*") if path.is_socket()] == []


def test_doctor_misses_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = found(tmp_path, "git")
    assert not finding.ok and not finding.needed


def test_doctor_misses_memory_for_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert not doctor._memfd().ok


# ---- run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "exits", "status"),
    [
        (1, [-15, 7, -9], 7),
        (2, [0, 7, -9], 137),
        (1, [3, None], 1),
        (4, [3], 1),
        (None, [None, 0, -11, 3], 139),
    ],
)
def test_the_status_of_run_is_that_of_the_rank_that_failed(
    rank: int | None, exits: list[int | None], status: int
) -> None:
    """Whatever is said of it. Journals of before do not say which rank it was: the first, then."""
    over = {"phase": "Failed", "reason": "RankFailed", "message": "it was rank 0, or so"}
    assert run_status({**over, "rank": rank, "exits": exits}, 0) == status


def in_a_shell(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`$0` is Python."""
    return subprocess.run(
        ["sh", "-c", script, sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_a_command_whose_streams_are_closed_uses_none_of_its_files_for_them(tmp_path: Path) -> None:
    """Without a standard output, the next file or socket would get its number."""
    script = '"$0" -m rankfold --state "$1" status -o json <&- >&-; echo "exited with $?" >&2'
    done = in_a_shell(script, tmp_path)
    assert (done.stdout, done.stderr) == ("", "exited with 0\n")


def test_a_command_in_a_deleted_directory_says_so(tmp_path: Path) -> None:
    script = 'cd "$1" && rmdir "$1" && "$0" -m rankfold run --world-size 1 -- true'
    (tmp_path / "gone").mkdir()
    done = in_a_shell(script, tmp_path / "gone")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the current directory was deleted" in done.stderr


def test_a_plan_compares_the_policy_with_that_of_the_fleet(tmp_path: Path) -> None:
    spec = '{growthDelay: 0s, defragmentation: {windows: ["22:00-06:00"]}}'
    policy = f"apiVersion: rankfold/v1alpha1\nkind: Policy\nmetadata: {{name: p}}\nspec: {spec}\n"
    state, file = tmp_path / "state", tmp_path / "policy.yaml"
    file.write_text(policy)
    with Journal(state) as journal:
        window = Defragmentation(((1320, 360),))
        desired = Desired(growth_delay_s=0.0, defragmentation=window)
        journal.accept(desired, {}, f"directory {tmp_path}", "1")
    plan = ("--state", state, "plan", "-f", file, "--detailed-exitcode")
    done = rankfold(*plan)
    assert (done.returncode, done.stdout) == (0, "Nothing to change.\n"), done.stderr
    file.write_text(policy.replace("06:00", "07:00"))
    done = rankfold(*plan)
    assert done.returncode == 2
    assert "spec.defragmentation: 22:00-06:00 → 22:00-07:00" in done.stdout

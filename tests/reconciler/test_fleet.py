"""Commands on a running fleet: the real reconciler, real launchers and ranks; devices are peers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rankfold.reconciler.cli import cli
from rankfold.reconciler.layout import Layout, lock_holder
from support import leaks
from support.command import Git, Rankfold, Specs
from support.leaks import State
from support.patience import scaled

FOR_GOOD = "restart: {maxRestarts: 0}"  # it fails once and for good


def pids(rankfold: Rankfold, job: str = "gpt") -> list[int]:
    return [rank["pid"] for rank in rankfold.job(job)["ranks"]]


def devices(rankfold: Rankfold, job: str = "gpt") -> int:
    return len(set(rankfold.job(job).get("placement", {}).values()))


def test_a_job_is_resized_suspended_and_resumed_with_the_same_processes(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=4)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    before = pids(rankfold)
    for gpus in (1, 2, 4, 3):
        specs.job(gpus=gpus)
        rankfold("apply", "-f", str(specs.folder), "--wait")
        assert devices(rankfold) == gpus
    specs.job(gpus=3, extra="suspend: true")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    job = rankfold.job("gpt")
    assert (job["phase"], job["suspendedIn"], job["placement"]) == ("Suspended", "memory", {})
    assert all(device["ranks"] == [] for device in rankfold.status()["devices"])
    specs.job(gpus=3)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    job = rankfold.job("gpt")
    assert [rank["pid"] for rank in job["ranks"]] == before
    changes = [(c["from"], c["to"]) for c in job["changes"]]
    assert changes == [(4, 1), (1, 2), (2, 4), (4, 3), (3, 0), (0, 3)]
    assert all(c["converge_s"] > 0 and c["pause_s"] >= 0 for c in job["changes"])
    specs.finish_jobs()
    rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Succeeded")
    assert "[2] rank 2 is done" in rankfold("logs", "gpt")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert rankfold.job("gpt")["epoch"] == 6, "a job that succeeded does not run again"


def test_plan_says_what_disturbs_and_applying_the_same_changes_nothing(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=4)
    folder = str(specs.folder)
    first = json.loads(rankfold("plan", "-f", folder, "--detailed-exitcode", "-o", "json", code=2))
    assert [(c["object"], c["action"], c["disturbs"]) for c in first["changes"]] == [
        ("Pool/local", "create", False),
        ("Job/gpt", "create", False),
    ]
    assert set(first["placements"]["gpt"].values()) == {f"local/soft-{i}" for i in range(4)}
    rankfold("apply", "-f", folder, "--wait")
    assert "Nothing to change" in rankfold("plan", "-f", folder, "--detailed-exitcode")
    (specs.folder / "gpt.yaml").unlink()
    removed = json.loads(rankfold("plan", "-f", folder, "-o", "json"))["changes"]
    assert [(c["action"], c["disturbs"]) for c in removed] == [("remove", True)]
    specs.job(gpus=2)
    text = rankfold("plan", "-f", folder, "-o", "markdown")
    assert "spec.gpus: 4 → 2" in text and "disturbs" in text
    assert devices(rankfold) == 4, "plan changes nothing"


@pytest.mark.slow  # it waits for the time limit
def test_a_job_ends_at_its_time_limit_and_the_next_one_starts(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.pool(1)
    specs.job("first", 1, "timeLimit: 2s", ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    process = pids(rankfold, "first")[0]
    specs.job("next", 1, ranks=1)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: devices(rankfold, "next") == 1)
    first = rankfold.job("first")
    assert (first["phase"], first["restarts"], first["timeLeft"]) == ("Failed", 0, 0)
    assert first["message"].startswith("it ran for its timeLimit: 2 seconds on 1 device")
    assert leaks.has_ended(process, leaks.GRACE_S)


def test_a_change_to_a_fixed_field_of_a_started_job_is_refused_with_its_line(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    specs.job(gpus=1, extra="env: {A: b}")
    for command in ("plan", "apply"):
        done = rankfold.run(command, "-f", str(specs.folder))
        assert done.returncode == 65
        assert "gpt.yaml:8: spec.env: cannot change in a started job" in done.stderr
    assert devices(rankfold) == 2


def test_a_broken_revision_is_refused_and_the_fleet_stays_as_it_was(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=2)
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: devices(rankfold) == 2)
        good = rankfold.status()["revision"]
        specs.job(gpus=1, extra="topology: [{rank: 0}]")
        told = rankfold.until(
            lambda: next(
                (c for c in rankfold.status()["source"]["conditions"] if c["status"] == "False"),
                None,
            )
        )
        assert "spec.topology: is not implemented yet" in told["message"]
        assert devices(rankfold) == 2 and rankfold.status()["revision"] == good
        specs.job(gpus=1)
        rankfold.until(lambda: devices(rankfold) == 1)


def test_a_removed_file_suspends_its_job_until_it_is_back(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=1)
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: devices(rankfold) == 1)
        (specs.folder / "gpt.yaml").unlink()
        rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Suspended")
        assert "Orphaned" in {c["type"] for c in rankfold.job("gpt")["conditions"]}
        specs.job(gpus=1)
        rankfold.until(lambda: devices(rankfold) == 1)


def test_an_object_of_a_source_is_not_changed_without_force(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    for command in (["scale", "gpt", "--gpus", "1"], ["suspend", "gpt"], ["cancel", "gpt"]):
        done = rankfold.run(*command)
        assert done.returncode == 1 and "gpt.yaml:3" in done.stderr
    rankfold("scale", "gpt", "--gpus", "1", "--override")
    rankfold.until(lambda: devices(rankfold) == 1)
    assert "Drifted" in {c["type"] for c in rankfold.job("gpt")["conditions"]}
    specs.job(gpus=3)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    job = rankfold.job("gpt")
    assert devices(rankfold) == 3 and "Drifted" not in {c["type"] for c in job["conditions"]}


def test_run_gives_the_jobs_exit_status_and_leaves_no_pool(rankfold: Rankfold) -> None:
    done = rankfold.run(
        "run",
        "--world-size",
        "2",
        "--gpus",
        "1",
        "--",
        "sh",
        "-c",
        "echo hello from $RANK of $WORLD_SIZE; exit $((RANK * 7))",
    )
    assert done.returncode == 7
    assert "[0] hello from 0 of 2" in done.stdout and "[1] hello from 1 of 2" in done.stdout
    assert "rank 1 exited with status 7" in done.stderr
    rankfold.until(lambda: rankfold.status()["devices"] == [])
    assert rankfold.run("run", "--world-size", "1", "--", "echo", "plain").stdout == "plain\n"
    missing = rankfold.run("run", "--world-size", "1", "--", "no-such-program")
    assert missing.returncode == 127 and "cannot start no-such-program" in missing.stderr


def test_a_run_prints_nothing_of_an_earlier_one_of_its_name(rankfold: Rankfold) -> None:
    for words in ("a first line", "the next", "a line that is longer", "short"):
        run = rankfold.run(
            "run",
            "--name",
            "again",
            "--world-size",
            "2",
            "--",
            "sh",
            "-c",
            f"echo {words}; echo {words} >&2",
        )
        each = [f"[{rank}] {words}" for rank in (0, 1)]
        assert (sorted(run.stdout.splitlines()), sorted(run.stderr.splitlines())) == (each, each)


def test_a_run_prints_all_of_a_job_that_begins_anew_and_why_it_does(
    rankfold: Rankfold, state: State
) -> None:
    flag = state.folder / "been here"
    program = (
        f'if [ -e "{flag}" ]; then echo second, one; echo second, two; exit 0; fi; '
        f'touch "{flag}"; echo first; sleep 0.5; kill -9 $$'
    )
    command = ("run", "--world-size", "1", "--max-restarts", "1", "--", "sh", "-c", program)
    done = rankfold.run(*command)
    assert (done.returncode, done.stdout) == (0, "first\nsecond, one\nsecond, two\n")
    assert done.stderr == (
        "rankfold: rank 0 was killed by SIGKILL: restarted from the beginning, since there is no "
        "checkpoint yet\n"
    )


def test_each_run_has_its_own_name_and_environment(rankfold: Rankfold) -> None:
    """Several commands may start at once, and use a reconciler that another one has started."""
    run = ["run", "--world-size", "1", "--", "sh", "-c"]
    with rankfold.watching(str(Specs(rankfold.state.folder / "specs").folder)):
        pid = rankfold.reconciler_pid()
        one = rankfold.start(*run, "echo $COLOUR ${SHAPE-none} $RANK", COLOUR="deep blue", RANK="9")
        two = rankfold.start(*run, "echo ${COLOUR-none} $SHAPE", SHAPE="round")
        assert one.communicate() == ("deep blue none 0\n", "")
        assert two.communicate() == ("none round\n", "")
        assert rankfold.reconciler_pid() == pid
        kept = [p for p in rankfold.state.path.rglob("*") if re.search(r"\.(db|json)", p.name)]
        told = [p for p in kept if b"deep blue" in p.read_bytes()]
        assert told and [p for p in told if p.stat().st_mode & 0o077] == []  # they may be secrets


def test_a_launcher_that_cannot_start_ends_run_with_its_words(rankfold: Rankfold) -> None:
    done = rankfold.run("run", "--world-size", "1", "--", "true", RANKFOLD_NATIVE="/nowhere")
    assert done.returncode == 1
    assert "the launcher of rank 0 did not start" in done.stderr
    assert "librankfold.so has not been built" in done.stderr
    assert "by hand" not in done.stderr


def test_more_devices_than_the_job_may_get_are_refused_by_hand_too(rankfold: Rankfold) -> None:
    """Those of a `run` without a pool are as many as it asked for."""
    process = rankfold.start(
        "run", "--world-size", "3", "--gpus", "2", "--name", "long", "--", "sleep", "1000"
    )
    rankfold.until(lambda: devices(rankfold, "long") == 2)
    refused = {
        3: "requests 3 devices; the pools have 2 that long may use",
        4: "gpus must be at most worldSize (3), not 4: a rank uses one device",
        0: "gpus must be at least 1, not 0",
    }
    for gpus, reason in refused.items():
        done = rankfold.run("scale", "long", "--gpus", str(gpus))
        assert done.returncode == 1 and reason in done.stderr
    assert rankfold.job("long")["gpus"] == 2
    for gpus in (1, 2):
        rankfold("scale", "long", "--gpus", str(gpus))
        rankfold.until(lambda: devices(rankfold, "long") == gpus)  # noqa: B023
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=scaled(60))


def test_a_job_that_is_over_runs_anew_when_it_is_put_back(rankfold: Rankfold, specs: Specs) -> None:
    """On the devices that have served the first of its name, and remember it."""
    specs.pool(2)
    specs.program(["sleep", "1000"], "other")  # as long as one lives, so do the devices
    folder = str(specs.folder)
    for _ in range(2):
        specs.job(gpus=1, ranks=1)
        rankfold("apply", "-f", folder, "--wait", "--timeout", "40s")
        assert rankfold.job("gpt")["phase"] == "Running"
        specs.finish_jobs()
        rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Succeeded")
        specs.stop_file.unlink()
        (specs.folder / "gpt.yaml").unlink()
        rankfold("apply", "-f", folder, "--wait")


def test_interrupting_run_cancels_the_job(rankfold: Rankfold) -> None:
    process = rankfold.start("run", "--world-size", "1", "--name", "long", "--", "sleep", "1000")
    rankfold.until(lambda: rankfold.job("long").get("phase") == "Running")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=scaled(60))
    assert process.returncode == 130
    assert rankfold.job("long")["conditions"][0]["reason"] == "Cancelled"


def test_a_crashing_rank_fails_its_job_and_no_other(rankfold: Rankfold, specs: Specs) -> None:
    specs.job("good", gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    script = "[ $RANK = 1 ] || exec sleep 1000; echo oh no >&2; kill -SEGV $$"
    done = rankfold.run("run", "--world-size", "3", "--name", "bad", "--", "sh", "-c", script)
    assert done.returncode == 128 + signal.SIGSEGV
    message = rankfold.job("bad")["message"]
    assert "rank 1 was killed by SIGSEGV" in message and "oh no" in message
    assert rankfold.job("good")["phase"] == "Running"
    busy = [d["name"] for d in rankfold.status()["devices"] if d["ranks"]]
    assert busy == ["local/soft-0"]


def test_a_killed_proxy_fails_its_jobs_and_the_device_comes_back(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    specs.job("a", gpus=2, ranks=2, extra=FOR_GOOD)
    specs.job("b", gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    lost = rankfold.job("a")["placement"]["1"]
    os.kill(rankfold.proxy_pid(lost), signal.SIGKILL)
    rankfold.until(lambda: rankfold.job("a")["phase"] == "Failed")
    assert f"the proxy of {lost} exited" in rankfold.job("a")["message"]
    assert rankfold.job("b")["phase"] == "Running"
    rankfold.until(lambda: all(d["state"] == "Ready" for d in rankfold.status()["devices"]))


def test_a_device_that_could_not_save_a_job_fails_it_instead_of_losing_bits(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    specs.job(gpus=2, ranks=2, extra=FOR_GOOD)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    (state.path / "fail-gpt").touch()
    specs.job(gpus=1, ranks=2, extra=FOR_GOOD)
    rankfold("apply", "-f", str(specs.folder), "--wait", code=1)
    job = rankfold.job("gpt")
    assert job["phase"] == "Failed" and "the image is full" in job["message"]
    assert job["epoch"] == 1, "it was not placed again"


def test_a_commit_moves_the_fleet_and_shows_as_its_revision(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    git = Git(state.folder / "specs")
    git("init", "--quiet", "--initial-branch", "main")
    specs.job(gpus=4)
    git.commit("four")
    bare = state.folder / "bare.git"
    git("clone", "--quiet", "--bare", ".", str(bare))
    with rankfold.watching("--git", str(specs.folder)):
        rankfold.until(lambda: devices(rankfold) == 4)
        specs.job(gpus=1)
        commit = git.commit("one")
        specs.job(gpus=3)  # in the working tree only: not desired
        rankfold.until(lambda: (rankfold.job("gpt")["changes"] or [{}])[-1].get("converge_s"))
        status = rankfold.status()
        assert status["revision"] == commit
        change = status["jobs"][0]["changes"][-1]
        assert (change["from"], change["to"], change["commit"]) == (4, 1, commit)
        specs.write("broken.yaml", "kind: Nonsense")
        broken = git.commit("broken")
        rankfold.until(lambda: rankfold.status()["source"]["attempted"] == broken)
        assert rankfold.status()["revision"] == commit and devices(rankfold) == 1
    done = rankfold.run("watch", "--git", str(bare))
    assert done.returncode == 1, "another source, while jobs of the first live"


def test_a_second_reconciler_on_the_same_state_is_refused(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    specs.job(gpus=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    second = subprocess.run(
        [sys.executable, "-m", "rankfold.reconciler.daemon", "--state", str(state.path)],
        env=rankfold.environment,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert second.returncode == 1 and "another reconciler runs on" in second.stderr
    assert rankfold.job("gpt")["phase"] == "Running"


def test_a_reconciler_whose_state_was_removed_ends(rankfold: Rankfold, state: State) -> None:
    with rankfold.watching(str(Specs(state.folder / "specs").folder)):
        pid = rankfold.reconciler_pid()
        (state.path / "reconciler.lock").rename(state.path / "moved")
        rankfold.until(lambda: rankfold.reconciler_pid() not in (0, pid))


def test_a_second_source_is_refused_and_names_the_first(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    specs.job(gpus=1)
    other = Specs(state.folder / "other")
    other.job("other", gpus=1)
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: rankfold.job("gpt").get("phase") == "Running")
        done = rankfold.run("apply", "-f", str(other.folder))
        assert done.returncode == 1 and str(specs.folder) in done.stderr
    done = rankfold.run("apply", "-f", str(other.folder))
    assert done.returncode == 1 and "whose jobs still run (gpt)" in done.stderr


def test_a_reconciler_that_is_killed_is_started_again_by_whoever_watches(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=2)
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: devices(rankfold) == 2)
        before = pids(rankfold)
        os.kill(rankfold.reconciler_pid(), signal.SIGKILL)
        specs.job(gpus=1)
        rankfold.until(lambda: devices(rankfold) == 1)
        assert pids(rankfold) == before


def test_proxies_and_ranks_outlive_the_reconciler(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    before = pids(rankfold)
    rankfold("stop")
    assert pids(rankfold) == before, "status needs no reconciler"
    assert rankfold.job("gpt")["phase"] == "Running"
    specs.job(gpus=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert pids(rankfold) == before and devices(rankfold) == 1


def test_a_proxy_that_cannot_start_is_reported_and_does_not_hang(
    rankfold: Rankfold, state: State
) -> None:
    process = rankfold.start(
        "run",
        "--world-size",
        "1",
        "--name",
        "x",
        "--",
        "true",
        RANKFOLD_PROXY="sh -c 'echo no such device >&2'",
    )
    rankfold.until(lambda: "last line of its log: no such device" in rankfold("events"))
    assert not Path(Layout(state.path).logs("x")).exists(), "nothing starts without a device"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=scaled(60))
    assert process.returncode == 130, err


def test_two_who_watch_the_same_do_not_end_each_others_watching(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=1)
    with rankfold.watching(str(specs.folder)):
        with rankfold.watching(str(specs.folder)):
            rankfold.until(lambda: devices(rankfold) == 1)
        assert rankfold.status()["source"]["watched"]
        specs.job(gpus=2)
        rankfold.until(lambda: devices(rankfold) == 2)
    rankfold.until(lambda: not rankfold.status()["source"]["watched"])


def test_stop_cancel_starts_none_of_the_jobs_that_wait(rankfold: Rankfold, specs: Specs) -> None:
    """Each job that is over frees the device that the next one waits for."""
    specs.pool(1)
    ran = rankfold.state.folder / "ran"
    ran.mkdir()
    for number in range(60):
        command = ["sh", "-c", f"touch {ran}/{number}; exec sleep 1000"]
        specs.program(command, f"job-{number}")
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: list(ran.iterdir()))
    rankfold("stop", "--cancel")
    assert len(list(ran.iterdir())) == 1
    assert {job["phase"] for job in rankfold.status()["jobs"]} == {"Failed"}  # cancelled


def test_stop_cancel_starts_none_of_them_where_no_reconciler_runs(
    rankfold: Rankfold, specs: Specs
) -> None:
    """It starts one, for which the device is free, and which need not hear from it again."""
    specs.pool(1)
    ran = rankfold.state.folder / "ran"
    ran.mkdir()
    for number in range(3):
        command = ["sh", "-c", f"touch {ran}/{number}; exec sleep 1000"]
        specs.program(command, f"job-{number}")
    rankfold("apply", "-f", str(specs.folder))
    (first,) = rankfold.until(lambda: list(ran.iterdir()))
    rank = rankfold.job(f"job-{first.name}")["ranks"][0]["pid"]
    for pid in (rankfold.reconciler_pid(), rank):
        os.kill(pid, signal.SIGKILL)
        assert leaks.has_ended(pid, leaks.GRACE_S)
    stop = rankfold.start("stop", "--cancel")
    rankfold.until(lambda: lock_holder(Layout(rankfold.state.path).lock))
    stop.send_signal(signal.SIGSTOP)
    rankfold.until(lambda: all(job["phase"] == "Failed" for job in rankfold.status()["jobs"]))
    stop.send_signal(signal.SIGCONT)
    _, errors = stop.communicate(timeout=scaled(60))
    assert stop.returncode == 0, errors
    assert len(list(ran.iterdir())) == 1


def test_stop_ends_proxies_whose_locks_were_removed(rankfold: Rankfold, specs: Specs) -> None:
    rankfold("apply", "-f", str(specs.folder), "--wait")
    proxies = [rankfold.proxy_pid(f"local/soft-{number}") for number in range(4)]
    shutil.rmtree(rankfold.state.path / "proxies")
    rankfold("stop")
    assert all(leaks.has_ended(pid, scaled(leaks.GRACE_S)) for pid in proxies)


def test_plan_knows_that_a_change_by_hand_lasts(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=2)
    folder = str(specs.folder)
    rankfold("apply", "-f", folder, "--wait")
    rankfold("scale", "gpt", "--gpus", "1", "--override", "--wait")
    assert devices(rankfold) == 1
    told = rankfold("plan", "-f", folder, "--detailed-exitcode")
    assert "Nothing to change." in told and "Job/gpt has drifted: changed by hand" in told
    assert "changed by hand" in rankfold("status")
    specs.job(gpus=3)
    assert "spec.gpus: 1 → 3" in rankfold("plan", "-f", folder, "--detailed-exitcode", code=2)


def test_a_job_whose_file_is_gone_is_not_resumed_by_hand(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    (specs.folder / "gpt.yaml").unlink()
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert "its file was removed" in rankfold("status")
    done = rankfold.run("resume", "gpt", "--override")
    assert done.returncode == 1 and "gpt.yaml no longer names it" in done.stderr


def test_a_missing_working_directory_stalls_the_job_until_the_file_is_right(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=1, extra="workdir: nowhere")
    done = rankfold.run("apply", "-f", str(specs.folder), "--wait")
    assert done.returncode == 1 and "nowhere does not exist" in done.stderr
    job = rankfold.job("gpt")
    assert job["phase"] == "Pending" and job["conditions"][1]["type"] == "Stalled"
    specs.job(gpus=1, extra="workdir: .")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert devices(rankfold) == 1


STATUS_TYPES: dict[str, Any] = {
    "name": str,
    "phase": str,
    "suspendedIn": (str, type(None)),
    "worldSize": int,
    "gpus": int,
    "placement": dict,
    "restarts": int,
    "gpuSeconds": (int, float),
    "checkpoints": list,
    "conditions": list,
}
DEVICE_TYPES: dict[str, Any] = {"name": str, "type": str, "memory": int, "used": int, "ranks": list}


def test_status_and_describe_keep_their_promised_fields(rankfold: Rankfold, specs: Specs) -> None:
    empty = rankfold.status()
    assert (empty["revision"], empty["jobs"], empty["devices"]) == (None, [], [])
    specs.job(gpus=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    data = rankfold.status()
    assert isinstance(data["revision"], str)
    for entries, types in ((data["jobs"], STATUS_TYPES), (data["devices"], DEVICE_TYPES)):
        assert entries
        for entry in entries:
            assert all(isinstance(entry[key], kind) for key, kind in types.items())
    job = data["jobs"][0]
    assert job["placement"] == {str(r): f"local/soft-{r // 2}" for r in range(4)}
    assert all(set(c) == {"type", "status", "reason", "message"} for c in job["conditions"])
    assert data["devices"][0]["ranks"] == ["gpt/0", "gpt/1"]
    text = rankfold("describe", "gpt")
    assert "4 ranks on 2 devices" in text and "devices:      2 of 2 wanted" in text
    assert "['" not in text, "for people, not for Python"
    assert rankfold.run("describe", "nobody").returncode == 1
    assert rankfold.run("events", "nobody").returncode == 1


def test_every_command_explains_itself() -> None:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command
        shown = CliRunner().invoke(cli, [name, "--help"])
        assert shown.exit_code == 0 and command.help
        assert command.help.split(".")[0] in " ".join(shown.output.split())
        for parameter in command.params:
            told = getattr(parameter, "help", None)
            assert told or isinstance(parameter, click.Argument), f"{name} {parameter.name}"


def test_a_real_device_without_a_driver_is_refused_and_not_waited_for(rankfold: Rankfold) -> None:
    run = ["run", "--world-size", "1", "--device", "nvidia", "--", "true"]
    done = rankfold.run(*run, RANKFOLD_CUDA_DRIVER="/nowhere/libcuda.so.1")
    assert done.returncode == 64 and "no NVIDIA driver: /nowhere" in done.stderr


def test_watch_on_a_terminal_keeps_jobs_and_devices_in_view(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=2)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rankfold", "watch", str(specs.folder)],
        env={**rankfold.environment, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    seen = b""
    try:
        while b"4 ranks on 2 devices" not in seen:
            seen += os.read(ours, 1 << 16)
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while rest := os.read(ours, 1 << 16):
                seen += rest
        _, errors = process.communicate()
        os.close(ours)
    assert process.returncode == 0 and b"no longer watching" in errors
    # Bytes: Ctrl-C may cut the drawing anywhere, in the middle of a character too.
    assert b"RevisionAccepted" in seen and b"local/soft-0" in seen
    assert not re.search(rb"\x1b\[[34]\d", seen), "NO_COLOR: no colours"

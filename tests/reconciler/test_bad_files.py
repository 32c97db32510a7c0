"""Whatever a source holds, reading and accepting it ends nothing: it is an error of that file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankfold.legible import json_text, legible, name
from rankfold.reconciler.source import spec, yamldoc
from support.command import JOB, POOL, Rankfold, Specs

NOT_UTF8 = os.fsdecode(b"caf\xe9.yaml")
ESC = "\x1b]0;owned\x07.yaml"


def source_condition(rankfold: Rankfold) -> Any:
    return (rankfold.status()["source"]["conditions"] or [{}])[0]


def job(gpus: str = "1", extra: str = "") -> str:
    return JOB.format(name="big", command='["true"]', ranks=1, gpus=gpus, extra=extra)


# ---- names -------------------------------------------------------------------------------------


def test_terminal_escapes_are_shown_and_names_stay_distinct() -> None:
    assert legible("a\x1b[2J\tb\nc\x9b\x7f\r\u202e\udce9") == (
        "a\\x1b[2J\tb\nc\\x9b\\x7f\\x0d\\u202e\\xe9"
    )
    assert name("a\x1b\n") == "a\\x1b\\x0a" != name("a\\x1b\\x0a")
    text = json.dumps({"a": "\x9b\x7f\u202e\udce9é"}, ensure_ascii=False)
    assert json.loads(json_text(text)) == json.loads(text)
    assert json_text(text).isprintable()


def test_a_file_whose_name_is_not_utf8_is_refused_and_ends_nothing(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=2)
    bad = specs.folder / NOT_UTF8
    path = f"{specs.folder}/caf\\xe9.yaml"
    told = f"{path}:1: -: its path {path} is not UTF-8: rename it"
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: rankfold.job("gpt").get("devices") == 2)
        pid = rankfold.reconciler_pid()
        bad.write_text(POOL.replace("local", "more"))
        rankfold.until(lambda: source_condition(rankfold)["reason"] == "RevisionRefused")
        assert source_condition(rankfold)["message"] == told
        assert told in rankfold("events")
        checked = rankfold.run("validate", str(specs.folder))
        assert (checked.returncode, checked.stderr) == (65, told + "\n")
        rankfold("scale", "gpt", "--gpus", "1", "--override")
        rankfold.until(lambda: rankfold.job("gpt")["devices"] == 1)
        bad.rename(specs.folder / "more.yaml")
        rankfold.until(lambda: len(rankfold.status()["devices"]) == 8)
        assert rankfold.reconciler_pid() == pid, "it is the same one"


def test_a_path_that_is_not_utf8_is_refused_wherever_a_command_gets_it(
    rankfold: Rankfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"d\xe9")
    folder.mkdir()
    (folder / "gpt.yaml").write_text(job())
    monkeypatch.chdir(folder)
    checked = rankfold.run("validate", ".")
    assert checked.returncode == 65
    assert checked.stderr.endswith("d\\xe9/gpt.yaml is not UTF-8: rename it\n")
    started = ("run", "--world-size", "1", "--", "/bin/echo")
    for place, arguments, environment, named in (
        (folder, started, {}, rf"the working directory b'{tmp_path}/d\xe9' is not UTF-8"),
        (tmp_path, (*started, os.fsdecode(b"\xe9")), {}, r"the argument b'\xe9' is not UTF-8"),
        (tmp_path, ("--state", str(folder), "status"), {}, r"d\xe9' is not UTF-8: choose another"),
        (
            tmp_path,
            ("status",),
            {"RANKFOLD_CACHE": str(folder)},
            rf"RANKFOLD_CACHE=b'{tmp_path}/d\xe9'",
        ),
    ):
        monkeypatch.chdir(place)
        refused = rankfold.run(*arguments, **environment)
        assert (refused.returncode, named in refused.stderr) == (64, True), refused.stderr


def test_no_file_name_steers_the_terminal(rankfold: Rankfold, specs: Specs) -> None:
    """The name appears in a fault, an event, JSON, and an object's origin."""
    (specs.folder / ESC).write_text("kind: Jib\n")
    shown = [rankfold.run("validate", str(specs.folder))]
    assert shown[0].returncode == 65 and "\\x1b]0;owned\\x07.yaml:1: kind" in shown[0].stderr
    (specs.folder / ESC).write_text(job())
    rankfold("apply", "-f", str(specs.folder))
    folder = specs.folder / "\x1b[31m"
    folder.mkdir()
    (folder / "x.yaml").write_text("a: [")
    shown += [rankfold.run("apply", "-f", str(specs.folder))]
    for command in ("status", "describe big", "events", "plan -f " + str(specs.folder)):
        shown += [rankfold.run(*command.split())]
        shown += [rankfold.run(*command.split(), "-o", "json")]
    shown += [rankfold.run("describe", "\x1b[2J"), rankfold.run("\x1b[2J")]
    assert [done.returncode for done in shown[-2:]] == [1, 64]
    for done in shown:
        text = (done.stdout + done.stderr).replace("\n", "").replace("\t", "")
        assert text.isprintable(), repr(text)
    assert "\\x1b]0;owned\\x07.yaml" in shown[4].stdout, "where the job is described"


# ---- what is in them ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        job("0x" + "f" * 5000),
        job(extra="checkpoint: {everySteps: 1.0e+30}"),
        job(extra="restart: {maxRestarts: 99999999999999999999}"),
    ],
    ids=["digits", "float", "int"],
)
def test_a_number_that_nothing_can_hold_is_a_fault_of_its_file(
    rankfold: Rankfold, specs: Specs, text: str
) -> None:
    specs.write("big.yaml", text)
    done = rankfold.run("validate", str(specs.folder))
    assert done.returncode == 65 and "Traceback" not in done.stderr
    assert f"{specs.folder}/big.yaml:" in done.stderr
    done = rankfold.run("apply", "-f", str(specs.folder))
    assert done.returncode == 65 and f"{specs.folder}/big.yaml:" in done.stderr


def test_a_fault_of_ours_is_one_of_that_file_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = yamldoc.parse

    def parse(text: str, **more: Any) -> Any:
        if "Pool" in text:
            raise ZeroDivisionError("secret")
        return real(text, **more)

    monkeypatch.setattr(yamldoc, "parse", parse)
    loaded = spec.load_texts({"a.yaml": POOL, "b.yaml": job("many")}, {"b.yaml": "/"})
    faults = [str(fault) for fault in loaded.faults]
    assert faults[0].startswith("a.yaml:1: -: cannot be read: an internal error of rankfold")
    assert "ZeroDivisionError" in faults[0] and "secret" not in faults[0]
    assert faults[1].startswith("b.yaml:7: spec.gpus:")
    assert [type(each) for each in loaded.failures] == [ZeroDivisionError]


RAISING = """
import sys
from rankfold.reconciler import daemon
from rankfold.reconciler.journal.journal import Journal
put = Journal.put
def raising(self, spec, *more):
    changed = put(self, spec, *more)
    if spec.name == "bad":
        raise ZeroDivisionError("secret")
    return changed
Journal.put = raising
sys.exit(daemon.main(sys.argv[1:]))
"""


def test_whatever_accepting_raises_refuses_the_revision_and_the_loop_continues(
    rankfold: Rankfold, specs: Specs, tmp_path: Path
) -> None:
    specs.job(gpus=2)
    program = tmp_path / "raising.py"
    program.write_text(RAISING)
    reconciler = subprocess.Popen(
        [sys.executable, str(program), "--state", str(rankfold.state.path)],
        env={**rankfold.environment, "RANKFOLD_LINGER": "60"},
        stderr=subprocess.DEVNULL,
    )
    rankfold.until(rankfold.reconciler_pid)
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: rankfold.job("gpt").get("devices") == 2)
        specs.job("bad", gpus=1, ranks=1)
        rankfold.until(lambda: source_condition(rankfold)["reason"] == "RevisionRefused")
        message = source_condition(rankfold)["message"]
        assert message.startswith(f"{specs.folder}/bad.yaml:3: -: accepting it failed")
        assert "ZeroDivisionError" in message
        assert "secret" not in message and rankfold.job("bad") == {}, "nothing of it is accepted"
        refused = rankfold.run("apply", "-f", str(specs.folder))
        assert refused.returncode == 65 and "accepting it failed" in refused.stderr
        (specs.folder / "bad.yaml").unlink()
        specs.job(gpus=1)
        rankfold.until(lambda: rankfold.job("gpt")["devices"] == 1)
        assert rankfold.reconciler_pid() == reconciler.pid
    specs.finish_jobs()
    rankfold("stop", "--cancel")
    assert reconciler.wait(60) == 0

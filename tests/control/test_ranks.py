"""A rank cannot reach rankfold: with namespaces, and without any privilege."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest

from rankfold.reconciler.layout import Layout
from support import privileges
from support.command import Specs
from support.leaks import State

from .conftest import Commands

ROGUE = Path(__file__).parent / "rogue.py"
UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.mark.parametrize("prefix", [(), UNPRIVILEGED], ids=["privileged", "unprivileged"])
def test_a_rank_gets_nowhere_while_another_job_continues(
    commands: Commands, specs: Specs, state: State, prefix: tuple[str, ...]
) -> None:
    if not prefix:
        privileges.need_namespaces()
    elif not shutil.which(prefix[0]):
        privileges.missing("needs setpriv (util-linux)")
    rankfold, layout = commands(*prefix), Layout(state.path)
    plan, results = specs.folder / "plan.json", specs.folder / "results"
    specs.job("victim", gpus=1, ranks=1)
    of_victim = {"job": "victim", "epoch": 1}
    override = {"name": "victim", "fields": {"cancelled": True}, "force": True}
    kill = {"op": "signal", "signum": int(signal.SIGKILL)}
    sockets = {
        str(layout.socket): {"op": "override", **override},
        str(layout.launcher_socket("victim", 0)): kill,
        str(layout.launcher_socket("rogue", 0)): kill,
    }
    for device in range(4):
        path = str(layout.proxy_socket(f"local/soft-{device}"))
        sockets[path] = {"op": "detach", **of_victim, "discard": True}
    command = [
        "env",
        f"RANKFOLD_RUNTIME={state.runtime}",
        sys.executable,
        "-m",
        "rankfold",
        "--state",
        str(state.path),
        "cancel",
        "victim",
        "--override",
    ]
    plan.write_text(
        json.dumps(
            {
                "sockets": sockets,
                "door": str(layout.client_socket("victim", 0)),
                "command": command,
                "hidden": [] if prefix else [str(state.path), str(layout.sockets)],
            }
        )
    )

    rankfold("apply", "-f", str(specs.folder), "--wait")
    before = rankfold.reconciler_pid()
    rankfold.until(lambda: rankfold.job("victim").get("phase") == "Running")
    specs.program([sys.executable, str(ROGUE), str(plan), str(results)], "rogue")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    rankfold.until(lambda: rankfold.job("rogue").get("phase") == "Succeeded")
    tried = [json.loads(line) for line in results.read_text().splitlines()]
    assert {who for who, _, _ in tried} == {"rank", "child", "orphan", "unlimited"}
    assert [each for each in tried if not each[2].startswith("refused")] == []
    # Also where nothing hides the sockets: it was the servers that refused.
    met = {what: how for who, what, how in tried if who == "unlimited"}
    assert {met[path] for path in sockets} == {"refused: denied"}
    assert rankfold.reconciler_pid() == before
    assert rankfold.job("victim")["phase"] == "Running"
    specs.finish_jobs()
    rankfold.until(lambda: rankfold.job("victim")["phase"] == "Succeeded")

"""A rank that is, or becomes, another user than the one that runs rankfold."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from cuda import PROGRAMS, build

from support import privileges
from support.command import Rankfold, Specs

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
PROGRAM = "./other_user"
# Ways to run a program as another user, and the user that the program prints.
WAYS = {
    "drops-before": ((PROGRAM, "before"), "nobody"),
    "drops-after": ((PROGRAM, "after"), "nobody"),
    "setpriv": ((*NOBODY, PROGRAM), "nobody"),
    "su": (("su", "nobody", "-s", "/bin/sh", "-c", PROGRAM), "nobody"),
    "container": (("unshare", "--user", "--map-root-user", PROGRAM), "root"),
    "container-of-a-user": ((*NOBODY, "unshare", "--user", "--map-root-user", PROGRAM), "root"),
    "container-with-pids": (
        ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount", PROGRAM),
        "root",
    ),
}


class Service:
    """A job of two ranks on one device, in a folder that every user may read."""

    def __init__(self, rankfold: Rankfold, way: str):
        self.rankfold, self.name = rankfold, way
        self.command, self.user = WAYS[way]
        self.folder = rankfold.state.folder / way
        self.folder.mkdir()
        shutil.copy(build(PROGRAMS / "other_user.cu"), self.folder / PROGRAM)
        for path in (self.folder, self.folder / PROGRAM):
            path.chmod(0o755)

    @property
    def outputs(self) -> list[str]:
        logs = self.rankfold.state.path / "jobs" / self.name / "logs"
        files = [logs / f"rank-{rank}.out" for rank in range(2)]
        return [file.read_text() if file.exists() else "" for file in files]

    def is_ready(self) -> bool:
        assert self.rankfold.job(self.name).get("phase") != "Failed", self.rankfold.job(self.name)
        return self.outputs == ["ready\n"] * 2

    def is_stored(self) -> bool:
        return bool(self.rankfold.job(self.name)["suspendedIn"] == "store")

    def computes(self) -> None:
        """Both ranks get the word to continue, and end as they should."""
        (self.folder / "go").touch()
        self.rankfold.until(lambda: self.rankfold.job(self.name)["phase"] != "Running")
        assert self.rankfold.job(self.name)["phase"] == "Succeeded", self.rankfold.job(self.name)
        assert self.outputs == [
            f"ready\nrank {rank} computed {4 * (63 + rank)} as user {self.user}\n"
            for rank in range(2)
        ]


@pytest.fixture
def start(rankfold: Rankfold) -> Callable[..., list[Service]]:
    """Starts a service for each way, and waits until all of them have computed once."""
    privileges.need_namespaces()
    if os.getuid() != 0:
        privileges.missing("needs root, to become another user")

    def start_all(*ways: str) -> list[Service]:
        specs = Specs(rankfold.state.folder / "specs")
        specs.pool(len(ways))
        services = [Service(rankfold, way) for way in ways]
        for each in services:
            specs.program(list(each.command), each.name, 1, f"workdir: {each.folder}", 2)
        rankfold("apply", "-f", str(specs.folder))
        rankfold.until(lambda: all(each.is_ready() for each in services))
        return services

    return start_all


@pytest.mark.slow
def test_ranks_of_another_user_share_a_device(start: Callable[..., list[Service]]) -> None:
    for service in start(*WAYS):
        service.computes()


@pytest.mark.slow
def test_ranks_of_another_user_are_saved_and_come_back(
    rankfold: Rankfold, start: Callable[..., list[Service]]
) -> None:
    """Ranks of another user are saved, or the condition says why CRIU cannot read them."""
    privileges.need_criu()
    services = start("drops-before", "drops-after", "setpriv", "su")
    for service in services:
        done = rankfold.run("checkpoint", service.name, "--wait")
        if privileges.may_read_limits():
            assert done.returncode == 0, done.stderr
            rankfold("suspend", service.name, "--store", "--override")
        else:
            assert done.returncode == 1
            assert "belongs to another user" in done.stderr and "CAP_SYS_RESOURCE" in done.stderr
    for service in services if privileges.may_read_limits() else ():
        rankfold.until(service.is_stored)
        rankfold("resume", service.name, "--override")
    for service in services:
        service.computes()
        assert rankfold.job(service.name)["restarts"] == 0


def test_a_rank_in_a_container_of_its_own_says_why_it_is_not_saved(
    rankfold: Rankfold, start: Callable[..., list[Service]]
) -> None:
    privileges.need_criu()
    (service,) = start("container")
    done = rankfold.run("checkpoint", service.name, "--wait")
    assert done.returncode == 1
    assert "has a user namespace of its own: run it without its sandbox" in done.stderr
    service.computes()

"""A rank whose command is a sandbox: its first process has namespaces that we did not give it."""

from __future__ import annotations

import sys

import pytest

from support import privileges
from support.leaks import State

from .test_rest import PROGRAM, Place, moved, refusal


@pytest.fixture
def place(state: State) -> Place:
    privileges.need_criu()
    return Place(state.folder)


@pytest.mark.parametrize(
    ("option", "name"),
    [("--net", "net"), ("--mount", "mnt"), ("--cgroup", "cgroup"), ("--map-root-user", "user")],
)
def test_unsaveable_namespaces_are_named(place: Place, option: str, name: str) -> None:
    launched = place.launch(
        "unshare", option, sys.executable, str(PROGRAM), "count", str(place.work)
    )
    said = f"process 1000 (python) has a {name} namespace of its own: run it without"
    with launched.client() as client:
        (hindrance,) = client.request("examine")[0]["hindrances"]
        assert hindrance.startswith(said)
        client.request("freeze")
        error = refusal(client, "snapshot", folder=str(place.saved))
        assert error.code == "undumpable" and said in error.message
        client.request("thaw")
    place.go()
    assert launched.end()["exit_status"] == 0


# It must not name this machine.
NAMED = """\
[ "$(readlink /proc/self/ns/uts)" != "$(readlink /proc/1/ns/uts)" ]
hostname elsewhere
touch ready
until [ -e go ]; do sleep 0.05; done
hostname
"""


def test_a_host_name_of_its_own_is_saved_with_it(place: Place) -> None:
    launched = place.launch("unshare", "--uts", "--ipc", "sh", "-ec", NAMED)
    fresh = moved(place, launched)
    with fresh.client() as client:
        assert client.request("examine")[0]["hindrances"] == []
    place.go()
    assert fresh.end()["exit_status"] == 0
    assert fresh.text("out") == "elsewhere\n"

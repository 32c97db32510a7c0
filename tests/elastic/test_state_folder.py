"""A launcher whose rank keeps its state in files saves and restores it without CRIU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from launcher.conftest import Launched, Rig

from rankfold.control import ControlError
from support import leaks
from support.leaks import State
from support.patience import Pauses, scaled

STATE = {"rank-0.pt": b"zero", "rank-1.pt": b"one", "shared.pt": b"all", "threads": b"1"}
STATE["gradients-1.pt"] = b"gradients"
# Says which states it has found, and ignores what ends it politely.
COMMAND = ("sh", "-c", 'trap "" TERM; ls states 2>/dev/null; echo begun; exec sleep 1000')


@pytest.fixture
def rig(state: State) -> Rig:
    return Rig(state.folder, "none")


def launch(rig: Rig, rank: int, incarnation: int = 1) -> Launched:
    folder = rig.folder / f"elastic-{incarnation}"
    folder.mkdir(exist_ok=True)
    place = {"workdir": str(folder), "state_folder": str(folder), "incarnation": incarnation}
    return rig.launch(*COMMAND, rank=rank, **place)


def request(launched: Launched, name: str, **fields: Any) -> Any:
    if name != "hello":
        fields["incarnation"] = launched.config["incarnation"]
    with launched.client() as client:
        return client.request(name, **fields)[0]


def refused(launched: Launched, name: str, **fields: Any) -> str:
    with pytest.raises(ControlError) as found:
        request(launched, name, **fields)
    return found.value.code


def write_state(folder: Path, step: int) -> None:
    state = folder / f"states/step-{step}"
    state.mkdir(parents=True)
    for name, content in STATE.items():
        (state / name).write_bytes(content)


def until_begun(launched: Launched, times: int = 1) -> None:
    pauses = Pauses(0.01, 0.05)
    for _ in range(int(scaled(500))):
        if launched.text("out").count("begun") == times:
            return
        pauses.sleep()
    raise AssertionError(f"it did not begin: {launched.text('out')}")


def end(launched: Launched) -> None:
    if request(launched, "hello")["pid"] is not None:
        request(launched, "vacate")
    request(launched, "end")
    assert leaks.has_ended(launched.pid, 20)


def save(launched: Launched, folder: Path) -> None:
    assert refused(launched, "snapshot", folder=str(folder)) == "running"
    request(launched, "freeze")
    request(launched, "snapshot", folder=str(folder))


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_a_snapshot_has_the_newest_state_of_its_rank(rig: Rig, rank: int) -> None:
    launched = launch(rig, rank)
    until_begun(launched)
    for step in (9, 10):  # the older one is there when a run was killed while it saved
        write_state(rig.folder / "elastic-1", step)
    (rig.folder / "elastic-1/states/unfinished-11").mkdir()
    saved = rig.folder / "saved"
    save(launched, saved)
    names = ("rank-0.pt", "shared.pt", "threads") if rank == 0 else ("gradients-1.pt", "rank-1.pt")
    assert files(saved / "state") == {f"step-10/{name}": STATE[name] for name in names}
    request(launched, "thaw")
    assert refused(launched, "snapshot", folder=str(saved)) == "running"
    end(launched)


def test_a_restored_rank_begins_again_with_the_saved_state(rig: Rig) -> None:
    """Its logs are as long as they were. Nothing of an earlier incarnation is left."""
    launched = launch(rig, 0)
    until_begun(launched)
    write_state(rig.folder / "elastic-1", 7)
    saved, log = rig.folder / "saved", rig.folder / "logs/rank-0.out"
    save(launched, saved)
    with log.open("a") as more:
        more.write("since then\n")
    assert refused(launched, "restore", folder=str(saved)) == "busy"
    request(launched, "vacate")
    request(launched, "vacate")
    assert request(launched, "hello")["pid"] is None
    end(launched)
    again = launch(rig, 0, incarnation=2)
    until_begun(again, 2)
    request(again, "vacate")
    assert refused(again, "restore", folder=str(rig.folder / "none")) == "snapshot"
    request(again, "restore", folder=str(saved))
    request(again, "restore", folder=str(saved))
    until_begun(again, 2)
    assert log.read_text() == "begun\nstep-7\nbegun\n"
    own = rig.folder / "elastic-2/states/step-7"
    assert files(own) == {name: STATE[name] for name in files(own)}
    assert set(files(own)) == set(STATE) - {"rank-1.pt", "gradients-1.pt"}
    assert os.stat(own / "rank-0.pt").st_ino != os.stat(saved / "state/step-7/rank-0.pt").st_ino
    assert not (rig.folder / "elastic-1").exists()
    end(again)


def test_a_snapshot_of_another_rank_is_refused(rig: Rig) -> None:
    launched, other = launch(rig, 0), launch(rig, 1)
    until_begun(launched)
    save(launched, rig.folder / "saved")
    request(other, "vacate")
    assert refused(other, "restore", folder=str(rig.folder / "saved")) == "snapshot"
    end(launched)
    end(other)

"""Files that have lost the name by which a rank opened them, and have another: as others, they are
saved with it and come back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .test_rest import Place, kill, place, restore, save

__all__ = ["place"]

PROGRAM = Path(__file__).with_name("multiprocessing_program.py")
SHARED_MEMORY = Path("/dev/shm")


def of_rank(place: Place) -> list[Path]:
    """The paths in shared memory that the snapshot contains."""
    found = json.loads((place.saved / "files.json").read_text())["entries"]
    return [path for each in found if (path := Path(each["path"])).parent == SHARED_MEMORY]


def lost(place: Place) -> list[Path]:
    return [Path(each) for each in json.loads((place.saved / "about.json").read_text())["lost"]]


@pytest.mark.usual("spawn-here")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "where nothing of it is"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_memory_shared_without_fork_is_restored(place: Place, method: str, elsewhere: bool) -> None:
    """Locks that are held, semaphores, queues and pools of Python's multiprocessing; saved twice,
    the second time when it has been restored."""
    launched = place.launch(sys.executable, str(PROGRAM), method, str(place.work))
    for _ in range(2):
        with launched.client() as client:
            assert client.request("examine")[0]["hindrances"] == []
        save(launched, place.saved)
        assert lost(place) and set(lost(place)) < set(of_rank(place))
        assert not any(path.exists() for path in lost(place)), "only while it is saved"
        kill(launched)
        if elsewhere:
            for path in of_rank(place):
                path.unlink(missing_ok=True)
        launched = place.empty()
        restore(launched, place.saved)
        assert not any(path.exists() for path in lost(place)), "only until it is restored"
    place.go()
    assert launched.end()["exit_status"] == 0
    assert launched.text("out") == "[16, 25, 36, 49]\n[-1, 2, 3]\n2 0\n"
    assert not any(path.exists() for path in of_rank(place))


def test_ranks_that_have_such_files_are_saved_at_one_time(place: Place) -> None:
    """CRIU gives the files of each the same names, in one folder."""
    ranks = []
    for rank in range(2):
        (place.work / "ready").unlink(missing_ok=True)
        argv = (sys.executable, str(PROGRAM), "spawn", str(place.work))
        ranks.append(place.launch(*argv, rank=rank))
    folders = [place.saved / f"rank-{rank}" for rank in range(2)]
    with ranks[0].client() as first, ranks[1].client() as second:
        for client in (first, second):
            client.request("freeze")
        for client, folder in zip((first, second), folders, strict=True):
            client.channel.send({"id": 7, "op": "snapshot", "folder": str(folder)})
        for client in (first, second):
            while (frame := client.channel.take()) is None:
                assert client.channel.fill()
            assert frame.head.ok, frame.head.error
            frame.close()
            client.request("thaw")
    place.go()
    for launched in ranks:
        assert launched.end()["exit_status"] == 0
        assert launched.text("out").endswith("[-1, 2, 3]\n2 0\n")

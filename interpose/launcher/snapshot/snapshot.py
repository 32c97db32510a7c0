"""A snapshot: a folder with what a rank is, written while it stands still.

``about.json`` written last: see About. ``criu/`` the images of its processes as CRIU wrote them,
but for `images.mend` and `descriptors.mend`. ``image`` the launcher's image of its device memory,
sparse; only if the rank has a channel. (The channel itself is among the processes' memory.) If the
job stays on its devices, what several ranks hold lies in the image of one of them, and the image
may come after all else, while the rank goes on: until then it is ``image.part``. Of a snapshot that
was fetched ``image.elsewhere`` says what lies in those of other ranks. Its files: see saving.py.

Writing and reading it takes seconds for gigabytes: the launcher does it in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rankfold import records
from rankfold.image import Malformed, noted, own, state_range
from rankfold.interpose.launcher.criu import command, descriptors, images, settings, sockets
from rankfold.interpose.launcher.files import restoring, saving, sparse, unlinked
from rankfold.interpose.launcher.files.previous import Kept
from rankfold.interpose.launcher.files.tracker import Touched
from rankfold.interpose.launcher.snapshot import channel, copy_on_write
from rankfold.plural import count

VERSION = 1
_ABOUT, _IMAGES, _IMAGE = "about.json", "criu", "image"
_PART, _LOST = "image.part", "image.lost"  # what is copied of it, or why it could not be
_PIDS = 64  # that CRIU may need for its own processes
_FIRST_PID = 300  # the kernel gives no lower one twice


class Unfit(Exception):
    """The snapshot cannot be restored here; the message says what does not fit."""


@dataclass(frozen=True)
class About:
    """What a snapshot says of itself. `pid`: of the rank's first process, inside. `interposer`: the
    digest of its libraries, null if it preloads none. `channel`: its owner's pid, and where that
    has it mapped. `connections`: of TCP, as in `sockets.Connection`. `addresses`: as
    `sockets.addresses` gives them. `logs`: bytes of ``out`` and ``err``. `lost`: names that files
    had only meanwhile (unlinked.py). `journal`: its path, and its life (journal.py). `semaphores`:
    for `descriptors.opened`. `personality`: of all its processes. `state`: version of what its
    proxies have saved, 0: nothing; who does not say has 9. `boot`: of the machine when it was
    written: what was not synced since may be lost when that is over."""

    job: str
    rank: int
    world_size: int
    incarnation: int
    pid: int
    interposer: str | None
    image_bytes: int
    logs: dict[str, int]
    channel: dict[str, Any] | None
    connections: list[list[Any]]
    addresses: dict[str, str] = field(default_factory=dict)
    journal: tuple[str, str] = ("", "")
    lost: tuple[str, ...] = ()
    settings: tuple[settings.Setting, ...] = ()
    personality: int = 0
    semaphores: tuple[descriptors.Semaphore, ...] = ()
    state: int = 9
    kernel: str = platform.release()
    boot: str = field(default_factory=saving.boot_id)
    version: int = VERSION

    @property
    def has_channel(self) -> bool:
        return self.channel is not None


def write(
    folder: str, about: About, pids: set[int], cgroup: str, touched: Touched, memory: int | None,
    image: int, beside: bool = False,
) -> int:  # fmt: skip
    """Into `folder`, made anew: the rank that is frozen in `cgroup`. How many bytes it takes.

    `pids`: all of the rank. `memory`: the channel. `beside`: its image is copied later, where that
    can be, by `copy_held`. Raises criu.Refused, criu.Killed, rankfold.criu.Missing, OSError.
    """
    beside = beside and copy_on_write.possible(image)
    place = Path(folder)
    shutil.rmtree(place, ignore_errors=True)
    processes = place / _IMAGES
    processes.mkdir(parents=True, mode=0o700)
    if memory is not None:
        channel.punch(memory)
    with unlinked.found_again(pids) as names:
        opened = saving.Opened(pids, touched.is_ours, names)
        personality = settings.personality(about.pid)
        about = replace(about, settings=settings.taken(pids), personality=personality)
        descriptors.settle(pids)
        semaphores = descriptors.semaphores(pids)
        dumping = command.dump(about.pid, processes, cgroup)
        try:
            if touched.seen:
                saving.take(place, touched.names, opened, Kept(touched.kept))
            if memory is not None and not beside:
                sparse.copy_out(image, place / _IMAGE, [*own(image), state_range(image)])
        finally:
            command.finish(dumping, processes)
    images.mend(processes)
    made = descriptors.mend(processes, semaphores)
    about = replace(about, lost=tuple(sorted(names)), semaphores=made)
    if memory is not None and beside:
        sparse.copy_out(image, place / _PART, [state_range(image)])
    fresh = place / f"{_ABOUT}.new"
    fresh.write_text(json.dumps(asdict(about) | {"has_channel": about.has_channel}, indent=1))
    fresh.rename(place / _ABOUT)
    written = sum(path.lstat().st_blocks * 512 for path in place.rglob("*"))
    if memory is not None and beside:
        written += sparse.size(image, own(image))
        with contextlib.closing(copy_on_write.Hold(image)) as hold:
            hold.begin()  # what follows is up to who calls
    return written


def waits_for_image(folder: str) -> bool:
    """Whether that of the snapshot is still to be copied."""
    return Path(folder, _PART).exists()


def copy_held(folder: str, image: int) -> None:
    """What `write` has left for later. Raises OSError, and says it to who wants the snapshot."""
    part = Path(folder, _PART)
    with contextlib.closing(copy_on_write.Hold(image)) as hold:
        try:
            with part.open("r+b") as file:
                hold.copy(file.fileno(), own(file.fileno()))
            part.rename(part.with_name(_IMAGE))
        except OSError as error:
            part.unlink(missing_ok=True)  # that there is room for the reason
            part.with_name(_LOST).write_text(str(error))
            raise
        finally:
            hold.end()


def release(image: int) -> None:
    """It is not copied after all. Raises OSError."""
    with contextlib.closing(copy_on_write.Hold(image)) as hold:
        hold.end()


def read(folder: str) -> About:
    """Raises Unfit."""
    path = Path(folder, _ABOUT)
    try:
        found = json.loads(path.read_text())
        if found.get("version") != VERSION:
            raise Unfit(f"{path} has format {found.get('version')}, not {VERSION}")
        del found["has_channel"]
        return About(**found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unfit(f"{path} cannot be read: {error}") from error


def beside(folder: str) -> list[About]:
    """What the snapshots of all ranks say that lie beside this one, and itself. Raises Unfit."""
    return [read(str(path.parent)) for path in Path(folder).parent.glob(f"*/{_ABOUT}")]


def compare(about: About, rank: int, world_size: int, image_bytes: int) -> None:
    """Raises Unfit unless the snapshot is of this rank."""
    if (about.rank, about.world_size) != (rank, world_size):
        raise Unfit(
            f"the snapshot is of rank {about.rank} of {about.world_size}, "
            f"not of {rank} of {world_size}"
        )
    if about.image_bytes != image_bytes:
        raise Unfit(f"its image has {count(about.image_bytes, 'byte')}, not {image_bytes}")
    version = records.saved().constants["STATE_VERSION"]
    if about.has_channel and about.state not in (0, version):
        raise Unfit(
            f"what rank {about.rank} has on its device was saved as version {about.state} of that, "
            f"here it is {version}: restore it with the rankfold that saved it"
        )


def compare_here(folder: str, about: About) -> saving.Files | None:
    """Compare processors, network addresses, and what the rank reads; what the snapshot says of
    files. Raises Unfit, rankfold.criu.Missing, OSError."""
    for address in sockets.absent(about.addresses):
        raise Unfit(
            f"it has {about.addresses[address]}, and this machine does not have the address "
            f"{address}: restore it on the machine that has it, or add the address to this one. "
            "Ranks that talk to each other over 127.0.0.1 can be restored anywhere"
        )
    try:
        command.compare_cpu(Path(folder, _IMAGES))
        found = saving.read(folder)
        if found:
            restoring.compare(found)
    except (command.Refused, saving.Differs) as error:
        raise Unfit(str(error)) from error
    return found


def prepare(folder: str, about: About, own: Path, image: int) -> tuple[int, restoring.Amiss]:
    """Compare what is here, then set the rank's files back and fill the image: `own` is its journal
    here. A pid behind which CRIU may have its own processes, and what is amiss with the files.

    Raises Unfit, rankfold.criu.Missing, OSError.
    """
    found = compare_here(folder, about)
    processes = Path(folder, _IMAGES)
    taken = images.threads(processes)
    if not taken:
        raise Unfit(f"{processes} holds no processes")
    amiss = restoring.Amiss([], [])
    try:
        if found:
            journals = _journals(folder, own)
            amiss = restoring.put(Path(folder), found, about.journal[1], own, journals)
        else:
            own.unlink(missing_ok=True)
    except saving.Differs as differs:
        raise Unfit(str(differs)) from differs
    source = Path(folder, _IMAGE)
    if source.exists():
        fill(source, image)
    elif about.has_channel:
        raise Unfit(f"{folder} has no image: it is no whole snapshot")
    return _gap(taken), amiss


def _journals(folder: str, own: Path) -> list[tuple[Path, str]]:
    """Where those of all ranks beside this one may lie, and the life of each. Raises Unfit."""
    found = dict[Path, str]()
    for about in beside(folder):
        path, life = about.journal
        if life:
            found[Path(path)] = found[own.with_name(f"rank-{about.rank}.files")] = life
    return list(found.items())


def opened_images(folder: str) -> int:
    """The folder of the processes' images. Raises OSError."""
    return os.open(Path(folder, _IMAGES), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def why_not(folder: str) -> str:
    """Why CRIU did not restore it."""
    return command.reason(Path(folder, _IMAGES, "restore.log"), alive=False)


def _gap(taken: set[int]) -> int:
    """The last pid before `_PIDS` that nobody of the rank has."""
    last = _FIRST_PID - 1
    for pid in sorted(pid for pid in taken if pid > last):
        if pid - last > _PIDS:
            break
        last = pid
    return last


def fill(source: Path, target: int) -> None:
    """An image that is empty, with a snapshot's and what of it lies in those beside it. Raises
    Unfit, OSError."""
    size = os.fstat(target).st_size
    try:
        elsewhere = noted(source)
        with _opened(source, size) as file:
            sparse.copy(file, target)
        for rank in {each.rank for each in elsewhere}:
            other = source.parent.with_name(f"rank-{rank}") / _IMAGE
            with _opened(other, size) as file:
                for each in elsewhere:
                    if each.rank == rank:
                        sparse.copy(file, target, each.begin, each.end)
    except Malformed as error:
        raise Unfit(f"{source} {error}") from error


@contextlib.contextmanager
def _opened(image: Path, size: int) -> Iterator[int]:
    """Raises Unfit if it has not this size, OSError."""
    with image.open("rb") as file:
        if os.fstat(file.fileno()).st_size != size:
            raise Unfit(f"{image} has {count(os.fstat(file.fileno()).st_size, 'byte')}, not {size}")
        yield file.fileno()


def cut(log: Callable[[str], str], sizes: Mapping[str, int]) -> None:
    """Shorten a rank's logs to their sizes at the time of the snapshot; shorter ones stay.

    `log` gives the path of each kind. ``cut``, written first, holds the sizes: by it those who
    follow a log tell this from a log that somebody emptied.
    """
    longer = {}
    for kind, size in sizes.items():
        with contextlib.suppress(FileNotFoundError):
            if os.stat(log(kind)).st_size > size:
                longer[kind] = size
    if not longer:
        return
    with contextlib.suppress(OSError):  # a full disk: they print twice, and the rank is restored
        note = Path(log("cut.new"))
        note.write_text(json.dumps(longer))
        note.rename(log("cut"))
    for kind, size in longer.items():
        os.truncate(log(kind), size)

"""A snapshot: a folder with the state of a rank, written while the rank is frozen.

``about.json``      see `About`; written last
``criu/``           the images of its processes as CRIU wrote them, changed only by `images.repair`
                    and `descriptors.repair`. The channel is part of the processes' memory
``image``           the launcher's image of its device memory, sparse; only if the rank has a
                    channel
``image.part``      the image until it is complete
``image.elsewhere`` in a fetched snapshot: which parts are in the images of other ranks

If the job stays on its devices, memory that several ranks share is in the image of one of them, and
the image may be completed after everything else, while the rank runs. saving.py describes the
rank's files in the snapshot.

Writing and reading gigabytes takes seconds: the launcher does it in a process of its own.
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
from rankfold.image import Malformed, noted, own_ranges, state_range
from rankfold.interpose.launcher.criu import (
    command,
    descriptors,
    images,
    inherited,
    multicast,
    settings,
    sockets,
    undumpable,
)
from rankfold.interpose.launcher.files import restoring, saving, sparse, unlinked
from rankfold.interpose.launcher.files.previous import Previous
from rankfold.interpose.launcher.files.tracker import Tracker
from rankfold.interpose.launcher.snapshot import channel, copy_on_write
from rankfold.plural import count

VERSION = 1
_ABOUT, _IMAGES, _IMAGE = "about.json", "criu", "image"
_PART, _FAILED = "image.part", "image.lost"  # the copied part of it, or why it could not be copied
_PIDS = 64  # pids that CRIU may need for its own processes
_FIRST_PID = 300  # when pids wrap, the kernel starts again here


class Unfit(Exception):
    """The snapshot cannot be restored here; the message names what does not fit."""


@dataclass(frozen=True)
class About:
    """The description of the rank in a snapshot.

    `pid`: of the rank's first process, in its namespace. `interposer`: the digest of its libraries,
    None if it preloads none. `channel`: its owner's pid, and where the owner has it mapped.
    `connections`: of TCP, as in `sockets.Connection`. `addresses`: as from `sockets.addresses`.
    `logs`: sizes of ``out`` and ``err`` in bytes. `lost`: names that files had only during the
    snapshot (unlinked.py). `journal`: its path, and its life (journal.py). `semaphores`: for
    `descriptors.opened`. `personality`, `inherited`: of all its processes. `state`: version of the
    state that its proxies saved; 0: none; a snapshot without the field has version 9. `boot`: id of
    the machine's boot when it was written: data that was not synced may be lost with the next boot.
    """

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
    inherited: inherited.Values = field(default_factory=dict)
    semaphores: tuple[descriptors.Semaphore, ...] = ()
    state: int = 9
    kernel: str = platform.release()
    boot: str = field(default_factory=saving.boot_id)
    version: int = VERSION

    @property
    def has_channel(self) -> bool:
        return self.channel is not None


def write(
    folder: str,
    about: About,
    pids: set[int],
    cgroup: str,
    tracker: Tracker,
    memory: int | None,
    image: int,
    in_background: bool = False,
) -> int:
    """Write a snapshot of the rank that is frozen in `cgroup` to `folder`, which is replaced.
    Returns the bytes that it takes.

    `pids`: all of the rank. `memory`: the channel. `in_background`: where that is possible,
    `copy_image_later` copies the image. Raises criu.Refused, criu.Killed, rankfold.criu.Missing,
    OSError.
    """
    in_background = in_background and copy_on_write.possible(image)
    place = Path(folder)
    shutil.rmtree(place, ignore_errors=True)
    processes = place / _IMAGES
    processes.mkdir(parents=True, mode=0o700)
    if memory is not None:
        channel.punch(memory)
    with unlinked.relinked(pids) as names:
        opened = saving.Opened(pids, tracker.is_ours, names)
        personality = settings.personality(about.pid)
        about = replace(
            about,
            settings=settings.read(pids),
            personality=personality,
            inherited=inherited.settings_of(about.pid, about.pid),
        )
        descriptors.settle(pids)
        semaphores = descriptors.semaphores(pids)
        dumping = command.dump(about.pid, processes, cgroup)
        try:
            unsaved = undumpable.in_memory(pids)  # while CRIU writes that memory
            if tracker.watches:
                saving.take(place, tracker.names, opened, Previous(tracker.previous))
            if memory is not None and not in_background:
                sparse.copy_out(image, place / _IMAGE, [*own_ranges(image), state_range(image)])
        finally:
            command.finish(dumping, processes)
    if unsaved:
        raise command.Refused("; ".join(unsaved))
    images.repair(processes)
    made = descriptors.repair(processes, semaphores)
    about = replace(about, lost=tuple(sorted(names)), semaphores=made)
    if memory is not None and in_background:
        sparse.copy_out(image, place / _PART, [state_range(image)])
    fresh = place / f"{_ABOUT}.new"
    fresh.write_text(json.dumps(asdict(about) | {"has_channel": about.has_channel}, indent=1))
    fresh.rename(place / _ABOUT)
    written = sum(path.lstat().st_blocks * 512 for path in place.rglob("*"))
    if memory is not None and in_background:
        written += sparse.size(image, own_ranges(image))
        with contextlib.closing(copy_on_write.Hold(image)) as hold:
            hold.begin()  # the caller then calls `copy_image_later` or `release`
    return written


def waits_for_image(folder: str) -> bool:
    """Whether the snapshot's image is still to be copied."""
    return Path(folder, _PART).exists()


def copy_image_later(folder: str, image: int) -> None:
    """Copy the image that `write` left for later. On failure, records the reason in the snapshot
    for its readers. Raises OSError."""
    part = Path(folder, _PART)
    with contextlib.closing(copy_on_write.Hold(image)) as hold:
        try:
            with part.open("r+b") as file:
                hold.copy(file.fileno(), own_ranges(file.fileno()))
            part.rename(part.with_name(_IMAGE))
        except OSError as error:
            part.unlink(missing_ok=True)  # frees space for the reason
            part.with_name(_FAILED).write_text(str(error))
            raise
        finally:
            hold.end()


def release(image: int) -> None:
    """End the hold: the image is not copied after all. Raises OSError."""
    with contextlib.closing(copy_on_write.Hold(image)) as hold:
        hold.end()


def read(folder: str) -> About:
    """Read `about.json` of a snapshot. Raises Unfit."""
    path = Path(folder, _ABOUT)
    try:
        about = json.loads(path.read_text())
        if about.get("version") != VERSION:
            raise Unfit(f"{path} has format {about.get('version')}, not {VERSION}")
        del about["has_channel"]
        return About(**about)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unfit(f"{path} cannot be read: {error}") from error


def abouts(folder: str) -> list[About]:
    """Read `about.json` of all ranks' snapshots next to this one, and of itself. Raises Unfit."""
    return [read(str(path.parent)) for path in Path(folder).parent.glob(f"*/{_ABOUT}")]


def compare(about: About, rank: int, world_size: int, image_bytes: int) -> None:
    """Check that the snapshot is of this rank and of this version. Raises Unfit."""
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
            f"the device state of rank {about.rank} was saved in format version {about.state}, "
            f"this rankfold reads version {version}: restore it with the rankfold that saved it"
        )


def compare_here(folder: str, about: About) -> saving.Files | None:
    """Compare processors, network addresses, and the files that the rank reads. Returns the
    snapshot's record of its files. Raises Unfit, rankfold.criu.Missing, OSError."""
    for address in sockets.absent(about.addresses):
        raise Unfit(
            f"it has {about.addresses[address]}, and this machine does not have the address "
            f"{address}: restore it on the machine that has it, or add the address to this one. "
            "Ranks that talk to each other over 127.0.0.1 can be restored anywhere"
        )
    for _, interface, group, *_ in multicast.absent(settings.memberships(about.settings)):
        raise Unfit(
            f"it has a socket in the multicast group {group} of the interface {interface}, which "
            "this machine does not have: restore it on a machine that has it"
        )
    try:
        command.compare_cpu(Path(folder, _IMAGES))
        saved = saving.read(folder)
        if saved:
            restoring.compare(saved)
    except (command.Refused, saving.Differs) as error:
        raise Unfit(str(error)) from error
    return saved


def prepare(folder: str, about: About, own: Path, image: int) -> tuple[int, restoring.FileProblems]:
    """Compare the machine, then restore the rank's files and fill the image. `own`: the rank's
    journal here. Returns the pid after which CRIU's own processes may get theirs, and problems with
    the files.

    Raises Unfit, rankfold.criu.Missing, OSError.
    """
    found = compare_here(folder, about)
    processes = Path(folder, _IMAGES)
    taken = images.threads(processes)
    if not taken:
        raise Unfit(f"{processes} contains no processes")
    problems = restoring.FileProblems([], [])
    try:
        if found:
            journals = _journals(folder, own)
            problems = restoring.put(Path(folder), found, about.journal[1], own, journals)
        else:
            own.unlink(missing_ok=True)
    except saving.Differs as differs:
        raise Unfit(str(differs)) from differs
    source = Path(folder, _IMAGE)
    if source.exists():
        fill(source, image)
    elif about.has_channel:
        raise Unfit(f"{folder} has no image: the snapshot is incomplete")
    return _gap(taken), problems


def _journals(folder: str, own: Path) -> list[tuple[Path, str]]:
    """The paths where the journals of all ranks next to this one may be, and the life of each.
    Raises Unfit."""
    journals = dict[Path, str]()
    for about in abouts(folder):
        path, life = about.journal
        if life:
            journals[Path(path)] = journals[own.with_name(f"rank-{about.rank}.files")] = life
    return list(journals.items())


def opened_images(folder: str) -> int:
    """Open the folder of the processes' images. Raises OSError."""
    return os.open(Path(folder, _IMAGES), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def why_not(folder: str) -> str:
    """Why CRIU did not restore the snapshot."""
    return command.reason(Path(folder, _IMAGES, "restore.log"), alive=False)


def _gap(taken: set[int]) -> int:
    """The last pid before at least `_PIDS` pids that no thread of the rank has."""
    last = _FIRST_PID - 1
    for pid in sorted(pid for pid in taken if pid > last):
        if pid - last > _PIDS:
            break
        last = pid
    return last


def fill(source: Path, target: int) -> None:
    """Fill an empty image from a snapshot's image, and with its parts that are in the images of
    other ranks. Raises Unfit, OSError."""
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
    """Open an image. Raises Unfit if it does not have this size, OSError."""
    with image.open("rb") as file:
        if os.fstat(file.fileno()).st_size != size:
            raise Unfit(f"{image} has {count(os.fstat(file.fileno()).st_size, 'byte')}, not {size}")
        yield file.fileno()


def cut(log: Callable[[str], str], sizes: Mapping[str, int]) -> None:
    """Shorten a rank's logs to their sizes at the time of the snapshot; shorter logs stay.

    `log` gives the path of each kind. ``cut``, written first, holds the sizes: it lets programs
    that follow a log distinguish this from a log that a user emptied.
    """
    longer = {}
    for kind, size in sizes.items():
        with contextlib.suppress(FileNotFoundError):
            if os.stat(log(kind)).st_size > size:
                longer[kind] = size
    if not longer:
        return
    with contextlib.suppress(OSError):  # a full disk: log followers print lines twice
        note = Path(log("cut.new"))
        note.write_text(json.dumps(longer))
        note.rename(log("cut"))
    for kind, size in longer.items():
        os.truncate(log(kind), size)

"""Prints the logs of a job's ranks as they grow: whole lines, each rank's in order.

Used by `run` and `logs`. Standard output goes to ours, standard error to ours; with several ranks,
every line begins with its rank. A line longer than 64 KiB is printed in parts, as it comes; if
another rank prints between two parts, the next part begins a new line, with its rank.

A job that starts again from its beginning writes to a new folder, which is printed whole. A job
that returns to a checkpoint keeps its logs: before its launcher cuts them to their length at that
time, it writes this length to ``rank-<r>.cut``, and what the job writes again is not printed again.
A log that becomes shorter without such a note was truncated by another process: it is printed from
its beginning, and so is a file that replaces a log.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

READ_BYTES = 1 << 16
LINE_BYTES = 1 << 16  # a longer line without an end is printed in parts, up to its last \r if any


class Follower:
    def __init__(self, folder: Path, ranks: Sequence[int], prefix: bool):
        self._path = folder
        out, err = _Target(sys.stdout.buffer), _Target(sys.stderr.buffer)
        self._folder = -1  # kept open, so that no other folder gets its inode number
        self._streams = [
            _Stream(rank, kind, f"[{rank}] ".encode() if prefix else b"", target)
            for rank in ranks
            for kind, target in (("out", out), ("err", err))
        ]

    def pump(self) -> None:
        """Print what was written since the last call."""
        self._reopen_folder()
        for stream in self._streams:
            if self._folder >= 0:
                stream.pump(self._folder)
        sys.stdout.buffer.flush()
        sys.stderr.buffer.flush()

    def _reopen_folder(self) -> None:
        """Check whether the path still refers to the same folder; if not, print the new one's
        logs."""
        try:
            now = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # it will be created soon
        if self._folder >= 0 and os.path.samestat(os.fstat(now), os.fstat(self._folder)):
            os.close(now)
            return
        if self._folder >= 0:
            os.close(self._folder)
        self._folder = now
        for stream in self._streams:
            stream.start_over()

    def finish(self) -> None:
        """Print everything that is left, including last lines without an end."""
        self.pump()
        for stream in self._streams:
            stream.finish()
        sys.stdout.buffer.flush()
        sys.stderr.buffer.flush()


class _Target:
    """Our standard output or error, which the logs of several ranks share."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self._unfinished: _Stream | None = None  # whose line has no end yet

    def print(self, stream: _Stream, text: bytes, ended: bool) -> None:
        """Print a line, or the next part of one; `ended`: with its end."""
        if self._unfinished is not stream:
            text = (b"\n" if self._unfinished else b"") + stream.prefix + text
        self.file.write(text + b"\n" if ended else text)
        self._unfinished = None if ended else stream

    def end(self, stream: _Stream) -> None:
        """End the stream's line if it has no end yet."""
        if self._unfinished is stream:
            self.print(stream, b"", ended=True)


class _Stream:
    def __init__(self, rank: int, kind: str, prefix: bytes, target: _Target):
        self.rank, self.kind, self.prefix, self.target = rank, kind, prefix, target
        self.rest = b""  # of a line without an end: at most LINE_BYTES between two calls
        self._whole = True  # whether the last printed byte ends a line
        self._note: tuple[int, int] | None = None  # inode and time of the last note of a cut
        self.start_over()

    def start_over(self) -> None:
        """Another text replaces this one: print all of it, beginning with a new line."""
        self.finish()
        if not self._whole:
            self.target.file.write(b"\n")
            self._whole = True
        self.at = 0  # bytes of the file that were printed
        self._size = 0  # of the file at the last check; below `at` after a cut
        self._file: tuple[int, int] | None = None
        self._due: int | None = None  # bytes to which a restore is about to cut the file

    def pump(self, folder: int) -> None:
        try:
            with open(_opened(folder, f"rank-{self.rank}.{self.kind}"), "rb") as stream:
                status = os.fstat(stream.fileno())
                self._detect_replaced(folder, status)
                self._size = status.st_size
                stream.seek(self.at)
                while data := stream.read(READ_BYTES):
                    self.at += len(data)
                    self._size = self.at
                    self._write(data)
        except FileNotFoundError:
            if self._file is not None:
                self.start_over()

    def _detect_replaced(self, folder: int, status: os.stat_result) -> None:
        """Start over if the file was replaced, or is shorter although no restore has cut it."""
        file = status.st_dev, status.st_ino
        if not self._look_for_cut(folder) and status.st_size > self._size:
            self._due = None  # the cut was made: the rank writes again
        if self._file is None:
            self._due = None
        elif self._file != file:
            self.start_over()
        elif status.st_size < self._size:
            if self._due is None or status.st_size < self._due:
                self.start_over()
            self._due = None
        self._file = file

    def _look_for_cut(self, folder: int) -> bool:
        """Whether a restore has begun to cut this rank's logs since the last check."""
        try:
            with open(_opened(folder, f"rank-{self.rank}.cut"), "rb") as file:
                status = os.fstat(file.fileno())
                note = status.st_ino, status.st_mtime_ns
                if note == self._note:
                    return False
                sizes = json.load(file)
        except (FileNotFoundError, ValueError):
            return False
        self._note, self._due = note, sizes.get(self.kind)
        return True

    def _write(self, data: bytes) -> None:
        if not self.prefix:
            self.target.file.write(data)
            self._whole = data.endswith(b"\n")
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.target.print(self, line, ended=True)
        if len(self.rest) <= LINE_BYTES:
            return
        if (at := self.rest.rfind(b"\r")) > 0:
            self.target.print(self, self.rest[:at], ended=True)
            self.rest = self.rest[at:]
        if len(self.rest) > LINE_BYTES:
            self.target.print(self, self.rest, ended=False)
            self.rest = b""

    def finish(self) -> None:
        if self.rest:
            self.target.print(self, self.rest, ended=True)
            self.rest = b""
        self.target.end(self)


def _opened(folder: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)

"""Prints the logs of a job's ranks as they grow: whole lines, each rank's in order.

Used by `run` and `logs`. Standard output goes to ours, standard error to ours; with several ranks
every line begins with its rank. A job that begins anew has another folder of logs: all of those is
new. One that goes back to a checkpoint has the same, and writes on where it was then: what has
been printed already is not printed again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

READ_BYTES = 1 << 16
LINE_BYTES = 1 << 16  # of a line without an end: then what a progress bar has overwritten is one


class Follower:
    def __init__(self, folder: Path, ranks: Sequence[int], prefix: bool):
        self._path = folder
        self._folder = -1  # open, so that no other one has its number
        self._streams = [
            _Stream(f"rank-{rank}.{kind}", f"[{rank}] ".encode() if prefix else b"", target)
            for rank in ranks
            for kind, target in (("out", sys.stdout.buffer), ("err", sys.stderr.buffer))
        ]

    def pump(self) -> None:
        """Print what has come since the last call."""
        self._look()
        for stream in self._streams:
            if self._folder >= 0:
                stream.pump(self._folder)
        sys.stdout.buffer.flush()
        sys.stderr.buffer.flush()

    def _look(self) -> None:
        """Is it the folder that it was?"""
        try:
            now = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # soon
        if self._folder >= 0 and os.path.samestat(os.fstat(now), os.fstat(self._folder)):
            os.close(now)
            return
        if self._folder >= 0:
            os.close(self._folder)
        self._folder = now
        for stream in self._streams:
            stream.finish()
            stream.at = 0

    def finish(self) -> None:
        """Print all that is left, last lines without an end too."""
        self.pump()
        for stream in self._streams:
            stream.finish()
        sys.stdout.buffer.flush()
        sys.stderr.buffer.flush()


class _Stream:
    def __init__(self, file: str, prefix: bytes, target: BinaryIO):
        self.file, self.prefix, self.target = file, prefix, target
        self.at = 0
        self.rest = b""

    def pump(self, folder: int) -> None:
        try:
            with open(os.open(self.file, os.O_RDONLY, dir_fd=folder), "rb") as stream:
                stream.seek(self.at)
                while data := stream.read(READ_BYTES):
                    self.at += len(data)
                    self._write(data)
        except FileNotFoundError:
            return

    def _write(self, data: bytes) -> None:
        if not self.prefix:
            self.target.write(data)
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.target.write(self.prefix + line + b"\n")
        if len(self.rest) > LINE_BYTES and (at := self.rest.rfind(b"\r")) > 0:
            self.target.write(self.prefix + self.rest[:at] + b"\n")
            self.rest = self.rest[at:]

    def finish(self) -> None:
        if self.rest:
            self.target.write(self.prefix + self.rest + b"\n")
            self.rest = b""

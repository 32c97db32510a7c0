"""Prints the logs of a job's ranks as they grow: whole lines, each rank's in order.

Used by `run` and `logs`. Standard output goes to ours, standard error to ours; with several ranks
every line begins with its rank.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

READ_BYTES = 1 << 16


class Follower:
    def __init__(self, folder: Path, ranks: Sequence[int], prefix: bool):
        self._streams = [
            _Stream(
                folder / f"rank-{rank}.{kind}", f"[{rank}] ".encode() if prefix else b"", target
            )
            for rank in ranks
            for kind, target in (("out", sys.stdout.buffer), ("err", sys.stderr.buffer))
        ]

    def pump(self) -> None:
        """Print what has come since the last call."""
        for stream in self._streams:
            stream.pump()
        sys.stdout.buffer.flush()
        sys.stderr.buffer.flush()

    def finish(self) -> None:
        """Print all that is left, last lines without an end too."""
        self.pump()
        for stream in self._streams:
            stream.finish()
        sys.stdout.buffer.flush()
        sys.stderr.buffer.flush()


class _Stream:
    def __init__(self, file: Path, prefix: bytes, target: BinaryIO):
        self.file, self.prefix, self.target = file, prefix, target
        self.at = 0
        self.rest = b""

    def pump(self) -> None:
        try:
            with self.file.open("rb") as stream:
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

    def finish(self) -> None:
        if self.rest:
            self.target.write(self.prefix + self.rest + b"\n")
            self.rest = b""

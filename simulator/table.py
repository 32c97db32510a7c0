"""Reads the rows of a CSV file, and refuses what may be wrong with its file, line and column.

A file is UTF-8, compressed with gzip or not. Each line is one row: a quoted value does not contain
line ends. Rows are numbered by their lines; the header is line 1.
"""

from __future__ import annotations

import csv
import errno
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from rankfold import legible
from rankfold.plural import count

ROWS_MAX = 1_000_000
LINE_MAX = 1 << 16  # bytes
FAULTS_MAX = 20  # most that are reported of a file
SHOWN_MAX = 60  # characters of a value in a message
SECONDS_MAX = 1e12
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading, without waiting. Raises OSError, whose `strerror` has the
    remedy: a pipe may have no writer, and cannot be read twice."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    words = "it is no regular file: give one"
    if stat.S_ISDIR(mode):
        words = "it is a folder: give a file in it"
    elif stat.S_ISFIFO(mode):
        words = "it is a pipe: save what it gives as a file, and give that"
    raise OSError(errno.EINVAL, words)


class BadTrace(Exception):
    """A file is refused. faults: one line each, as ``file:line:column: name: reason``."""

    def __init__(self, faults: Sequence[str]):
        self.faults = list(faults)
        super().__init__("\n".join(self.faults))


class Row:
    """The values of a line. Each is read once, by `text`, `number` or `whole`, which note a fault
    and return a value that a row may have instead."""

    __slots__ = ("_faults", "_line", "_table", "_values")

    def __init__(self, table: Table, line: int, values: Sequence[str], faults: list[str]):
        self._table, self._line, self._values, self._faults = table, line, values, faults

    @property
    def line(self) -> int:
        return self._line

    def has(self, column: str) -> bool:
        return column in self._table.columns

    def text(self, column: str) -> str:
        value = self._values[self._table.columns[column]]
        if not value or not value.isprintable() or value != value.strip():
            self.fault(column, "must be a text without blanks around it")
        return value

    def maybe(self, column: str) -> str:
        """A text, or nothing."""
        return self.text(column) if self._values[self._table.columns[column]] else ""

    def number(self, column: str, least: float, most: float, above: bool = False) -> float:
        """A finite number from `least` to `most`. above: more than `least`."""
        value = self._values[self._table.columns[column]]
        parsed = float(value) if NUMBER.fullmatch(value) else float("nan")
        if parsed >= least and parsed <= most and not (above and parsed == least):
            return parsed
        limit = f"above {least:g}" if above else f"at least {least:g}"
        self.fault(column, f"must be a number {limit} and at most {most:g}, not {shown(value)}")
        return max(least, 1.0)

    def whole(self, column: str, least: int, most: int) -> int:
        value = self._values[self._table.columns[column]]
        if value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most:
            return int(value)
        reason = f"must be a whole number from {least} to {most}, not {shown(value)}"
        self.fault(column, reason)
        return least

    def fault(self, column: str, reason: str) -> None:
        at = self._table.columns[column]
        self._faults.append(self._table.fault(self._line, self._values, at, column, reason))
        if len(self._faults) >= FAULTS_MAX:
            raise BadTrace([*self._faults, f"{self._table.name}: the rest is not checked"])


def shown(value: str) -> str:
    """A value for a message."""
    text = value if len(value) <= SHOWN_MAX else value[: SHOWN_MAX - 1] + "…"
    return repr(legible.legible(text)) if value else "nothing"


class Table:
    """A file with a header. columns: name → index. ragged: the last column has no name and is not
    read, lines may lack it, and the last line its end."""

    def __init__(self, path: Path, ragged: bool = False):
        self.path, self.name, self.ragged = path, legible.name(path), ragged
        self.columns: dict[str, int] = {}

    def rows(
        self, required: Sequence[str], optional: Sequence[str], unordered: bool = False
    ) -> Iterator[Row]:
        """The rows of a file with all required columns and no unknown ones. Raises BadTrace at its
        end, or earlier if the rest cannot be read. unordered: columns may be in any order; else the
        header must be equal to `required`."""
        faults: list[str] = []
        lines = self._lines()
        line, text = next(lines, (1, ""))
        names = self._values(line, text)
        if self.ragged and names[-1:] == [""]:
            names.pop()
        self.columns = self._header(names, required, optional, unordered)
        for line, text in lines:
            if line > ROWS_MAX + 1:
                reason = f"the file has more than {ROWS_MAX} rows: simulate a part of it"
                self._refuse(line, reason, faults)
            values = self._values(line, text)
            if self.ragged and len(values) == len(names) + 1:
                values.pop()
            if len(values) != len(names):
                counted, wanted = count(len(values), "value"), len(names)
                reason = f"has {counted}, the header has {wanted}: the line may be truncated"
                self._refuse(line, reason, faults, len(text) + 1)
            yield Row(self, line, values, faults)
        if faults:
            raise BadTrace(faults)

    def _header(
        self, names: list[str], required: Sequence[str], optional: Sequence[str], unordered: bool
    ) -> dict[str, int]:
        def fault(at: int, reason: str) -> str:
            return self.fault(1, names, at, names[at] or "-", reason)

        known = [*required, *optional]
        faults = [
            fault(at, "there is no such column; known: " + ", ".join(known))
            for at, name in enumerate(names)
            if name not in known
        ]
        faults += [
            fault(at, f"is also column {names.index(name) + 1}")
            for at, name in enumerate(names)
            if names.index(name) < at
        ]
        missing = [name for name in required if name not in names]
        if missing:
            reason = f"the header lacks {', '.join(missing)}"
            faults.append(f"{self.name}:1:1: header: {reason}")
        if not faults and not unordered and names != list(required):
            faults.append(f"{self.name}:1:1: header: must be {','.join(required)}")
        if faults:
            raise BadTrace(faults[:FAULTS_MAX])
        return {name: at for at, name in enumerate(names)}

    def fault(self, line: int, values: Sequence[str], at: int, column: str, reason: str) -> str:
        """A fault in value `at` of a line; column 1 is its first character."""
        start = 1 + sum(len(value) + 1 for value in values[:at])
        return f"{self.name}:{line}:{start}: {legible.legible(column)}: {reason}"

    def _refuse(
        self, line: int, reason: str, faults: Sequence[str] = (), column: int = 1
    ) -> NoReturn:
        raise BadTrace([*faults, f"{self.name}:{line}:{column}: -: {reason}"])

    def _values(self, line: int, text: str) -> list[str]:
        if '"' not in text:
            return text.split(",")
        try:
            return next(csv.reader([text], strict=True))
        except csv.Error as error:
            self._refuse(line, f"not CSV: {error}")

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines without their ends."""
        line = 0
        try:
            with open_file(self.path) as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                stream = gzip.GzipFile(fileobj=raw) if packed else raw
                while data := stream.readline(LINE_MAX):
                    line += 1
                    text = self._decoded(line, data)
                    if not text.endswith("\n"):
                        if not self.ragged or len(data) >= LINE_MAX:
                            self._unended(line, data, text)
                        text += "\n"
                    yield line, text[:-1].removesuffix("\r")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self._refuse(line + 1, f"the compressed file is damaged or truncated: {error}")
        except OSError as error:
            self._refuse(line + 1, f"cannot be read: {error.strerror}")
        if not line:
            self._refuse(1, "the file is empty")

    def _decoded(self, line: int, data: bytes) -> str:
        try:
            return data.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            column = len(data[: error.start].decode()) + 1
            self._refuse(line, "not a text file in UTF-8", column=column)

    def _unended(self, line: int, data: bytes, text: str) -> NoReturn:
        if len(data) >= LINE_MAX:
            self._refuse(line, f"the line has more than {LINE_MAX} bytes")
        reason = "the last line has no end: the file may be truncated; add a line end if it is not"
        self._refuse(line, reason, column=len(text) + 1)


def header_of(path: Path) -> list[str]:
    """The names in the first line. Raises BadTrace."""
    table = Table(path)
    for line, text in table._lines():
        return table._values(line, text)
    return []

"""Hypothesis strategies for what a hostile client may do with a control socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

EDGES = [
    -(2**70),
    -(2**63),
    -(2**31),
    -1,
    0,
    1,
    2,
    255,
    256,
    1023,
    1024,
    1025,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**53 + 1,
    2**63,
    2**64,
    2**70,
    10**400,
]
TEXTS = [
    "",
    "x",
    "job",
    "a\0b",
    "\0",
    "\ud800",
    "\udcff",
    "\n",
    "/",
    "../..",
    "x" * 5000,
    "é" * 107,
]
RAW = [
    b"Infinity",
    b"-Infinity",
    b"NaN",
    b"1e999",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'"\\ud800"',
]
_MARK = '"<raw %d>"'


class Raw(str):
    """Stands for one of RAW, which no JSON encoder writes."""


values = st.recursive(
    st.sampled_from(EDGES)
    | st.sampled_from(TEXTS)
    | st.sampled_from([None, True, False, 0.5, -0.0, 1e308])
    | st.integers(0, len(RAW) - 1).map(lambda i: Raw(f"<raw {i}>"))
    | st.just([0] * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner),
    max_leaves=5,
)


@dataclass(frozen=True)
class Attack:
    """Bytes and descriptors of one connection. `stays`: it hangs there until the end."""

    data: bytes
    fds: int = 0
    stays: bool = False
    parts: int = 1

    def __repr__(self) -> str:
        return f"Attack({self.data[:300]!r}, {self.fds} fds, {self.stays=}, {self.parts=})"


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def encode(message: Any) -> bytes:
    body = json.dumps(message).encode()
    for i, raw in enumerate(RAW):
        body = body.replace((_MARK % i).encode(), raw)
    return body


def attacks(good: Mapping[str, dict[str, Any]]) -> st.SearchStrategy[Attack]:
    """`good`: for each operation, arguments that it would take (and that do no harm)."""

    @st.composite
    def changed(draw: st.DrawFn) -> bytes:
        """A request with one field replaced, left out or added, at any depth."""
        op = draw(st.sampled_from(sorted(good)))
        message: dict[str, Any] = {"v": 1, "id": 7, "op": op, **json.loads(json.dumps(good[op]))}
        place: Any = message
        while True:
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            key = draw(st.sampled_from(list(keys)))
            below = place[key]
            if not isinstance(below, (dict, list)) or not below or draw(st.booleans()):
                break
            place = below
        how = draw(st.sampled_from(["other", "other", "other", "none", "more"]))
        if how == "none":
            del place[key]
        elif how == "more" and isinstance(place, dict):
            place[draw(st.sampled_from(TEXTS))] = draw(values)
        else:
            place[key] = draw(values)
        return framed(encode(message))

    anything = values.map(lambda value: framed(encode(value)))
    lengths = st.sampled_from([0, 1, 3, 4, 2**22, 2**22 + 1, 2**31, 2**32 - 1])
    wrong = st.builds(lambda n, rest: struct.pack("<I", n) + rest, lengths, st.binary(max_size=64))
    data = st.one_of(changed(), changed(), changed(), anything, wrong, st.binary(max_size=64))
    cut = st.builds(lambda whole, n: whole[:n], data, st.integers(0, 40))
    several = st.lists(data, min_size=2, max_size=4).map(b"".join)
    return st.builds(
        Attack,
        st.one_of(data, data, cut, several),
        st.sampled_from([0, 0, 0, 1, 2, 16, 17, 250]),
        st.booleans(),
        st.sampled_from([1, 1, 3]),
    )


class Attacker:
    """Carries attacks out; connections that hang stay open, the oldest of many are closed."""

    def __init__(self, path: str | Path):
        self.path = str(path)
        self._hanging: list[socket.socket] = []

    def __call__(self, attack: Attack) -> None:
        sock = socket.socket(socket.AF_UNIX)
        self._hanging.append(sock)
        sock.settimeout(30)
        sock.connect(self.path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if attack.fds:
                socket.send_fds(sock, [attack.data or b"x"], [0] * attack.fds)
            else:
                step = max(1, len(attack.data) // attack.parts + 1)
                for at in range(0, len(attack.data), step):
                    sock.sendall(attack.data[at : at + step])
        if not attack.stays:
            self._hanging.pop().close()
        elif len(self._hanging) > 20:
            self._hanging.pop(0).close()

    def flood(self, count: int) -> None:
        """So many connections that say nothing. They stay."""
        for _ in range(count):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # the queue must stay full
                sock.connect(self.path)
            self._hanging.append(sock)

    def close(self) -> None:
        for sock in self._hanging:
            sock.close()
        self._hanging.clear()


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))

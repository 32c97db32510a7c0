"""The process of a policy that is not built in: `python -m rankfold.plugin_process NAME PARENT`.
It ends with the thread that started it: PARENT is the pid of that thread's process.

Messages on stdin and stdout are a length of 8 bytes and MessagePack: first an empty reply, when the
policy is imported, then a reply to each request. See plugins.py.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import signal
import sys
import traceback
from typing import BinaryIO

import msgspec

from rankfold.plugins import GROUP, Reply, Request
from rankfold.policy.vocabulary import Decision


def main() -> None:
    # A policy that loops does not read stdin, so it would outlive a killed parent.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[2]):
        return
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the policy prints is no reply
    try:
        (found,) = set(importlib.metadata.entry_points(group=GROUP, name=sys.argv[1]))
        decide = found.load()
    except Exception:  # noqa: BLE001  (a policy may raise anything)
        _send(replies, msgspec.msgpack.encode(Reply(error=_explain())))
        return
    _send(replies, msgspec.msgpack.encode(Reply()))
    while size := sys.stdin.buffer.read(8):
        message = sys.stdin.buffer.read(int.from_bytes(size, "little"))
        request = msgspec.msgpack.decode(message, type=Request)
        try:
            decisions = decide(request.fleet, request.jobs, request.rules, request.now)
            answer = Reply(msgspec.convert(decisions, dict[str, Decision]))
            encoded = msgspec.msgpack.encode(answer)
        except Exception:  # noqa: BLE001
            encoded = msgspec.msgpack.encode(Reply(error=_explain()))
        _send(replies, encoded)


def _explain() -> str:
    """The exception, and the line of the policy that raised it."""
    kind, error, trace = sys.exc_info()
    last = traceback.extract_tb(trace)[-1]
    name = kind.__name__ if kind else "error"
    return f"{name}: {error} ({os.path.basename(last.filename)}:{last.lineno})"


def _send(replies: BinaryIO, message: bytes) -> None:
    replies.write(len(message).to_bytes(8, "little") + message)
    replies.flush()


if __name__ == "__main__":
    main()

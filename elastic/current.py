"""Which logical worker the calling thread runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .worker import Worker

_thread = threading.local()


def worker() -> Worker | None:
    """None in a thread that the runtime did not start, and under torchrun or plain python."""
    found: Worker | None = getattr(_thread, "worker", None)
    return found


def begin(each: Worker) -> None:
    _thread.worker = each

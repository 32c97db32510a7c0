"""Begins a store, or reports why that fails: `python -m rankfold.checkpoint.begin URL FLEET S`.

It runs in a process of its own, because a store may hang and the caller must not: after S seconds
SIGALRM ends it. If this fleet cannot keep checkpoints at the URL, the exit status is 1 and the
reason is on stderr.
"""

from __future__ import annotations

import signal
import sys


def main(url: str, fleet: str, seconds: str) -> int:
    signal.alarm(max(1, round(float(seconds))))
    from rankfold.checkpoint.store import StoreError, open

    try:
        open(url, fleet).need_writable()
    except (StoreError, OSError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

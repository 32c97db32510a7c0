"""Begins a store, or says what is wrong with it: `python -m rankfold.checkpoint.begin URL FLEET S`.

In a process of its own, for a store may hang, and whoever asks must not: after S seconds it is
ended by SIGALRM. Exit status 1, and a word on stderr, where this fleet cannot keep checkpoints
there.
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

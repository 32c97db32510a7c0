"""Whether a job that rests here goes on elsewhere: `python -m rankfold.checkpoint.taken URL FLEET
JOB FOLDER KNOWN S`.

FOLDER is the job's on this machine, KNOWN the newest incarnation in the store that it knows of. In
a process of its own, for a store may hang: after S seconds it is ended by SIGALRM. Exit status 3
where somebody else has taken the job over, 1 where the store cannot be asked, and a word on stderr.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

TAKEN = 3


def main(url: str, fleet: str, job: str, folder: str, known: str, seconds: str) -> int:
    signal.alarm(max(1, round(float(seconds))))
    from rankfold.checkpoint.background import owner
    from rankfold.checkpoint.store import OldIncarnation, StoreError, open

    try:
        open(url, fleet, begin=False).refuse_taken(job, int(known), owner(Path(folder)))
    except OldIncarnation as error:
        print(error, file=sys.stderr)
        return TAKEN
    except (StoreError, OSError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Which of a fleet's jobs were taken over: `python -m rankfold.checkpoint.ownership URL FLEET S`.

On stdin, as JSON: JOB → {folder: the job's on this machine, known: the newest incarnation in the
store that the job knows of}. On stdout one line of JSON for each job, as soon as it is known: {job,
taken: whether another owner has taken it over, why: by whom, or why the store could not be queried
about it}.

It runs in a process of its own, because a store may hang: after S seconds SIGALRM ends it, and for
jobs without a line the answer is unknown. If the store cannot be queried at all, the exit status is
1 and the reason is on stderr.
"""

from __future__ import annotations

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

AT_ONCE = 16  # jobs: each takes two round trips to a remote store


def main(url: str, fleet: str, seconds: str) -> int:
    signal.alarm(max(1, round(float(seconds))))
    from rankfold import owners
    from rankfold.checkpoint.store import OldIncarnation, StoreError, open

    try:
        store = open(url, fleet, begin=False)
    except (StoreError, OSError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1

    def query(job: str, folder: str, known: int) -> str:
        taken, why = False, ""
        try:
            store.refuse_taken_over(job, known, owners.owner_of(Path(folder)))
        except OldIncarnation as error:
            taken, why = True, str(error)
        except (StoreError, OSError, ValueError) as error:
            why = str(error)
        return json.dumps({"job": job, "taken": taken, "why": why})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        queries = [pool.submit(query, job, **about) for job, about in json.load(sys.stdin).items()]
        for answer in as_completed(queries):
            print(answer.result(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

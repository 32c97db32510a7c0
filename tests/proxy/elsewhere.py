"""A device in a process of its own: serves a job of one rank until a line comes, then saves it.

`elsewhere.py CHANNEL IMAGE JOB`: two descriptors, and the job's number, which is also its epoch.
"""

from __future__ import annotations

import sys

from support.ring_client import device, settle


def main() -> None:
    channel, image, job = map(int, sys.argv[1:])
    with device() as native:
        native.job_open(job, job, 0, 1, [0], -1)
        native.rank_attach(job, 0, channel, image)
        print("serves", flush=True)
        sys.stdin.readline()
        native.barrier(job, True)
        settle(native, job, "cut")
        assert native.job_leave(job)
        settle(native, job, "saved")
        native.job_close(job)


if __name__ == "__main__":
    main()

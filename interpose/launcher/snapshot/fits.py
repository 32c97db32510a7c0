"""Check whether snapshots can be restored on this machine.

``python -m rankfold.interpose.launcher.snapshot.fits FOLDER COPIES``

FOLDER has a folder for each rank of a job, with what is compared first: about.json, files.json, and
the features of the processor. COPIES is the folder in which this fleet keeps the libraries that
ranks preload. The check changes nothing. If a snapshot cannot be restored, the exit status is 1 and
the reason is on stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rankfold import criu
from rankfold.interpose.launcher import config, handshake, interposer
from rankfold.interpose.launcher.snapshot import snapshot


def main(folder: str, copies: str) -> int:
    try:
        for path in sorted(Path(folder).iterdir()):
            _need(str(path), copies)
    except (snapshot.Unfit, interposer.Unusable, criu.Missing, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _need(folder: str, copies: str) -> None:
    """Check one rank's snapshot. Raises Unfit, Unusable, Missing, OSError."""
    about = snapshot.read(folder)
    snapshot.compare(about, about.rank, about.world_size, handshake.WINDOW_BYTES)
    if about.interposer:
        interposer.check(about.interposer, config.built_libraries(), copies)
    try:
        snapshot.compare_here(folder, about)
    except snapshot.Unfit as error:
        raise snapshot.Unfit(f"rank {about.rank}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Whether snapshots could be restored here: `python -m rankfold.interpose.launcher.fits FOLDER
COPIES`.

FOLDER has a folder for each rank of a job with what is compared before anything else: about.json,
files.json, and what the processor could do. COPIES is where this fleet keeps what ranks preload.
Nothing is changed. Exit status 1, and a word on stderr, where they could not.
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
    """Raises Unfit, Unusable, Missing, OSError."""
    about = snapshot.read(folder)
    snapshot.compare(about, about.rank, about.world_size, handshake.WINDOW_BYTES)
    if about.interposer:
        interposer.need(about.interposer, config.built_libraries(), copies)
    try:
        snapshot.compare_here(folder, about)
    except snapshot.Unfit as error:
        raise snapshot.Unfit(f"rank {about.rank}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

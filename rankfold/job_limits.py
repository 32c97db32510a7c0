"""The maximum size of a job, read from ``proxy/core/job_limits.h``.

Apart from records.py, because every command needs it, and few need the contracts read there.
"""

from __future__ import annotations

from rankfold import paths

_NUMBERS = {
    words[1]: int(words[2].rstrip("u"))
    for line in paths.JOB_LIMITS.read_text().splitlines()
    if line.startswith("#define") and len(words := line.split()) == 3
}
RANKS_MAX = _NUMBERS["RANKS_MAX"]
DEVICES_MAX = _NUMBERS["DEVICES_MAX"]

"""Prints what detects faults in files: ``python -m support.tests_of proxy/core/memory/swap.c``."""

from __future__ import annotations

import sys

from support.seeding import faults


def main() -> None:
    listed = faults()
    for name in sys.argv[1:]:
        here = [fault for fault in listed if fault.file.startswith(name)]
        for test in sorted({test for fault in here for test in fault.tests}):
            count = sum(test in fault.tests for fault in here)
            print(f"{test}  ({count} of {len(here)} faults in {name})")


if __name__ == "__main__":
    main()

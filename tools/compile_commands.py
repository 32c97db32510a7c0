"""Writes compile_commands.json (or the file that is named): how each C file is compiled, for clangd
and other tools. It has the commands that `make native` would run if nothing were built."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPILES = re.compile(r" -c (\S+\.c) -o \S+$")


def main(target: Path) -> None:
    done = subprocess.run(
        ["make", "--always-make", "--dry-run", "V=1", "JOBS=1", "native"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [
        {"directory": str(ROOT), "file": found[1], "command": line.strip()}
        for line in done.stdout.splitlines()
        if (found := COMPILES.search(line))
    ]
    target.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{target}: {len(rows)} files")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "compile_commands.json")

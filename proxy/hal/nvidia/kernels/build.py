"""Compiles ``sums.cu`` into the PTX file next to it (``make gpu-ptx``).

It compiles without contraction, so each operation is rounded. The PTX version is lowered to one
that drivers of CUDA 12 accept, which support everything it uses. The text begins with a digest of
its sources.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NVCC = FOLDER.parents[3] / "tools/nvcc"
HEADERS = ("checksum.h", "elements.h", "number.h")
SOURCES = (FOLDER / "sums.cu", *(FOLDER.parents[1] / name for name in HEADERS))
VERSION = "7.5"
TARGET = FOLDER / "sums.ptx"


def digest() -> str:
    """Returns the digest of the sources."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()


def compiled() -> str:
    """Returns the PTX, without nvcc's comments. Raises `CalledProcessError`."""
    command = [
        str(NVCC),
        "-ptx",
        "-arch=compute_75",
        "-fmad=false",
        str(SOURCES[0]),
        "-o",
        "/dev/stdout",
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.sub(r"^\.version .*", f".version {VERSION}", text, flags=re.MULTILINE)
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith("//")]
    return f"// from sums.cu by build.py: {digest()}\n" + "\n".join([*kept, ""])


if __name__ == "__main__":
    TARGET.write_text(compiled())

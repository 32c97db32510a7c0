"""Compiles ``kernels.cu`` into the PTX file next to it (``make blas-ptx``).

Without contraction: which multiplications and additions are fused is said in the source. Each text
begins with a digest of what it was made from.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NVCC = FOLDER.parents[1] / "tools/nvcc"
TYPES = "sdcz"
SOURCES = ("args.h", "operands.cuh", "kernels.cu")


def digest() -> str:
    """Of the source."""
    text = b"".join((FOLDER / name).read_bytes() for name in SOURCES)
    return hashlib.sha256(text).hexdigest()


def compiled(kind: str) -> str:
    """The PTX of one type, without nvcc's comments. Raises `CalledProcessError`."""
    command = [
        str(NVCC),
        "-ptx",
        "-arch=compute_75",
        "-fmad=false",
        f"-DBLAS_{kind.upper()}=1",
        str(FOLDER / "kernels.cu"),
        "-o",
        "/dev/stdout",
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith("//")]
    return f"// from kernels.cu by interpose/blas/build.py: {digest()}\n" + "\n".join([*kept, ""])


def main() -> None:
    for kind in TYPES:
        (FOLDER / f"{kind}.ptx").write_text(compiled(kind))


if __name__ == "__main__":
    main()

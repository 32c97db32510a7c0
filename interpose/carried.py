"""Compiles the kernels that the client carries, each ``kernels.cu``, into the PTX files next to it
(``make carried-ptx``).

Without contraction: the source says which multiplications and additions are fused. Each text begins
with a digest of what it was made from.
"""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

INTERPOSE = Path(__file__).resolve().parent
NVCC = INTERPOSE.parent / "tools/nvcc"


@dataclass(frozen=True)
class Carried:
    """The kernels of one library: one text for each of its types."""

    library: str  # its folder
    types: str
    sources: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return INTERPOSE / self.library

    def path(self, kind: str) -> Path:
        return self.folder / f"{kind}.ptx"

    def digest(self) -> str:
        """The digest of the sources."""
        text = b"".join((self.folder / name).read_bytes() for name in self.sources)
        return hashlib.sha256(text).hexdigest()

    def compiled(self, kind: str) -> str:
        """The PTX of one type, without nvcc's comments. Raises `CalledProcessError`."""
        command = [
            str(NVCC),
            "-ptx",
            "-arch=compute_75",
            "-fmad=false",
            f"-D{self.library.upper()}_{kind.upper()}=1",
            str(self.folder / "kernels.cu"),
            "-o",
            "/dev/stdout",
        ]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines = [line.strip() for line in text.splitlines()]
        kept = [line for line in lines if line and not line.startswith("//")]
        return f"// from kernels.cu by interpose/carried.py: {self.digest()}\n" + "\n".join(
            [*kept, ""]
        )


BLAS = Carried("blas", "sdcz", ("args.h", "operands.cuh", "kernels.cu"))
DNN = Carried("dnn", "sdhb", ("args.h", "kernels.cu"))


ALL = (BLAS, DNN)


def main() -> None:
    for carried in ALL:
        for kind in carried.types:
            carried.path(kind).write_text(carried.compiled(kind))


if __name__ == "__main__":
    main()

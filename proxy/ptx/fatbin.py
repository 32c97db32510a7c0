"""Finds the PTX in a fatbin, in the format of nvcc and NVRTC.

A fatbin is a header ``{u32 magic, u16 version, u16 header bytes, u64 bytes}`` and entries; a
section of a program may contain several, one after another. An entry is PTX text or machine code,
plain or compressed (zstd, LZ4).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import lz4.block
import zstandard

from .errors import INVALID_IMAGE, NO_BINARY_FOR_GPU, ModuleError
from .link import link

IMAGE_FATBIN, IMAGE_PTX, IMAGE_ELF, IMAGE_LIBRARY = 0, 1, 2, 3  # enum rf_image
MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
PTX_ARCH = 75  # that every supported compiler knows, and every device takes
_KIND_PTX, _KIND_ELF = 1, 2
ARCH_LINKED = 0  # of the entries of an image that the driver's linker has made (link.c)
_LZ4, _ZSTD = 0x2000, 0x8000
_OF_ONE_ARCH, _OF_FAMILY = 0x100000, 0x200000  # machine code of sm_90a; of sm_100f
_TARGET = re.compile(r"^\s*\.target\s+(?:sm|compute)_\d+([af]?)\b", re.M)
_TEXT_BYTES_MAX = 1 << 28
_TOO_LARGE = f"fatbin: an entry is larger than {_TEXT_BYTES_MAX >> 20} MiB"
_ELF = b"\x7fELF"
_ELF_HEADER = struct.Struct("<8xB9xH28xI")  # ABI version, machine, flags
_ELF_MACHINE_CUDA = 190
_ELF_ABI_OF_CUDA_13 = 8  # has the architecture in the second byte of the flags, not in the first
_LZ4_RATIO_MAX = 255  # bytes of text for a byte of a block, at most


@dataclass(frozen=True)
class Entry:
    """One entry: its kind (1: PTX), the architecture (75 = sm_75) and its content as stored."""

    kind: int
    arch: int
    flags: int
    text_bytes: int
    payload: bytes

    def content(self) -> bytes:
        """The content, decompressed. Raises ModuleError if the entry is damaged."""
        if self.flags & _ZSTD:
            return zstd_frame(self.payload)
        if self.flags & _LZ4:
            return lz4_block(self.payload, self.text_bytes)
        return self.payload

    def text(self) -> str:
        """The PTX, decompressed. Raises ModuleError if the entry is damaged."""
        return decode(self.content())


def is_fatbin(image: bytes) -> bool:
    """Tells a fatbin from PTX text."""
    return image.startswith(MAGIC.to_bytes(4, "little"))


def decode(data: bytes) -> str:
    """PTX text from a buffer that may end with zero bytes."""
    try:
        return data.split(b"\0", 1)[0].decode()
    except UnicodeDecodeError as error:
        raise ModuleError(INVALID_IMAGE, f"PTX is not UTF-8: {error}") from error


def fatbins(image: bytes) -> Iterator[list[Entry]]:
    """The entries of each fatbin in `image`."""
    offset = 0
    while offset + _HEADER.size <= len(image):
        magic, _version, header_bytes, size = _HEADER.unpack_from(image, offset)
        if magic != MAGIC:
            if offset == 0:
                raise ModuleError(INVALID_IMAGE, f"not a fatbin: begins with {magic:#x}")
            return  # padding after the last one
        end = offset + header_bytes + size
        if header_bytes < _HEADER.size or end > len(image):
            raise ModuleError(INVALID_IMAGE, "fatbin: shorter than its header says")
        yield list(_entries_of(image, offset + header_bytes, end))
        offset = (end + 7) & ~7


def _entries_of(image: bytes, offset: int, end: int) -> Iterator[Entry]:
    while offset + _ENTRY.size <= end:
        fields = _ENTRY.unpack_from(image, offset)
        kind, _version, header_bytes, padded, packed = fields[:5]
        arch, flags, text_bytes = fields[8], fields[11], fields[13]
        first = offset + header_bytes
        if header_bytes < 64 or first + padded > end or packed > padded:
            raise ModuleError(INVALID_IMAGE, "fatbin: a damaged entry")
        yield Entry(kind, arch, flags, text_bytes, image[first : first + (packed or padded)])
        offset = first + padded


def ptx_texts(image: bytes, compute_capability: tuple[int, int]) -> list[str]:
    """The PTX of each fatbin in `image` that fits the device best, without repetitions. Several
    texts are to be linked. A fatbin without PTX adds nothing if another one has some.

    Raises ModuleError: NO_BINARY_FOR_GPU if no PTX is for the device or an older architecture.
    """
    limit = compute_capability[0] * 10 + compute_capability[1]
    binaries = list(fatbins(image))
    texts = list(dict.fromkeys(text for entries in binaries for text in _best(entries, limit)))
    if not texts:
        everything = [entry for entries in binaries for entry in entries]
        raise ModuleError(NO_BINARY_FOR_GPU, _why_none_fits(everything, limit))
    return texts


def cubin_of(image: bytes, capability: int) -> bytes | None:
    """The machine code in a fatbin, or in an image that is machine code, for a GPU of this compute
    capability (90: 9.0). None if there is none. Raises ModuleError."""
    if image.startswith(_ELF):
        fits = _fits(architecture_of(image), 0, capability)
        return image if fits else None
    if not is_fatbin(image):
        return None
    found = [
        entry
        for entries in fatbins(image)
        for entry in entries
        if entry.kind == _KIND_ELF and _fits(entry.arch, entry.flags, capability)
    ]
    if not found:
        return None
    best = max(found, key=lambda e: (e.arch, bool(e.flags & (_OF_ONE_ARCH | _OF_FAMILY))))
    return best.content()


def _fits(arch: int, flags: int, capability: int) -> bool:
    """Whether machine code for `arch` runs on a GPU: on newer ones of the same generation, unless
    it uses what only this architecture has."""
    if flags & _OF_ONE_ARCH:
        return arch == capability
    return arch // 10 == capability // 10 and arch <= capability


def _best(entries: list[Entry], limit: int) -> list[str]:
    """The PTX of a fatbin that fits compute capability `limit` best; none if no PTX does."""
    ptx = [entry for entry in entries if entry.kind == _KIND_PTX]
    for arch in sorted({entry.arch for entry in ptx if entry.arch <= limit}, reverse=True):
        texts = [entry.text() for entry in ptx if entry.arch == arch]
        if arch == ARCH_LINKED:
            return texts
        ranked = [(_generality(text, arch, limit), text) for text in texts]
        best = max(rank for rank, _ in ranked)
        if best:
            return [text for rank, text in ranked if rank == best]
    return []


def _generality(text: str, arch: int, limit: int) -> int:
    """How many architectures PTX for `arch` is for: 0 if not for `limit`, most without a suffix.

    PTX of ``sm_90a`` is for 9.0 alone, that of ``sm_100f`` for 10.0 and newer ones of its family.
    """
    target = _TARGET.search(text)
    suffix = target[1] if target else ""
    fits = {"a": arch == limit, "f": arch // 10 == limit // 10, "": True}[suffix]
    return {"a": 1, "f": 2, "": 3}[suffix] if fits else 0


def _suffixed(entry: Entry) -> str:
    """The architecture of PTX, such as 75 or 90a."""
    target = _TARGET.search(entry.text())
    return f"{entry.arch}{target[1] if target else ''}"


def _why_none_fits(entries: list[Entry], limit: int) -> str:
    """Why no entry is for compute capability `limit` (80: 8.0), and what would be."""
    machine = sorted({entry.arch for entry in entries if entry.kind == _KIND_ELF})
    ptx = sorted({entry.arch for entry in entries if entry.kind == _KIND_PTX})
    named = sorted({_suffixed(entry) for entry in entries if entry.kind == _KIND_PTX})
    contents = [
        f"{name}{', '.join(str(arch) for arch in archs)}"
        for name, archs in (("machine code for sm_", machine), ("PTX for compute_", named))
        if archs
    ]
    remedy = f"build it with PTX (nvcc -arch=compute_{min(limit, PTX_ARCH)})"
    if ptx and ptx[0] > limit:
        newer = f"{ptx[0] // 10}.{ptx[0] % 10}"
        remedy += f", or use devices of compute capability {newer} (a pool's computeCapability, "
        remedy += f"or rankfold run --compute-capability {newer})"
    return (
        f"it contains {' and '.join(contents) or 'nothing'}, but no PTX for compute capability "
        f"{limit // 10}.{limit % 10}: {remedy}"
    )


def ptx_of(image: bytes, compute_capability: tuple[int, int]) -> str:
    """The PTX of a fatbin, or of an image that is PTX. Raises ModuleError."""
    if image.startswith(_ELF):
        raise ModuleError(NO_BINARY_FOR_GPU, _why_machine_code_does_not_fit(image))
    if not is_fatbin(image):
        return decode(image)
    return link(ptx_texts(image, compute_capability))


def _why_machine_code_does_not_fit(image: bytes) -> str:
    """Returns a message that names what an ELF image contains, and what would run instead."""
    return (
        f"the module contains machine code for sm_{architecture_of(image)}, but no PTX: load PTX "
        "(nvcc -ptx, NVRTC's "
        f"nvrtcGetPTX) or a fatbin that contains PTX (nvcc -fatbin -arch=compute_{PTX_ARCH})"
    )


def architecture_of(image: bytes) -> int:
    """The architecture of machine code, an ELF file: 90 for sm_90. Raises ModuleError if it is none
    of a GPU."""
    if len(image) < _ELF_HEADER.size:
        raise ModuleError(
            NO_BINARY_FOR_GPU,
            "the module is an ELF file that ends within its header: it is damaged",
        )
    abi, machine, flags = _ELF_HEADER.unpack_from(image)
    if machine != _ELF_MACHINE_CUDA:
        raise ModuleError(
            NO_BINARY_FOR_GPU,
            f"the module is an ELF file for another processor (machine {machine}), not for a GPU",
        )
    return int(flags & 0xFF if abi < _ELF_ABI_OF_CUDA_13 else flags >> 8 & 0xFF)


def zstd_frame(data: bytes) -> bytes:
    """Decompress one zstd frame. Raises ModuleError if it is damaged or too large."""
    try:
        if zstandard.frame_content_size(data) > _TEXT_BYTES_MAX:  # it would be allocated
            raise ModuleError(INVALID_IMAGE, _TOO_LARGE)
        return zstandard.ZstdDecompressor().decompress(data, _TEXT_BYTES_MAX)
    except zstandard.ZstdError as error:
        raise ModuleError(INVALID_IMAGE, f"fatbin: damaged zstd data: {error}") from error


def lz4_block(data: bytes, size: int) -> bytes:
    """Decompress one LZ4 block (no frame) of `size` bytes; size 0: unknown."""
    capacity = size or min(len(data) * _LZ4_RATIO_MAX, _TEXT_BYTES_MAX)
    if capacity > _TEXT_BYTES_MAX:
        raise ModuleError(INVALID_IMAGE, _TOO_LARGE)
    try:
        out = bytes(lz4.block.decompress(data, uncompressed_size=capacity))
    except lz4.block.LZ4BlockError as error:
        raise ModuleError(INVALID_IMAGE, f"fatbin: damaged LZ4 data: {error}") from error
    if len(out) < size:
        raise ModuleError(INVALID_IMAGE, "fatbin: LZ4 data ends early")
    return out

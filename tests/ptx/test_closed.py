"""How many of the kernels of examples and test programs are closed, as counted in their PTX."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import cuda
import pytest

from rankfold.paths import REPOSITORY
from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.fatbin import ptx_of
from rankfold.proxy.ptx.module import parse_module
from rankfold.proxy.ptx.sets import Sets, sets_of

READ_AND_WRITTEN = Use.READ | Use.WRITTEN
CLOSED_MIN = 0.95
BOUNDED_MIN = 0.8  # of their words; tiles of matrices and some of CUB's kernels are not
OPEN = {
    "first_launch:_Z3sayPKc": "reads pointers from memory",  # and prints
    "kernel_heap:_Z4growiPi": "allocates on the device's heap",
    "kernel_heap:_Z4lookPyS_": "reads pointers from memory",
    "kernel_heap:_Z7exhaustmPi": "allocates on the device's heap",
    "managed:_Z13use_variablesv": "reaches managed memory",
    "pointers:_Z3usePii": "reads pointers from memory",
    "printing:_Z4linei": "prints",
    "printing:_Z4manyi": "prints",
    "printing:_Z5edgesv": "prints",
    "streams:_Z6gatherPKPiS_": "reads pointers from memory",
    "pathologies:_Z7throughPKPfif": "reads pointers from memory",
    "pathologies:_Z7tellingPfPKfifi": "prints",
}  # what these programs are there to show
FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
CC = (9, 0)
GPT = REPOSITORY / "examples/gpt/train_gpt.cu"
ARCHITECTURES = {"matrices": "compute_80"}  # of programs that need a later one


def images(program: Path) -> Iterator[str]:
    """The PTX of each of the program's fatbins."""
    data = program.read_bytes()
    at = data.find(FATBIN_MAGIC)
    while at >= 0:
        _, header_bytes, total = struct.unpack_from("<HHQ", data, at + 4)
        with contextlib.suppress(ModuleError):  # machine code: not ours
            yield ptx_of(data[at : at + header_bytes + total], CC)
        at = data.find(FATBIN_MAGIC, at + 4)


def kernels(source: Path) -> dict[str, Sets]:
    """The sets of each kernel of a program."""
    arch = ARCHITECTURES.get(source.stem)
    found = {}
    for text in set(images(cuda.build(source, args=[f"-arch={arch}"] if arch else []))):
        module = parse_module(text)
        for function in module.functions.values():
            if function.entry and function.body_text is not None:
                sets = sets_of(module, function, fixed_code=True)
                found[f"{source.stem}:{function.name}"] = sets
    return found


def test_all_kernels_of_the_gpt_are_closed() -> None:
    found = kernels(GPT)
    assert len(found) == 18 and all(sets.closed for sets in found.values()), found
    for name, sets in found.items():
        assert all(sets.bounds.uses(at) == READ_AND_WRITTEN for at, _ in sets.words), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_most_kernels_are_closed() -> None:
    found: dict[str, Sets] = {}
    for source in [GPT, *sorted(cuda.PROGRAMS.glob("*.cu"))]:
        found |= kernels(source)
    opened = {name: sets.why_open for name, sets in found.items() if not sets.closed}
    closed = [sets for sets in found.values() if sets.closed]
    for name, why in opened.items():
        print(f"{name}: {why}")
    words = sum(len(sets.words) for sets in closed)
    bounded = sum(
        sets.bounds.uses(at) == READ_AND_WRITTEN for sets in closed for at, _ in sets.words
    )
    print(f"{len(closed)} of {len(found)} closed; {bounded} of {words} of their words bounded")
    assert opened.keys() == OPEN.keys()
    assert all(OPEN[name] in why for name, why in opened.items())
    assert len(closed) >= CLOSED_MIN * len(found)
    assert bounded >= BOUNDED_MIN * words

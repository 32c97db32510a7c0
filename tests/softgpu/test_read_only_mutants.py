"""Faults seeded into read-only mappings of both kinds of devices: the tests notice each."""

from __future__ import annotations

from pathlib import Path

import pytest
from barrier.mutants import Mutant

from support.native import REPOSITORY, noticed_by, with_fault

UNFORESEEN = [
    Mutant("copy-that-nobody-hears-of", "\ttell(space, chunk, page);", ""),
    Mutant("copy-without-content", "return fill_chunk(device, chunk, at) &&", "return"),
    Mutant("copy-of-no-chunk", "MAP_SHARED | MAP_FIXED", "MAP_PRIVATE | MAP_FIXED"),
    Mutant(
        "copy-of-the-page-before",
        "space->base + page * RF_CHUNK_BYTES, chunk",
        "space->base + (page - 1) * RF_CHUNK_BYTES, chunk",
    ),
    Mutant("one-copy-is-told", "space->told = atomic_load(&entry->next);", "space->told = 0;"),
]
SPACE = [
    Mutant(
        "all-is-writable",
        "return writable ? PROT_READ | PROT_WRITE : PROT_READ;",
        "return PROT_READ | PROT_WRITE;",
    ),
    Mutant(
        "one-of-many-is-protected",
        "mprotect(at, bytes, access_of",
        "mprotect(at, RF_CHUNK_BYTES, access_of",
    ),
    Mutant("copies-do-not-count", "\tatomic_fetch_add(&device->held, 1);", ""),
    Mutant("copies-are-lost", "while (soft_space_copied(space, &addr, &chunk))", "while (0)"),
    Mutant(
        "chunks-keep-their-content",
        "if (fallocate(device->memfd,",
        "if (0 && fallocate(device->memfd,",
    ),
    Mutant("zeros-are-not-written", "memset(at, 0, RF_CHUNK_BYTES);", ""),
    Mutant(
        "zeros-are-written-each-time",
        "RF_CHUNK_BYTES);\n\t\tentry->unzeroed = false;",
        "RF_CHUNK_BYTES);",
    ),
    Mutant("no-zeros-where-none-may-write", "\t\tclean(space->device, chunk);\n", ""),
    Mutant("zeros-while-others-read", "chunk, true, false);", "chunk, true, true);"),
]
FAULT = [Mutant("copies-are-unforeseen-too", "!self->kernel ||", "")]
ISSUE = [
    Mutant("copies-may-write", "w->copy.dst_pitch, true)", "w->copy.dst_pitch, false)"),
    Mutant("fills-may-write", "w->fill.pitch, true)", "w->fill.pitch, false)"),
]
SUMS = [Mutant("sums-may-write", "i == 0,", "false,")]
GEMM = [
    Mutant(
        "products-may-write",
        "&g->d, g->m, g->n, g->type_cd, WRITTEN)",
        "&g->d, g->m, g->n, g->type_cd, READ)",
    ),
    Mutant("gradients-of-biases-may-write", "g->flags & SUMMED ? WRITTEN : READ", "READ"),
    Mutant("kept-matrices-may-be-written", "g->flags & RF_GEMM_KEEP ? WRITTEN : READ", "READ"),
]
WINDOW = [
    Mutant("the-window-is-writable", "!(device->window[from] & CUDA_READ_ONLY)", "true"),
    Mutant(
        "neighbours-get-the-same",
        "(!changes || (wanted ^ device->window[run]) & CUDA_READ_ONLY)",
        "(!changes)",
    ),
    Mutant(
        "the-window-stays-as-it-was",
        "device->window[i] != wanted;",
        "(device->window[i] ^ wanted) & ~CUDA_READ_ONLY;",
    ),
]
FILES = {
    "soft/unforeseen.c": UNFORESEEN,
    "soft/space.c": SPACE,
    "soft/fault.c": FAULT,
    "nvidia/issue.c": ISSUE,
    "nvidia/sums.c": SUMS,
    "nvidia/gemm.c": GEMM,
    "nvidia/space.c": WINDOW,
}


def test_seeded_faults_fit_the_source() -> None:
    for file, mutants in FILES.items():
        text = (REPOSITORY / "proxy/hal" / file).read_text()
        assert [mutant.name for mutant in mutants if text.count(mutant.old) != 1] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "mutant"),
    [(file, mutant) for file, mutants in FILES.items() for mutant in mutants],
    ids=lambda value: getattr(value, "name", ""),
)
def test_seeded_faults_are_noticed(tmp_path: Path, file: str, mutant: Mutant) -> None:
    native = with_fault(tmp_path, REPOSITORY / "proxy/hal" / file, mutant.old, mutant.new)
    tests = ["nvidia/test_read_only.py"]
    if file.startswith("soft"):
        tests += [f"softgpu/test_{name}.py" for name in ("read_only", "device", "own_beneath")]
    # Some are noticed by chance alone: other programs each time.
    by_chance = ("--hypothesis-profile=default",)
    noticed_by(native, *(REPOSITORY / "tests" / each for each in tests), options=by_chance)

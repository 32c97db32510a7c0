"""Faults seeded into what items do to versions: tests/proxy/test_contents.py must notice each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from barrier.mutants import Mutant

from support.native import CORE, REPOSITORY, with_fault

EFFECTS = [
    Mutant("open-kernel-believed", "if (!f->closed ||", "if ("),
    Mutant("key-without-scalars", "digest_bytes(&d, params, l->param_bytes);", ""),
    Mutant("key-without-shape",
           "digest_word(&d, (uint64_t)l->grid[n] << 32 | l->block[n]);", ";"),
    Mutant("key-without-code",
           "digest_word(&d, f->identity.a);\n\tdigest_word(&d, f->identity.b);", ""),
    Mutant("key-without-globals", "n < f->variable_count; n++)", "n < 0; n++)"),
    Mutant("address-that-matters-forgotten", "a->use & PROXY_VALUE ? word :", ""),
    Mutant("atomics-are-ordered", "(a->use & PROXY_ATOMIC ? REACH_UNORDERED : 0)", "0"),
    Mutant("copies-all-alike", "content_of_bytes(host + from, width)", "content_of_bytes(host, 0)"),
    Mutant("fills-all-alike", "versions_fill(f->value, f->element);\n\tfor (",
           "versions_fill(7, 1);\n\tfor ("),
    Mutant("collectives-all-alike", "digest_word(&d, p.number++);", ""),
    Mutant("every-rank-gets-the-first-part", "*from = o->count * p->index;", ""),
    Mutant("every-rank-is-the-root", "return root ? o->count : 0;", "return o->count;"),
]  # fmt: skip
CONTENT = [
    Mutant("one-version-not-read",
           "versions_absorb(&m->versions, part.addr, part.bytes, d);", ""),
    Mutant("distance-not-seen", "digest_word(d, reach->addr - b->addr);", ""),
    Mutant("elsewhere-is-believed", "f->known &= !(bounded && elsewhere(reach, bound, b));",
           "(void)elsewhere;"),
    Mutant("memory-leads-nowhere", "if (uses[n] == REACH_WRITTEN && !bounded)", "if (0)"),
    Mutant("beyond-the-end-is-nothing", "else if (uses[n] == REACH_WRITTEN && f->known)",
           "else if (0)"),
    Mutant("only-its-range-is-unknown",
           "if (f->astray && !f->trusted)\n\t\t\tpages_unknown(m, range);\n\t\telse ",
           "(void)pages_unknown;\n\t\t"),
    Mutant("what-is-written-stays-as-it-was", "if (!(range->use & REACH_WRITTEN))", ""),
    Mutant("parts-described-by-others", "bool described = false;", "bool described = f->count;"),
    Mutant("results-all-alike", "range * RF_HEAP_BYTES", "0"),
]  # fmt: skip
FILES = [(CORE / "queue/effects.c", each) for each in EFFECTS]
FILES += [(CORE / "memory/content.c", each) for each in CONTENT]


def test_seeded_faults_fit_the_source() -> None:
    for source, mutant in FILES:
        assert source.read_text().count(mutant.old) == 1, mutant.name


@pytest.mark.slow
@pytest.mark.parametrize(("source", "mutant"), FILES, ids=lambda value: getattr(value, "name", ""))
def test_seeded_faults_are_noticed(tmp_path: Path, source: Path, mutant: Mutant) -> None:
    native = with_fault(tmp_path, source, mutant.old, mutant.new)
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
             "-k", "not bytes", str(REPOSITORY / "tests/proxy/test_contents.py")]  # fmt: skip
    done = subprocess.run(tests, env={**os.environ, "RANKFOLD_NATIVE": str(native)}, check=False,
                          capture_output=True, text=True, cwd=REPOSITORY)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError" in done.stdout or "assert" in done.stdout

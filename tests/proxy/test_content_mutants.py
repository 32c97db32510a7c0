"""Faults seeded into what items do to versions: tests/proxy/test_contents.py must notice each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from barrier.mutants import Mutant

from rankfold import paths
from support.native import CORE, REPOSITORY

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
    Mutant("fills-all-alike", "versions_fill(f->value, f->element)", "versions_fill(7, 1)"),
    Mutant("collectives-all-alike", "digest_word(&d, p.number++);", ""),
    Mutant("every-rank-gets-the-first-part", "*from = o->count * p->index;", ""),
    Mutant("every-rank-is-the-root", "return root ? o->count : 0;", "return o->count;"),
]  # fmt: skip
CONTENT = [
    Mutant("one-version-not-read",
           "versions_absorb(&m->versions, b->addr, b->bytes, d);", ""),
    Mutant("distance-not-seen", "digest_word(d, reach->addr - b->addr);", ""),
    Mutant("what-is-written-stays-as-it-was", "behind(m, range, version);", "continue;"),
    Mutant("results-all-alike", "i * RF_HEAP_BYTES", "0"),
]  # fmt: skip
FILES = [(CORE / "queue/effects.c", each) for each in EFFECTS]
FILES += [(CORE / "memory/content.c", each) for each in CONTENT]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "mutant"), FILES, ids=lambda value: getattr(value, "name", ""))
def test_seeded_faults_are_noticed(tmp_path: Path, source: Path, mutant: Mutant) -> None:
    text = source.read_text()
    assert text.count(mutant.old) == 1
    changed = tmp_path / source.name
    changed.write_text(text.replace(mutant.old, mutant.new))
    native = tmp_path / "native"
    shutil.copytree(paths.native("include"), native / "include")
    shutil.copytree(paths.native("lib"), native / "lib", symlinks=True)
    objects = paths.native("obj")
    here = objects / source.relative_to(REPOSITORY).with_suffix(".o")
    others = [each for each in (objects / "proxy").rglob("*.o") if each != here]
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-O1", "-w",
               f"-I{source.parent}",
               *(f"-I{REPOSITORY / at}" for at in ("interpose/channel", "proxy/core", "proxy/hal")),
               "-o", str(native / "lib/librankfold-proxy.so"), str(changed), *map(str, others),
               "-lpthread", "-lm", "-ldl"]  # fmt: skip
    subprocess.run(command, check=True)
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
             "-k", "not bytes", str(REPOSITORY / "tests/proxy/test_contents.py")]  # fmt: skip
    done = subprocess.run(tests, env={**os.environ, "RANKFOLD_NATIVE": str(native)}, check=False,
                          capture_output=True, text=True, cwd=REPOSITORY)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError" in done.stdout or "assert" in done.stdout

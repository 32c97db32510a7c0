"""The proxy's core does over the null device what it does over the software GPU, except kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from softgpu.harness import CHUNK, Device, ffi

from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.null.modules import open_loader
from rankfold.proxy.ptx.errors import ModuleError

ILLEGAL_ADDRESS, OUT_OF_MEMORY = 700, 2
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 p, .param .f32 by)
{
    ret;
}
"""


def test_the_tests_of_the_core_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "tests/proxy/test_core.py"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={**os.environ, "RANKFOLD_TEST_HAL": "null"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d\d passed", done.stdout)


def test_a_kernel_is_known_with_its_parameters(tmp_path: Path) -> None:
    loader = open_loader(tmp_path, (8, 0))
    module = loader.module(PTX.encode(), 0)
    assert module.functions == ("scale",)
    assert loader.function(module, "scale").params == ((0, 8), (8, 4))
    with pytest.raises(ModuleError, match="the module has no kernel other"):
        loader.function(module, "other")


def test_a_chunk_of_another_reads_as_zero() -> None:
    with Device(hal="null", memory=2 * CHUNK) as device:
        space, chunk = device.space(), ffi.new("uint32_t *")
        at = space.put(np.full(2 * CHUNK, 7, np.uint8))
        assert device.hal.chunk_create(device.handle, chunk) == OUT_OF_MEMORY
        assert device.hal.space_unmap(space.handle, at) == 0
        device.hal.chunk_destroy(device.handle, space.chunks[0])
        assert device.hal.chunk_create(device.handle, chunk) == 0
        assert space.map(at, chunk[0]) == 0
        found = space.read(at, 2 * CHUNK, np.uint8).reshape(2, -1)
        assert (found[0] == 0).all() and (found[1] == 7).all()


def test_only_a_space_that_writes_to_what_it_may_read_fails() -> None:
    with Device(hal="null", memory=2 * CHUNK) as device:
        owner, reader = device.space(), device.space()
        at = owner.put(np.arange(10))
        assert reader.map(at, owner.chunks[0], writable=False) == 0
        assert (reader.read(at, 10, np.int64) == np.arange(10)).all()
        reader.write(at, np.zeros(1))
        assert reader.error()[0] == ILLEGAL_ADDRESS
        assert not reader.read(at, 10, np.int64).any(), "work of a failed space is skipped"
        assert owner.protect(at, 1, False) == owner.protect(at, 1, True) == 0
        owner.write(at + 8, np.full(1, 5))
        assert (owner.read(at, 3, np.int64) == [0, 5, 2]).all()
        owner.check()

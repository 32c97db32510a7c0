"""The proxy's core does over the null device what it does over the software GPU, except kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.null.modules import open_loader
from rankfold.proxy.ptx.errors import ModuleError

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
    with pytest.raises(ModuleError, match="no kernel other in the module"):
        loader.function(module, "other")

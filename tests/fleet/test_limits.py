"""The shell that starts rankfold may have limits (`ulimit`): its programs keep them, the devices
are not bound by those that may be raised, and those that bind are named."""

from __future__ import annotations

import sys

import pytest
from cuda import PROGRAMS, build

from support.command import Rankfold, Specs

LIMITS = (
    "from resource import *; print(*map(getrlimit, "
    "(RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_CPU, RLIMIT_NOFILE)))"
)


@pytest.mark.usual("--fsize=1000000-(ulimit -f)")
@pytest.mark.parametrize(
    ("limit", "named"), [("--as=3000000000", "(ulimit -v)"), ("--fsize=1000000", "(ulimit -f)")]
)
def test_a_hard_limit_that_no_device_can_live_with_is_named(
    rankfold: Rankfold, specs: Specs, limit: str, named: str
) -> None:
    rankfold.prefix = ("prlimit", limit)
    specs.job(gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: named in str(rankfold.status()["devices"]))


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["--as=3000000000:", "--fsize=1000000:"])
def test_a_soft_one_binds_the_rank_and_no_device(rankfold: Rankfold, limit: str) -> None:
    """The rank's is what the shell's was. It cannot have a device, and hears which it is."""
    rankfold.prefix = ("prlimit", limit)
    program = build(PROGRAMS / "one_launch.cu")
    run = rankfold.run("run", "--world-size", "1", "--", str(program))
    option = "-v" if "--as" in limit else "-f"
    assert run.stdout == "cudaErrorNoDevice\n"
    assert f"(raise ulimit {option})" in run.stderr
    told = rankfold("run", "--world-size", "1", "--", sys.executable, "-c", LIMITS)
    assert limit.strip("-:").partition("=")[2] in told


@pytest.mark.slow
def test_kernels_are_compiled_where_time_is_limited_and_ranks_have_the_shells_limits(
    rankfold: Rankfold, specs: Specs
) -> None:
    rankfold.environment["RANKFOLD_CACHE"] = str(specs.folder / "kernels")  # nothing is in it
    rankfold.prefix = ("prlimit", "--cpu=100:200", "--nofile=300:400")
    run = ("run", "--world-size", "1", "--")
    assert rankfold(*run, str(build(PROGRAMS / "one_launch.cu"))) == "cudaSuccess\n"

    assert "(100, 200) (300, 400)" in rankfold(*run, sys.executable, "-c", LIMITS)

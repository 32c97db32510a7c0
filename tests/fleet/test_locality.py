"""A small job is moved so that a job has devices of one node; both compute what undisturbed ones
do."""

from __future__ import annotations

from cuda import PROGRAMS, build

from support.command import Rankfold, Specs

from .neighbour import Neighbour

POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec:
  devices:
    - {type: soft, count: 2, memory: 64MiB, domain: rack, node: a}
    - {type: soft, count: 2, memory: 64MiB, domain: rack, node: b}
"""
A, B = ["local/soft-0", "local/soft-1"], ["local/soft-2", "local/soft-3"]


def test_a_small_job_makes_way_for_a_job_of_one_node(rankfold: Rankfold, specs: Specs) -> None:
    program = build(PROGRAMS / "until_told.cu")
    small = Neighbour(rankfold, specs, program, ranks=2, name="small")
    wide = Neighbour(rankfold, specs, program, ranks=2, name="wide")
    specs.write("pool.yaml", POOL)
    end = specs.folder / "end-first"
    specs.program(["sh", "-c", f"until [ -e {end} ]; do sleep 0.05; done"], "first")
    specs.job("second", gpus=1, ranks=1, extra="minRuntime: 10h")
    small.apply(1)
    others = [rankfold.job(name)["placement"]["0"] for name in ("first", "second")]
    assert sorted(others) == A and small.devices() == {B[0]}, "each node is filled first"
    end.touch()
    rankfold.until(lambda: rankfold.job("first")["phase"] == "Succeeded")
    small.continues()
    pids = small.pids()

    wide.describe(2, "locality: node")
    folder = str(specs.folder)
    moves = "small: moves, on 1 device as before (defragmentation: makes way for wide on node b)"
    assert moves in rankfold("plan", "-f", folder)
    rankfold("apply", "-f", folder, "--wait")
    assert wide.devices() == set(B) and small.devices() == {others[0]}
    small.continues()
    wide.continues()
    assert small.pids() == pids, "the same processes"
    (moved,) = (each for each in rankfold.job("small")["changes"] if each["from"])
    assert (moved["from"], moved["to"], moved["cause"]) == (1, 1, "defragmentation")
    assert "moved to other devices in " in rankfold("events")
    assert "small" in rankfold("usage") and "defragmentation" in rankfold("usage")
    assert "locality:     one node" in rankfold("describe", "wide")
    assert "rack/b" in rankfold("status")
    specs.finish_jobs()
    small.finish()
    wide.finish()

"""The elastic runtime refuses scripts that it cannot run with the bits of stock PyTorch, with rank
and reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.conftest import Python

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
CHECKS = (
    "worlds futures end_of_backward schedulers buckets reducers compiled graphs loaders exceptions "
    "modules"
)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sparse", "sparse gradients"),
        ("join", "Join (uneven inputs)"),
        ("mixed_precision", "mixed_precision of DistributedDataParallel"),
        ("power_sgd", "communication hooks of DistributedDataParallel (PowerSGD)"),
        ("closure", "an optimizer that calls a closure (LBFGS, for example)"),
        ("zero", "ZeroRedundancyOptimizer: ranks have different states"),
        ("fsdp", "a model of type FullyShardedDataParallel"),
        ("compiled", "torch.compile"),
        ("compiled_model", "torch.compile"),
        ("compiled_loss", "torch.compile"),
        ("compiled_later", "torch.compile"),
        ("graph", "CUDA graphs"),
        ("graphed", "CUDA graphs"),
        ("loader_state", "state_dict of elastic.steps: saved state has the position already"),
        ("loader_state_loaded", "load_state_dict of elastic.steps: saved state has the position"),
        ("iterable", "an iterable dataset"),
        ("stateful", "a Positioned: its state would not know the position; pass a DataLoader"),
        ("spawn", "data workers started with spawn: use fork"),
        ("collective", "the collective reduce"),
        ("group", "dist.new_group"),
        ("product", "all-reduce with RedOpType.PRODUCT"),
        ("wrapped_twice", "a second elastic.wrap of one optimizer"),
        ("data_set", "rank 0 has set p.data of a parameter since elastic.wrap"),
        ("optimizer_sets_data", "Replacing, which sets p.data of parameters"),
        ("deterministic", "torch.use_deterministic_algorithms: a default of the whole process"),
        ("precision", "torch.set_float32_matmul_precision: a default of the whole process"),
        ("unsaved", "elastic.local: file of type TextIOWrapper cannot be saved"),
    ],
)
def test_a_script_is_refused_with_rank_and_reason(
    python: Python, tmp_path: Path, name: str, reason: str
) -> None:
    command = ("-m", "rankfold.elastic", "run", "--world=2", "--schedule=0:1,2:2")
    done = python(*command, "--state", tmp_path, HERE / "refused.py", name)
    errors = "".join(path.read_text() for path in sorted(tmp_path.glob("rank-*.err")))
    assert done.returncode == 1, errors
    assert f"uses what the elastic runtime refuses: {reason}" in errors


def test_private_names_of_pytorch_have_the_meaning_that_the_runtime_expects(
    python: Python,
) -> None:
    done = python(HERE / "private_names.py")
    assert (done.returncode, done.stdout) == (0, f"{CHECKS}\n"), done.stderr

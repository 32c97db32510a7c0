"""Compares PyTorch's operators on the device with the CPU: an ordinary program, without rankfold.

Usage: operator_rank.py PLAN RESULTS. PLAN is JSON: a list of cases, "samples" (how many of each
operator) and "limit_s" (seconds for one case). A case is [name, dtype, direction]; the name is
that of PyTorch's OpInfo database, which also has the inputs and the tolerances. Each result is one
line of JSON, appended to RESULTS after a line that names the case that begins, so that a crash or
a time-out is attributed to its case.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

# PyTorch's test utilities import the builder of C++ extensions, which needs setuptools.
sys.modules["torch.utils.cpp_extension"] = types.ModuleType("torch.utils.cpp_extension")

import torch  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_utils import TestCase  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

DEVICE = "cuda"
SEED = 36
CANDIDATES = 100  # samples of an operator from which some are chosen
BROKEN = 3  # exit status: the CUDA context is lost, and the other cases need another process
REFUSED = ("cuFFT", "cusolver", "cusparse", "NVRTC")
# Among equal values any position may be chosen: only the values are compared.
ANY_OF_EQUALS = ("kthvalue", "mode", "sort", "topk")
RANDOM = ("randint", "randn")  # which set a seed of their own each time
ON_CPU = ("tensor_split",)  # its arguments remain on the CPU
Case = tuple[str, str, str]


class Uncomparable(Exception):
    """The CPU computes nothing to compare with, or PyTorch has no kernel for the device."""


class Comparison(TestCase):
    """PyTorch's assertEqual, with the tolerances and the skips of PyTorch's own comparison of a
    device with the CPU (TestCommon.test_compare_cpu); float64 and bfloat16, which that does not
    compare, have the tolerances of the type."""

    def __init__(self, op: Any, dtype: torch.dtype):
        super().__init__("run")
        self.skipped = ""
        # The type's tolerances are the least ones; test_compare_cpu gives these.
        self.precision = self.rel_tol = 0.0 if dtype is torch.float64 else 1e-3
        names = ("TestCommon", "test_compare_cpu", "cuda", dtype, {})

        def test(_self: TestCase, *_arguments: Any) -> None:
            pass

        decorated: Any = test
        for decorator in op.get_decorators(*names):
            decorated = decorator(decorated)
        if getattr(decorated, "__unittest_skip__", False):
            self.skipped = decorated.__unittest_skip_why__ or "skipped by PyTorch"
        elif getattr(decorated, "__unittest_expecting_failure__", False):
            self.skipped = "PyTorch expects it to fail"
        attributes = vars(test) | getattr(decorated, "__dict__", {})
        absolute = attributes.get("precision_overrides", {}).get(dtype, 0.0)
        self.precision = max(self.precision, absolute)
        if override := attributes.get("tolerance_overrides", {}).get(dtype):
            self.precision = max(self.precision, override.atol)
            self.rel_tol = max(self.rel_tol, override.rtol)


def operator_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


OPERATORS = {operator_name(op): op for op in op_db}


def on_device(value: Any) -> Any:
    """Returns the same arguments with tensors on the device; a tensor that requires a gradient is
    a leaf of its own there."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            with torch.no_grad():
                return leaf.to(DEVICE).requires_grad_(leaf.requires_grad)
        if isinstance(leaf, (str, torch.device)) and str(leaf) == "cpu":
            return DEVICE
        return leaf

    return tree_map(move, value)


def choose(op: Any, dtype: torch.dtype, gradient: bool, number: int) -> list[Any]:
    """Returns `number` of the operator's own samples: the first and others evenly apart."""
    torch.manual_seed(SEED)
    samples = list(islice(op.sample_inputs("cpu", dtype, requires_grad=gradient), CANDIDATES))
    if len(samples) <= number:
        return samples
    return [samples[index * len(samples) // number] for index in range(number)]


def outputs_of(op: Any, sample: Any, arguments: tuple[Any, Any, Any], seed: int = SEED) -> Any:
    torch.manual_seed(seed)
    given, args, kwargs = arguments
    return sample.output_process_fn_grad(op(given, *args, **kwargs))


def gradients(outputs: Any, arguments: Any, given: list[Any] | None = None) -> list[Any]:
    """Returns the gradients of all inputs for the same random gradient of the outputs, or for
    `given`."""
    wanted = [o for o in tree_leaves(outputs) if isinstance(o, torch.Tensor) and o.requires_grad]
    inputs = [i for i in tree_leaves(arguments) if isinstance(i, torch.Tensor) and i.requires_grad]
    if not wanted or not inputs:
        return []
    there = [
        each.to(o.device, o.dtype)
        for each, o in zip(given or random_like(wanted), wanted, strict=True)
    ]
    return list(torch.autograd.grad(wanted, inputs, there, allow_unused=True))


def random_like(outputs: Any) -> list[Any]:
    """Returns a random gradient for each output that has one."""
    torch.manual_seed(SEED)
    wanted = [o for o in tree_leaves(outputs) if isinstance(o, torch.Tensor) and o.requires_grad]
    return [torch.randn(o.shape, dtype=o.dtype) for o in wanted]


def cases_of(op: Any) -> Iterator[Case]:
    """Yields the cases of an operator that both devices support."""
    name = operator_name(op)
    for dtype in ("float32", "bfloat16", "int64", "float64"):
        kind = getattr(torch, dtype)
        if kind in op.supported_dtypes("cuda") and kind in op.supported_dtypes("cpu"):
            yield name, dtype, "forward"
            both = op.supported_backward_dtypes("cuda") & op.supported_backward_dtypes("cpu")
            if op.supports_autograd and kind in both and kind.is_floating_point:
                yield name, dtype, "backward"


def compare(case: Case, number: int) -> tuple[str, str, int]:
    """Returns the result, its reason and how many samples were compared."""
    name, dtype_name, direction = case
    op, dtype = OPERATORS[name], getattr(torch, dtype_name)
    backward = direction == "backward"
    comparison = Comparison(op, dtype)
    samples = choose(op, dtype, backward, number)
    for sample in samples:
        arguments = (sample.input, sample.args, sample.kwargs)
        moved = on_device(arguments)
        if op.name in ON_CPU:
            moved = (moved[0], *arguments[1:])
        try:
            expected = outputs_of(op, sample, arguments)
        except (RuntimeError, NotImplementedError) as error:
            raise Uncomparable(f"the CPU raises {type(error).__name__}: {error}") from error
        try:
            computed = outputs_of(op, sample, moved)
        except NotImplementedError as error:
            raise Uncomparable(f"PyTorch has no kernel for CUDA: {error}") from error
        torch.cuda.synchronize()
        if comparison.skipped:
            continue
        given = random_like(expected) if backward else []
        if backward:
            expected, computed = gradients(expected, arguments), gradients(computed, moved)
        elif op.name in ANY_OF_EQUALS:
            expected, computed = expected[0], computed[0]
        elif op.name == "argsort":
            dim = sample.kwargs.get("dim", sample.args[0] if sample.args else -1)
            expected = torch.take_along_dim(sample.input, expected, dim)
            computed = torch.take_along_dim(sample.input, computed.cpu(), dim)
        try:
            comparison.assertEqual(computed, expected, exact_dtype=dtype is not torch.bfloat16)
        except AssertionError:
            if is_random(op, sample, arguments, comparison):
                raise Uncomparable("the CPU's results are random") from None
            if backward and op.name in ANY_OF_EQUALS and has_equals(sample.input):
                raise Uncomparable("equal values have their gradients in any order") from None
            if not as_near(op, sample, arguments, expected, computed, given):
                raise
    if comparison.skipped:
        return "ran", f"not compared: {comparison.skipped}", len(samples)
    return "passed", "", len(samples)


def as_near(
    op: Any, sample: Any, arguments: Any, expected: Any, computed: Any, given: list[Any]
) -> bool:
    """Returns True if results in bfloat16 are at most twice as far as the CPU's from those that the
    CPU computes in float32. A kernel may round intermediate results, or not, as the CPU's does.
    `given`: the gradient of the outputs, if the results are gradients."""

    def in_float(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.bfloat16:
            return leaf.detach().cpu().float().requires_grad_(leaf.requires_grad)
        return leaf

    def farthest(results: Any) -> float:
        pairs = zip(tree_leaves(results), tree_leaves(exact), strict=True)
        return max(
            (
                float((in_float(r).detach().cpu() - e.detach()).abs().max())
                for r, e in pairs
                if e is not None and e.numel()
            ),
            default=0.0,
        )

    if not any(
        isinstance(leaf, torch.Tensor) and leaf.dtype is torch.bfloat16
        for leaf in tree_leaves(expected)
    ):
        return False
    in_floats = tree_map(in_float, arguments)
    exact = outputs_of(op, sample, in_floats)
    if given:
        exact = gradients(exact, in_floats, given)
    return farthest(computed) <= 2 * farthest(expected)


def has_equals(values: Any) -> bool:
    return bool(values.detach().unique().numel() < values.numel())


def is_random(op: Any, sample: Any, arguments: tuple[Any, Any, Any], check: Comparison) -> bool:
    """Returns True if the CPU computes something else from another seed."""
    if op.name in RANDOM:
        return True
    first = outputs_of(op, sample, arguments)
    try:
        check.assertEqual(outputs_of(op, sample, arguments, SEED + 1), first)
    except AssertionError:
        return True
    return False


def examine(case: Case, number: int) -> dict[str, Any]:
    """Runs a case and returns its result as a row."""
    since, detail = time.monotonic(), ""
    try:
        result, reason, samples = compare(case, number)
    except (unittest.SkipTest, Uncomparable) as skip:
        result, reason, samples = "ran", " ".join(f"not compared: {skip}".split())[:400], 0
    except AssertionError as error:
        result, reason, samples = "differs", " ".join(str(error).split())[:400], 0
    except Exception as error:  # noqa: BLE001 - whatever an operator raises is its result
        text = f"{type(error).__name__}: {error}"
        result = "library" if any(word in text for word in REFUSED) else "failed"
        reason, samples, detail = " ".join(text.split())[:400], 0, traceback.format_exc()[-3000:]
    row = {"case": case, "result": result, "reason": reason, "samples": samples}
    return row | {"seconds": round(time.monotonic() - since, 1), "detail": detail}


def healthy() -> bool:
    try:
        torch.zeros(1, device=DEVICE)
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def main() -> int:
    plan = json.loads(Path(sys.argv[1]).read_text())
    warnings.simplefilter("ignore")
    cudnn = torch.backends.cudnn.flags(enabled=bool(plan.get("cudnn")))
    with cudnn, Path(sys.argv[2]).open("a", buffering=1) as results:
        if plan["cases"] == "list":
            for op in op_db:
                results.write(json.dumps(list(cases_of(op))) + "\n")
            return 0
        for listed in plan["cases"]:
            case = tuple(listed)
            results.write(json.dumps({"begin": case}) + "\n")
            faulthandler.dump_traceback_later(plan["limit_s"], exit=True)
            row = examine(case, plan["samples"])
            faulthandler.cancel_dump_traceback_later()
            results.write(json.dumps(row) + "\n")
            if row["result"] not in ("passed", "ran") and not healthy():
                os._exit(BROKEN)
    return 0


if __name__ == "__main__":
    sys.exit(main())

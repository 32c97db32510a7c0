"""Whether a job may use several types of CPU: what D2 costs a model, and whether comparisons cover
its operators.

Two processes measure each operator of one step, one with the code path of D2 and one without. They
take turns, and the least of several times counts, so that other load changes little.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import determinism, timing
from .errors import NotSupported
from .operators import Recorded, recorded

ROUNDS = 5
SLOWER, SHARE = 1.05, 0.01  # an operator is reported from this factor and this part of the time on
# Primitives of oneDNN whose results do not depend on its choice of blocks.
ELEMENTWISE = frozenset({"binary", "eltwise", "reorder"})
NAMESPACES = ("aten", "prim", "prims")  # PyTorch's own operators


class Operator(NamedTuple):
    """An operator of a step: how often it is called, in which modules; CPU seconds of all these
    calls without and with D2; whether both have the same bits."""

    name: str
    calls: int
    modules: tuple[str, ...]
    plain_s: float
    pinned_s: float
    same_bits: bool

    @property
    def factor(self) -> float:
        return self.pinned_s / self.plain_s

    def __str__(self) -> str:
        where = ", ".join(self.modules) or "the backward pass"
        return (
            f"{self.name}: {self.factor:.2f} times as long with D2 ({1e3 * self.plain_s:.2f} ms, "
            f"{1e3 * self.pinned_s:.2f} ms), calls: {self.calls}, in {where}"
        )


class Eligibility(NamedTuple):
    """`factor`: CPU time of a step's operators with D2 over that without. `slower`: operators that
    D2 slows down, the most costly first. `differing`: names of operators that have other bits
    without D2, so that types of CPU differ at D1. `reasons`: why the job may not mix types."""

    factor: float
    slower: tuple[Operator, ...]
    differing: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def mixes(self) -> bool:
        """Whether the job may use several types of CPU, with D2."""
        return not self.reasons

    def __str__(self) -> str:
        may = "may use several types of CPU with D2" if self.mixes else "keep to one type of CPU"
        lines = [f"{may}: a step takes {self.factor:.2f} times as long with D2"]
        lines += [f"  no: {reason}" for reason in self.reasons]
        lines += [f"  {each}" for each in self.slower]
        if self.differing:
            lines.append(f"  other bits without D2: {', '.join(self.differing)}")
        return "\n".join(lines)


class _Process:
    """Runs operators; see `timing`."""

    def __init__(self, path: Path, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", timing.__name__, str(path)],
            env={**variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process that measures operators exited: {self._process.wait()}")
        return line

    def ask(self, number: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(number, file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.answer())
        return found

    def close(self) -> None:
        with self._process as process:
            process.kill()


@contextlib.contextmanager
def _processes(calls: list[Any]) -> Iterator[tuple[_Process, _Process]]:
    """One without and one with the code path of D2."""
    path_of_d2 = determinism.CODE_PATH.items()
    plain = dict(each for each in os.environ.items() if each not in path_of_d2)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        path = Path(name) / "operators.pt"
        torch.save([tuple(each) for each in calls], path)
        found = []
        for variables in (plain, {**plain, **determinism.CODE_PATH}):
            found.append(_Process(path, variables))
            stack.callback(found[-1].close)
        for each in found:
            each.answer()  # READY
        yield found[0], found[1]


def _measured(operators: list[Recorded]) -> tuple[list[Operator], list[str]]:
    """The operators that can be measured; and why the job may not mix types."""
    found, reasons, onednn = [], [], set()
    with _processes([each.call for each in operators]) as processes:
        for number, each in enumerate(operators):
            pairs = [[side.ask(number) for side in processes] for _ in range(ROUNDS)]
            name = each.call.name
            if error := next((a["error"] for pair in pairs for a in pair if "error" in a), None):
                reasons.append(f"{name} cannot be measured: {error}")
                continue
            plain, pinned = (
                each.calls * min(answer["cpu_s"] for answer in side)
                for side in zip(*pairs, strict=True)
            )
            same = len({answer["digest"] for pair in pairs for answer in pair}) == 1
            onednn |= {name} if {*pairs[0][1]["onednn"]} - ELEMENTWISE else set()
            found.append(Operator(name, each.calls, each.modules, plain, pinned, same))
    if onednn:
        reasons.append(
            f"{', '.join(sorted(onednn))}: oneDNN also chooses by the sizes of caches, and CPUs "
            "with other caches have not been compared"
        )
    return found, reasons


def _check_devices(model: torch.nn.Module) -> None:
    """Raises NotSupported."""
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        if each.device.type != "cpu":
            raise NotSupported(
                f"{name} on a device of type {each.device.type}: comparisons cover CPUs only"
            )


def examine(
    model: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], at_most: float
) -> Eligibility:
    """See rankfold.elastic.eligible."""
    if not isinstance(model, torch.nn.Module):
        raise NotSupported(f"elastic.eligible of a {type(model).__name__}: pass a torch.nn.Module")
    if not isinstance(at_most, (int, float)) or not at_most > 0:
        raise NotSupported(f"at_most must be a number above 0, not {at_most!r}")
    if missing := determinism.missing():
        raise NotSupported(f"D2 on this CPU: it has no {' and no '.join(missing)}")
    _check_devices(model)
    operators = recorded(model, inputs, named)
    own = [each for each in operators if each.call.name.partition(".")[0] in NAMESPACES]
    reasons = [
        f"{name}: an operator of another library, whose code path D2 does not limit"
        for name in sorted({each.call.name for each in operators} - {e.call.name for e in own})
    ]
    found, unmeasured = _measured(own)
    plain = sum(each.plain_s for each in found)
    factor = sum(each.pinned_s for each in found) / plain if plain else 1.0
    slower = [e for e in found if e.factor >= SLOWER and e.pinned_s >= SHARE * plain]
    slower.sort(key=lambda each: each.plain_s - each.pinned_s)
    reasons += unmeasured
    if factor > at_most:
        reasons.append(f"D2 takes {factor:.2f} times as long, which is more than {at_most}")
    differing = sorted({each.name for each in found if not each.same_bits})
    return Eligibility(factor, tuple(slower), tuple(differing), tuple(reasons))

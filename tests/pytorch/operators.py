"""Runs PyTorch's operators in a rank and prints a table: `make test-torch T=ops`.

operator_rank.py compares each operator with the CPU. The results are appended to a file, and a run
that was interrupted continues where it stopped; `--again` repeats what did not pass. operators.yaml
lists the operators that may fail, each with its reason. The run fails if another one does, and if a
listed one passes: the list may only shrink.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / "build/torch/python"
RANK = HERE / "operator_rank.py"
DTYPES = ("float32", "bfloat16", "int64", "float64")
DIRECTIONS = ("forward", "backward")
START_S = 300.0  # for a rank to import torch on a busy machine
Case = tuple[str, str, str]


@dataclass
class Results:
    """The last result of each case. `path`: its rows, as operator_rank.py writes them."""

    path: Path
    rows: dict[Case, dict[str, Any]] = field(default_factory=dict)
    begun: Case | None = None  # the case that began last and has no result
    _bytes: int = 0  # of the file, read so far

    def read(self) -> set[Case]:
        """Reads what the file has more than before; returns the cases whose results are new."""
        if not self.path.exists():
            return set()
        with self.path.open("rb") as file:
            file.seek(self._bytes)
            text = file.read()
        self._bytes += len(text)
        fresh = set()
        for line in text.decode(errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # an empty line, or the process was killed while it wrote
                continue
            if "begin" in row:
                self.begun = _case(row["begin"])
            else:
                self.rows[_case(row["case"])] = row
                fresh.add(_case(row["case"]))
                self.begun = None
        return fresh

    def append(self, case: Case, result: str, reason: str) -> None:
        row = {"case": case, "result": result, "reason": reason, "samples": 0, "seconds": 0}
        with self.path.open("a") as file:
            file.write("\n" + json.dumps(row) + "\n")


def _case(listed: Sequence[str]) -> Case:
    name, dtype, direction = listed
    return name, dtype, direction


def list_cases(folder: Path) -> list[Case]:
    """Returns the cases of every operator that PyTorch's database has, from a file if there is."""
    known = folder / "operator-cases.jsonl"
    if not known.exists():
        fresh, plan = folder / "operator-cases.new", folder / "operator-cases.plan"
        fresh.unlink(missing_ok=True)
        plan.write_text(json.dumps({"cases": "list"}))
        subprocess.run([PYTHON, RANK, plan, fresh], check=True)
        plan.unlink()
        fresh.rename(known)
    return [_case(case) for line in known.read_text().splitlines() for case in json.loads(line)]


def wanted(cases: Iterable[Case], arguments: argparse.Namespace) -> list[Case]:
    """Returns the cases that the options name, dtype by dtype."""
    chosen = [
        case
        for case in cases
        if case[1] in arguments.dtypes
        and case[2] in arguments.directions
        and any(fnmatch.fnmatchcase(case[0], pattern) for pattern in arguments.operators or "*")
    ]
    order = {pair: at for at, pair in enumerate((d, k) for k in DIRECTIONS for d in DTYPES)}
    return sorted(chosen, key=lambda case: order[case[1:]])


def run_rank(cases: list[Case], results: Results, arguments: argparse.Namespace) -> str:
    """Runs cases in one job of one rank until it ends; returns the end of what it printed."""
    with tempfile.TemporaryDirectory(prefix="rankfold-operators-") as folder:
        plan = Path(folder) / "plan.json"
        content = {"cases": cases, "samples": arguments.samples, "limit_s": arguments.limit_s}
        plan.write_text(json.dumps(content))
        output = Path(folder) / "output"
        command: list[str | Path] = [
            ROOT / ".venv/bin/rankfold",
            "run",
            "--world-size",
            "1",
            "--gpus",
            "1",
        ]
        command += ["--device", "soft", "--memory", "4GiB", "--compute-capability", "9.0"]
        command += ["--name", f"operators-{os.getpid()}", "--", PYTHON, RANK, plan, results.path]
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
            try:
                process.wait(START_S + len(cases) * (arguments.limit_s + 1))
            finally:  # also when this run is interrupted or terminated
                if process.poll() is None:
                    process.terminate()
                    process.wait(60)
        return output.read_text(errors="replace")[-3000:]


def run(cases: list[Case], results: Results, arguments: argparse.Namespace) -> None:
    """Runs all cases that have no result. A case with which the rank ends is a result, too, so that
    each job but the last adds one at least."""
    results.read()
    results.begun = None  # of a run that was interrupted
    again = {case for case in cases if arguments.again and _wrong(results.rows.get(case))}
    left = [case for case in cases if case in again or case not in results.rows]
    while left:
        print(f"operators: {len(left)} cases left", file=sys.stderr, flush=True)
        output = run_rank(left, results, arguments)
        done = results.read()
        if case := results.begun:
            timed_out = "Timeout (" in output
            reason = f"no result in {arguments.limit_s:g} s" if timed_out else "the rank ended"
            results.append(case, "timed out" if timed_out else "crashed", f"{reason}: {output}")
            done |= results.read()
        if not done:
            raise SystemExit(f"operators: the rank ended before its first case: {output}")
        left = [case for case in left if case not in done]


def _wrong(row: dict[str, Any] | None) -> bool:
    """Whether a case failed. "ran": PyTorch compares it with nothing. "library": it was refused."""
    return row is not None and row["result"] not in ("passed", "ran", "library")


def table(results: Results, cases: list[Case]) -> str:
    """Returns the number of cases by dtype, direction and result."""
    kinds = ("passed", "ran", "library", "differs", "failed", "timed out", "crashed")
    counts: Counter[tuple[str, str, str]] = Counter()
    for case in cases:
        if row := results.rows.get(case):
            counts[case[1], case[2], row["result"]] += 1
    lines = [f"{'':21}" + "".join(f"{kind:>10}" for kind in kinds)]
    for direction in DIRECTIONS:
        for dtype in DTYPES:
            numbers = [counts[dtype, direction, kind] for kind in kinds]
            if any(numbers):
                row_text = "".join(f"{number:>10}" for number in numbers)
                lines.append(f"{dtype + ' ' + direction:21}" + row_text)
    return "\n".join(lines)


def judge(results: Results, cases: list[Case], listed: dict[str, str]) -> list[str]:
    """Returns what is wrong: a case that failed and is not listed, an entry whose cases passed in
    this run. `listed`: reasons, by the first words of cases: an operator, it and a dtype, or a
    case."""
    known = {case: row for case in cases if (row := results.rows.get(case))}
    entries = {
        tuple(words.split()): [case for case in known if _in(case, words)] for words in listed
    }
    excused = {case for cases in entries.values() for case in cases}
    wrong = [
        f"{' '.join(case)}: {row['result']}: {row['reason'][:200]}"
        for case, row in known.items()
        if _wrong(row) and case not in excused
    ]
    for words, its_cases in entries.items():
        if its_cases and not any(_wrong(known[case]) for case in its_cases):
            wrong.append(f"{' '.join(words)} passes: remove it from operators.yaml")
    return wrong


def _in(case: Case, words: str) -> bool:
    return f"{' '.join(case)} ".startswith(words + " ")


def share(results: Results, cases: list[Case]) -> tuple[int, int]:
    """Returns how many operators pass in every case, and how many need no refused library."""
    known = {case: row for case in cases if (row := results.rows.get(case))}
    refused = {case[0] for case, row in known.items() if row["result"] == "library"}
    served = {case[0] for case in known} - refused
    failed = {case[0] for case, row in known.items() if _wrong(row)}
    return len(served - failed), len(served)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("operators", nargs="*", help="names or patterns; default: all")
    add("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    add("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    add("--samples", type=int, default=2, help="of each operator")
    add("--limit-s", type=float, default=300.0, help="for one case")
    add("--again", action="store_true", help="repeat the cases that did not pass")
    add("--table", action="store_true", help="run nothing")
    add("--results", type=Path, default=ROOT / "build/torch/operators.jsonl")
    arguments = parser.parse_args(argv)
    arguments.results = arguments.results.absolute()
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if not PYTHON.exists():
        print("operators: build/torch/python is missing: run `make torch`", file=sys.stderr)
        return 2
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.results)
    cases = wanted(list_cases(PYTHON.parent), arguments)
    if not arguments.table:
        run(cases, results, arguments)
    results.read()
    print(table(results, cases))
    passed, served = share(results, cases)
    if served:
        print(f"{passed} of {served} operators pass ({passed / served:.1%}) without the refused")
    wrong = judge(results, cases, yaml.safe_load((HERE / "operators.yaml").read_text()) or {})
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())

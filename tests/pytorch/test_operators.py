"""The run of PyTorch's operators: a rank that ends, a run that continues, the list of failures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from . import operators
from .operators import Case, Results

pytestmark = pytest.mark.unit

ADD: Case = ("add", "float32", "forward")
EXP: Case = ("exp", "float32", "forward")
SVD: Case = ("svd", "float32", "forward")
CASES = [ADD, EXP, SVD]


def row(case: Case, result: str, reason: str = "") -> str:
    return json.dumps({"case": case, "result": result, "reason": reason, "samples": 1}) + "\n"


def begin(case: Case) -> str:
    return json.dumps({"begin": case}) + "\n"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results.jsonl")


def options(*words: str) -> argparse.Namespace:
    return operators.parse(words)


def test_a_crash_is_the_result_of_the_case_that_had_begun(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank ends in exp, the second does the rest."""
    outputs = [
        (begin(ADD) + row(ADD, "passed") + begin(EXP) + '{"case": ["ex', "Segmentation fault"),
        (begin(SVD) + row(SVD, "library"), ""),
    ]
    given = []

    def rank(cases: list[Case], results: Results, _: argparse.Namespace) -> str:
        given.append(list(cases))
        text, output = outputs[len(given) - 1]
        with results.path.open("a") as file:
            file.write(text)
        return output

    monkeypatch.setattr(operators, "run_rank", rank)
    operators.run(CASES, results, options())
    assert given == [CASES, [SVD]]
    assert {case: row["result"] for case, row in results.rows.items()} == {
        ADD: "passed",
        EXP: "crashed",
        SVD: "library",
    }
    assert "Segmentation fault" in results.rows[EXP]["reason"]


def test_a_time_out_is_not_a_crash(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(cases: list[Case], results: Results, _: argparse.Namespace) -> str:
        with results.path.open("a") as file:
            file.write(begin(cases[0]))
        return "Timeout (0:05:00)!\nThread 0x1 (most recent call first):"

    monkeypatch.setattr(operators, "run_rank", rank)
    operators.run([ADD], results, options())
    assert results.rows[ADD]["result"] == "timed out"


def test_a_rank_that_begins_no_case_stops_the_run(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "run_rank", lambda *_: "ModuleNotFoundError: torch")
    with pytest.raises(SystemExit, match="before its first case: ModuleNotFoundError"):
        operators.run([ADD], results, options())


def test_a_run_continues_where_it_stopped(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.path.write_text(row(ADD, "passed") + row(EXP, "failed"))
    given = []

    def rank(cases: list[Case], results: Results, _: argparse.Namespace) -> str:
        given.append(list(cases))
        with results.path.open("a") as file:
            file.write("".join(row(case, "passed") for case in cases))
        return ""

    monkeypatch.setattr(operators, "run_rank", rank)
    operators.run(CASES, results, options())
    operators.run(CASES, results, options("--again"))
    operators.run(CASES, results, options("--again"))
    assert given == [[SVD], [EXP]]  # nothing is left for the third


def test_the_list_may_only_shrink(results: Results) -> None:
    results.path.write_text(row(ADD, "passed") + row(EXP, "differs", "0.1 is not 0.2"))
    results.read()
    assert operators.judge(results, CASES, {"exp": "…"}) == []
    assert operators.judge(results, CASES, {}) == ["exp float32 forward: differs: 0.1 is not 0.2"]
    assert operators.judge(results, CASES, {"exp": "…", "add": "…"}) == [
        "add passes: remove it from operators.yaml"
    ]
    assert operators.judge(results, CASES, {"exp": "…", "svd": "…"}) == []  # it did not run
    assert operators.judge(results, CASES, {"exp float32": "…", "ad": "…"}) == []
    assert operators.judge(results, CASES, {"exp float32 forward": "…"}) == []
    assert operators.judge(results, CASES, {"exp float32 backward": "…"}) != []
    assert operators.judge(results, CASES, {"exp bfloat16": "…"}) != []


def test_an_operator_that_needs_a_refused_library_is_not_counted(results: Results) -> None:
    results.path.write_text(
        row(ADD, "passed") + row(EXP, "failed") + row(SVD, "library", "cusolver")
    )
    results.read()
    assert operators.share(results, CASES) == (1, 2)
    assert operators.judge(results, CASES, {"exp": "…"}) == []


def test_options_choose_cases_dtype_by_dtype() -> None:
    cases = [("add", "int64", "forward"), ("addmm", "float32", "backward"), ADD, EXP]
    assert operators.wanted(cases, options("add*")) == [
        ADD,
        ("add", "int64", "forward"),
        ("addmm", "float32", "backward"),
    ]
    chosen = options("--dtypes", "float32", "--directions", "forward")
    assert operators.wanted(cases, chosen) == [ADD, EXP]

"""The reconciler may be killed at any named point; the next one arrives at the same end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rankfold.reconciler
from rankfold.reconciler.faults import POINTS
from support.command import Rankfold, Specs

SOURCES = Path(rankfold.reconciler.__file__).parent


def test_every_point_of_the_table_is_in_the_code_and_no_other() -> None:
    text = "".join(file.read_text() for file in SOURCES.glob("*.py"))
    assert set(re.findall(r'point\("([a-z.]+)"\)', text)) | {
        f"{op}.partly" for op in re.findall(r'_tell_all\([a-z.]+, "([a-z]+)"', text)
    } == set(POINTS)


# One of each kind by default; `make test-slow` walks the whole table.
USUAL = ("start.partly", "place.journalled", "place.partly", "barrier.partly", "detach.partly")


@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=() if p in USUAL else pytest.mark.slow) for p in sorted(POINTS)],
)
def test_killed_at(point: str, rankfold: Rankfold, specs: Specs) -> None:
    """Start, fold, suspend, resume, end: the reconciler dies at `point` in every one of them.

    Nobody helps: the command that waits notices, starts another, and goes on waiting.
    """
    token = specs.folder / "die"
    rankfold.environment["RANKFOLD_FAULT"] = f"{point}@{token}"
    died, ranks = 0, []
    for gpus, extra in ((2, ""), (1, ""), (1, "suspend: true"), (2, "")):
        specs.job(gpus=gpus, extra=extra, ranks=2)
        token.touch()
        rankfold("apply", "-f", str(specs.folder), "--wait")
        died += not token.exists()
        job = rankfold.job("gpt")
        assert job["phase"] == ("Suspended" if extra else "Running")
        assert len(set(job["placement"].values())) == (0 if extra else gpus)
        ranks.append([rank["pid"] for rank in job["ranks"]])
    assert all(pids == ranks[0] for pids in ranks), "no rank was started twice"
    token.touch()
    specs.finish_jobs()
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Succeeded")
    died += not token.exists()
    assert died > 0, "the point was never reached"
    token.unlink(missing_ok=True)
    assert rankfold("logs", "gpt").count("is done") == 2

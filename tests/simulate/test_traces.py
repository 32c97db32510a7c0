"""A trace is read as it is, or refused with file, line and column."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.simulator import table
from rankfold.simulator.formats import read
from rankfold.simulator.table import BadTrace
from rankfold.simulator.trace import Kind, TraceJob

pytestmark = pytest.mark.unit

DATA = Path(__file__).parent / "data"
KINDS = [Kind("gpu", 8), Kind("old", 2)]
HEAD = "name,arrival,worldSize,min,max,tier,work\n"
GOOD = "a,0,4,1,4,standard,10\n"
PHILLY = "submit_s,duration_s,gpus,virtual_cluster\n"


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def faults(tmp_path: Path, text: str | bytes, form: str | None = None) -> list[str]:
    path = written(tmp_path, text)
    with pytest.raises(BadTrace) as refused:
        read(path, KINDS, form)
    return [fault.removeprefix(f"{path}:") for fault in refused.value.faults]


# ---- what is read


def test_our_own_format(tmp_path: Path) -> None:
    text = (
        "work,name,arrival,worldSize,min,max,tier,deviceTypes,quota,priority,minRuntime\n"
        '10.5,"a, b",0,4,1,3,premium,old,red,-3,1.5\r\n'
        "1e3,c,2,2,2,2,basic,old gpu,red,0,0\n"
    )
    assert read(written(tmp_path, text), KINDS) == [
        TraceJob("a, b", 0.0, 4, 1, 3, 10.5, 1, "premium", "red", -3, 1.5),
        TraceJob("c", 2.0, 2, 2, 2, 1000.0, 0, "basic", "red"),
    ]


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress((HEAD + GOOD).encode()))
    assert [job.name for job in read(path, KINDS)] == ["a"]


def test_all_jobs_of_the_philly_trace() -> None:
    jobs = read(DATA / "philly/jobs.csv.gz", [Kind("gpu", 128)])
    assert len(jobs) == 82_247
    assert jobs[0] == TraceJob("line-2", 0.0, 8, 8, 8, 2240194.0, quota="7f04ca")
    assert round(sum(job.max * job.work for job in jobs) / 3600) == 978_078  # device-hours
    assert sum(job.max == 1 for job in jobs) / len(jobs) == pytest.approx(0.93, abs=0.005)


# ---- what is refused

REFUSED: dict[str, tuple[str | bytes, list[str]]] = {
    "no rows": (HEAD, ["1:1: -: the trace has no jobs"]),
    "empty": ("", ["1:1: -: the file is empty"]),
    "truncated in a number": (
        HEAD + GOOD + "b,1,4,1,4,standard,10",
        [
            "3:22: -: the last line has no end: the file may be truncated; "
            "add a line end if it is not"
        ],
    ),
    "truncated row": (
        HEAD + "a,0,4,1\n",
        ["2:8: -: has 4 values, the header has 7: the line may be truncated"],
    ),
    "more values than names": (
        HEAD + "a,0,4,1,4,standard,10,1\n",
        ["2:24: -: has 8 values, the header has 7: the line may be truncated"],
    ),
    "unsorted": (
        HEAD + "a,5,4,1,4,standard,10\nb,4,4,1,4,standard,10\n",
        ["3:3: arrival: is before that of line 2: sort the file by arrival"],
    ),
    "negative": (
        HEAD + "a,-1,4,1,4,standard,10\n",
        ["2:3: arrival: must be a number at least 0 and at most 1e+12, not '-1'"],
    ),
    "not a number": (
        HEAD + "a,0,4,1,4,standard,nan\n",
        ["2:20: work: must be a number above 0 and at most 1e+12, not 'nan'"],
    ),
    "infinite": (
        HEAD + "a,0,4,1,4,standard,inf\nb,0,4,1,4,standard,1e999\n",
        [
            "2:20: work: must be a number above 0 and at most 1e+12, not 'inf'",
            "3:20: work: must be a number above 0 and at most 1e+12, not '1e999'",
        ],
    ),
    "zero work": (
        HEAD + "a,0,4,1,4,standard,0\n",
        ["2:20: work: must be a number above 0 and at most 1e+12, not '0'"],
    ),
    "a number as Python writes it": (
        HEAD + "a,1_0,4,1,4,standard,10\n",
        ["2:3: arrival: must be a number at least 0 and at most 1e+12, not '1_0'"],
    ),
    "rounded away": (
        HEAD + "a,1e12,4,1,4,standard,1e-5\n",
        ["2:23: work: is too short, 1e-05 s, for an arrival at 1e+12 s: let the trace begin at 0"],
    ),
    "no value": (
        HEAD + "a,,4,1,4,standard,10\n",
        ["2:3: arrival: must be a number at least 0 and at most 1e+12, not nothing"],
    ),
    "zero ranks": (
        HEAD + "a,0,0,1,1,standard,10\n",
        ["2:5: worldSize: must be a whole number from 1 to 65536, not '0'"],
    ),
    "half a device": (
        HEAD + "a,0,4,0.5,1,standard,10\n",
        ["2:7: min: must be a whole number from 0 to 65536, not '0.5'"],
    ),
    "contradictory range": (
        HEAD + "a,0,4,3,2,standard,10\n",
        ["2:9: max: must be from min (3) to worldSize (4), not 2"],
    ),
    "more devices than ranks": (
        HEAD + "a,0,4,1,5,standard,10\n",
        ["2:9: max: must be from min (1) to worldSize (4), not 5"],
    ),
    "same name twice": (
        HEAD + GOOD + GOOD,
        ["3:1: name: 'a' is also the name of line 2"],
    ),
    "unknown tier": (
        HEAD + "a,0,4,1,4,gold,10\n",
        ["2:11: tier: must be one of premium, standard, basic, not 'gold'"],
    ),
    "wrong priorities": (
        HEAD.replace("\n", ",priority\n")
        + "a,0,4,1,4,basic,10,0.5\nb,0,4,1,4,basic,10,1001\nc,0,4,1,4,basic,10,nan\n",
        [
            "2:20: priority: must be a whole number, not 0.5",
            "3:20: priority: must be a number at least -1000 and at most 1000, not '1001'",
            "4:20: priority: must be a number at least -1000 and at most 1000, not 'nan'",
        ],
    ),
    "negative run time": (
        HEAD.replace("\n", ",minRuntime\n") + "a,0,4,1,4,basic,10,-1\n",
        ["2:20: minRuntime: must be a number at least 0 and at most 1e+12, not '-1'"],
    ),
    "unknown type": (
        HEAD.replace("\n", ",deviceTypes\n") + "a,0,4,1,4,basic,10,new\n",
        ["2:20: deviceTypes: the fleet has gpu, old, not 'new'"],
    ),
    "more than the fleet": (
        HEAD + "a,0,16,9,16,basic,10\n",
        ["2:8: min: needs 9; the fleet has 8 devices of type gpu"],
    ),
    "an unknown locality": (
        HEAD.replace("\n", ",locality\n") + "a,0,4,1,4,basic,10,rack\n",
        ["2:20: locality: must be one of any, domain, node, not 'rack'"],
    ),
    "unknown column": (
        HEAD.replace("work", "wrok") + GOOD,
        [
            "1:37: wrok: there is no such column; known: name, arrival, worldSize, min, max, tier, "
            "work, deviceTypes, quota, priority, minRuntime, demand, locality",
            "1:1: header: the header lacks work",
        ],
    ),
    "column twice": (
        HEAD.replace("\n", ",name\n") + "a,0,4,1,4,basic,10,b\n",
        ["1:42: name: is also column 1"],
    ),
    "not text": (HEAD.encode() + b"\xc3\xa4\xff,0\n", ["2:2: -: not a text file in UTF-8"]),
    "half a character": (HEAD.encode() + b"\xc3\n", ["2:1: -: not a text file in UTF-8"]),
    "a quote that does not end": (
        HEAD + '"a,0,4,1,4,basic,10\n',
        ["2:1: -: not CSV: unexpected end of data"],
    ),
    "control characters": (
        HEAD + "\x1b[2J,0,4,1,4,basic,10\n",
        ["2:1: name: must be a text without blanks around it"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_refused_with_line_and_column(case: str, tmp_path: Path) -> None:
    text, expected = REFUSED[case]
    assert faults(tmp_path, text, "csv") == expected


def test_errors_in_a_philly_trace(tmp_path: Path) -> None:
    text = PHILLY + "5,0,1,a\n4,10,129,b\n"
    assert faults(tmp_path, text) == [
        "2:3: duration_s: must be a number above 0 and at most 1e+12, not '0'",
        "3:1: submit_s: is before that of line 2: sort the file by submit_s",
        "3:6: gpus: needs 129; the fleet has 8 devices of type gpu",
    ]


def test_the_columns_of_a_philly_trace_are_in_order(tmp_path: Path) -> None:
    text = "duration_s,submit_s,gpus,virtual_cluster\n5,0,1,a\n"
    assert faults(tmp_path, text, "philly") == [f"1:1: header: must be {PHILLY.strip()}"]


def test_a_compressed_file_that_ends_early(tmp_path: Path) -> None:
    rows = "".join(f"j{n},{n},4,1,4,basic,{n + 1}\n" for n in range(500))
    packed = gzip.compress((HEAD + rows).encode())
    (fault,) = faults(tmp_path, packed[:-12], "csv")
    assert "the compressed file is damaged or truncated" in fault


def test_the_first_faults_are_enough(tmp_path: Path) -> None:
    found = faults(tmp_path, HEAD + "a,0,4,1,4,gold,0\n" * 100)
    assert len(found) == table.FAULTS_MAX + 1 and found[-1].endswith("the rest is not checked")


def test_a_huge_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ROWS_MAX", 3)
    rows = "".join(f"j{n},0,4,1,4,basic,10\n" for n in range(5))
    assert faults(tmp_path, HEAD + rows, "csv") == [
        "5:1: -: the file has more than 3 rows: simulate a part of it"
    ]


def test_files_that_are_no_regular_ones_are_refused_at_once(tmp_path: Path) -> None:
    """A pipe without a writer would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "pipe", "it is a pipe: save what it gives as a file, and give that"),
        (tmp_path, "it is a folder: give a file in it"),
        (Path("/dev/zero"), "it is no regular file: give one"),
        (tmp_path / "none", "No such file or directory"),
    ):
        for form in (None, "csv"):
            with pytest.raises(BadTrace) as refused:
                read(path, KINDS, form)
            assert refused.value.faults == [f"{path}:1:1: -: cannot be read: {reason}"]


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read every file, so the system's answer is given in its place."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BadTrace) as refused:
        read(tmp_path / "trace.csv", KINDS, "csv")
    assert refused.value.faults == [
        f"{tmp_path}/trace.csv:1:1: -: cannot be read: Permission denied"
    ]


def test_a_huge_line(tmp_path: Path) -> None:
    found = faults(tmp_path, HEAD + "a" * (table.LINE_MAX + 1), "csv")
    assert found == [f"2:1: -: the line has more than {table.LINE_MAX} bytes"]


@given(data=st.binary(max_size=200), form=st.sampled_from([None, "csv", "philly"]))
def test_no_bytes_make_reading_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, form: str | None
) -> None:
    head = PHILLY if form == "philly" else HEAD
    path = tmp_path_factory.getbasetemp() / "bytes.csv"
    for content in (data, head.encode() + data, gzip.compress(data), b"\x1f\x8b" + data):
        path.write_bytes(content)
        try:
            jobs = read(path, KINDS, form)
        except BadTrace as refused:
            assert refused.faults
        else:
            assert jobs

"""`python -m rankfold.elastic run` refuses wrong arguments before it imports PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.elastic import __main__ as run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world", "0"], "--world must be at least 1, not 0"),
        (["--world", "-1", "--processes", "-1"], "--world must be at least 1, not -1"),
        (["--world", "2", "--processes", "3"], "--processes must be between 1 and --world (2)"),
        (["--world", "2", "--processes", "0"], "--processes must be between 1 and --world (2)"),
        (["--world", "1e9"], "invalid int value: '1e9'"),
        (
            ["--world", "2", "--state", "s\udcff"],
            "--state: 's\\udcff' is not UTF-8, which PyTorch n",
        ),
        (["--world", "2", "--state", "script.py"], "--state: [Errno 17] File exists: 'script.py'"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").touch()
    with pytest.raises(SystemExit) as ended:
        run.main(["run", *arguments, "script.py"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_output_of_an_earlier_run_is_removed(tmp_path: Path) -> None:
    """It may have had more ranks. Other files stay."""
    (tmp_path / "script.py").touch()
    for name in ("rank-0.out", "rank-12.err", "rank-x.out", "mine"):
        (tmp_path / name).touch()
    with pytest.raises(SystemExit):
        run.main(["run", "--world", "1", "--state", str(tmp_path), str(tmp_path / "none.py")])
    assert (tmp_path / "rank-0.out").exists(), "a refused run removes nothing"
    run.prepare_folder(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "rank-x.out", "mine"}

"""Promise: a command prints a kernel's compiled code, and RANKFOLD_COMPILER_OUTPUT keeps that of a
job."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankfold.proxy.hal.soft.compiler import cache, output
from rankfold.proxy.hal.soft.compiler.__main__ import main
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.errors import ModuleError
from softgpu.test_compiler import folder, made, new, objects, result, text  # noqa: F401

FILES = {"name", "kernel.ptx", "flat.txt", "lowered.ll", "optimised.ll", "kernel.s"}


def command(path: Path, source: str, *options: str) -> Result:
    path = path / "given.ptx"
    path.write_text(source)
    return CliRunner().invoke(main, [str(path), *options])


@pytest.mark.parametrize(
    ("emit", "has"),
    [
        ("flat", "    add.u32 %r0, %r0, 1\n"),
        ("llvm", "define internal i64 @seg1("),
        ("optimised", "; ModuleID"),
        ("asm", "\t.text\n"),
    ],
)
def test_each_stage_can_be_seen(tmp_path: Path, emit: str, has: str) -> None:
    done = command(tmp_path, text(), "--emit", emit)
    assert done.exit_code == 0, done.stderr
    assert "kernel add_one\n" in done.stdout and has in done.stdout


def test_the_command_prints_access_sets(tmp_path: Path) -> None:
    done = command(tmp_path, text(), "--emit", "sets")
    assert "// kernel add_one\nclosed\n  word 0: read, written, bounded\n" in done.stdout
    assert "\n  read: 4 bytes at %" in done.stdout
    done = command(tmp_path, text(body="mov.u32 %r0, %smid;"), "--emit", "sets")
    reason = f"  {tmp_path}/given.ptx:9: it reads %smid: mov.u32 %r0, %smid\n"
    assert f"\nopen\n{reason}  word 0:" in done.stdout


def test_flat_code_has_cuts_and_no_calls(tmp_path: Path) -> None:
    function = ".func twice(.reg .u32 %a) { add.u32 %a, %a, %a; ret; }\n"
    source = text(body="bar.sync 0; call twice, (%r0);").replace(".visible", function + ".visible")
    done = command(tmp_path, source, "--emit", "flat")
    assert done.exit_code == 0, done.stderr
    assert "cut 2: bar.sync 0; keeps %r0; computes again %rd0\n" in done.stdout
    assert "add.u32 2:%a, 2:%a, 2:%a\n" in done.stdout and "call" not in done.stdout


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("wgmma.fence   \n .sync;", ":9: kernel add_one: the instruction 'wgmma.fence .sync'"),
        ("!?;", ":9: add_one: cannot read '!?'"),
        ("bra nowhere;", ":9: kernel add_one: no label nowhere"),
        (".reg .strange %x;", ":9: cannot read '.reg .strange %x'"),
    ],
)
def test_an_error_has_file_and_line(tmp_path: Path, body: str, says: str) -> None:
    done = command(tmp_path, text(body=body))
    assert done.exit_code == 1 and done.stdout.count("\n") == 0
    assert done.stderr.startswith(f"{tmp_path}/given.ptx{says}")


@pytest.mark.parametrize(
    ("added", "says"),
    [
        (".global .align 4 x[2];", ":4: a declaration without a type: '.global .align 4'"),
        ("/* two\nlines */ .global .u32 a; .shared .u32 b;\n.global .u32\n a;", ":6: a is defined"),
        ("// a comment\n.func f(.param .u32 a,\n\t.param\n.u32 b[c]) { ret; }", ":7: no size of"),
        (".func f(.param .u32 a,\n .parm .u32 b) { ret; }", ":5: bad parameter '.parm .u32 b'"),
        ('.pragma\n"nounroll";\n.func f { {', ":6: a brace is not closed"),
        (".tex .u32 t;", ":4: cannot read '.tex .u32 t'"),
        (".global .u32 x = {1,\n 2, here};", ":5: variable x: the initial value 'here'"),
        (".address_size 16", ":4: cannot read '.address_size 16'"),
        ('.file 1 "a"\n.loc 1 2 3\n.entry {}', ":6: bad function header '.entry'"),
    ],
)
def test_an_error_outside_of_functions_has_file_and_line(
    tmp_path: Path, added: str, says: str
) -> None:
    done = command(tmp_path, text().replace(".visible", f"{added}\n.visible"))
    assert done.exit_code == 1 and done.stdout.count("\n") == 0
    assert done.stderr.startswith(f"{tmp_path}/given.ptx{says}")


def test_one_kernel_of_several(tmp_path: Path) -> None:
    both = text() + text("other").partition("64\n")[2]
    done = command(tmp_path, both, "--kernel", "other", "--emit", "flat")
    assert "kernel other" in done.stdout and "add_one" not in done.stdout
    done = command(tmp_path, both, "--kernel", "third")
    assert (done.exit_code, done.stderr.partition(": ")[2]) == (
        1,
        "no kernel third; there are: add_one, other\n",
    )


def test_compiled_output_is_kept(
    made: list[Loader],  # noqa: F811
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each stage, under the hash of the cached object, which is the same as without."""
    assert result(new(made, folder), text()) == 42
    (path,) = objects(folder)
    plain = cache.load(folder / "cache", path.stem)
    kept = folder / "kept"
    monkeypatch.setenv(output.SWITCH, str(kept))
    (folder / "second").mkdir()
    assert result(new(made, folder / "second"), text()) == 42
    assert {file.name for file in (kept / path.stem).iterdir()} == FILES
    assert (kept / path.stem / "name").read_text() == "add_one\n"
    assert "add.u32 %r0, %r0, 1;" in (kept / path.stem / "kernel.ptx").read_text()
    assert cache.load(folder / "second/cache", path.stem) == plain


def test_stages_before_a_failure_are_kept(
    made: list[Loader],  # noqa: F811
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(output.SWITCH, str(folder / "kept"))
    with pytest.raises(ModuleError):
        result(new(made, folder), text(body="wgmma.fence;"))
    (kernel,) = (folder / "kept").iterdir()
    assert {file.name for file in kernel.iterdir()} == {"name", "kernel.ptx", "flat.txt"}


@pytest.mark.parametrize("place", ["/proc/no/such", "relative", "file/below"])
def test_a_folder_that_cannot_be_written_is_said_once_and_fails_nothing(
    made: list[Loader],  # noqa: F811
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    place: str,
) -> None:
    (folder / "file").touch()
    asked = place if place == "relative" else str(folder / place)
    monkeypatch.setenv(output.SWITCH, asked)
    loader = new(made, folder)
    assert result(loader, text()) == 42
    assert result(loader, text(body="add.u32 %r0, %r0, 2;")) == 43
    assert capfd.readouterr().err.count(f"{output.SWITCH}={asked}: nothing is kept: ") == 1


def test_a_folder_that_fills_up_is_said_once_and_fails_nothing(
    made: list[Loader],  # noqa: F811
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A file stands where the folder of each kernel would."""
    kept = folder / "kept"
    monkeypatch.setenv(output.SWITCH, str(kept))
    loader = new(made, folder)
    assert result(loader, text()) == 42
    sources = [text(body=f"add.u32 %r0, %r0, {n};") for n in (2, 3)]
    (key,) = (path.name for path in kept.iterdir())
    for path in (kept / key).iterdir():
        path.unlink()
    (kept / key).rmdir()
    kept.rmdir()
    kept.touch()
    assert [result(loader, source) for source in sources] == [43, 44]
    assert capfd.readouterr().err.count("nothing more is kept") == 1

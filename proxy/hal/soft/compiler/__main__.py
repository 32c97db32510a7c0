"""``python -m rankfold.proxy.hal.soft.compiler FILE.ptx``: prints what the compiler produces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn, TextIO

import click

from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.errors import ModuleError, line_at, place_of
from rankfold.proxy.ptx.fatbin import ptx_of
from rankfold.proxy.ptx.model import Module
from rankfold.proxy.ptx.module import find, parse_module
from rankfold.proxy.ptx.sets import sets_of
from rankfold.proxy.ptx.steps import text_of

from . import codegen, objects

COMMENT = {"sets": "//", "flat": "//", "llvm": ";", "optimised": ";", "asm": "#"}
FATBINS_FOR = (9, 0)  # from a fatbin, takes the best PTX for this compute capability


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--emit",
    type=click.Choice([*COMMENT]),
    default="llvm",
    show_default=True,
    help="sets: what the kernel reads and writes, and how far (docs/sets.md); flat: "
    "instructions with every call resolved, in blocks between cuts; llvm: IR as it is "
    "lowered; optimised: IR as LLVM leaves it; asm: x86-64.",
)
@click.option("--kernel", "wanted", help="Only this one; default: every kernel.")
@click.option("-o", "--output", type=click.File("w", lazy=True), default="-", help="Not stdout.")
def main(file: Path, emit: str, wanted: str | None, output: TextIO) -> None:
    """Compile the kernels of FILE, PTX or a fatbin, for the software GPU."""
    text = ""
    try:
        text = ptx_of(file.read_bytes(), FATBINS_FOR)
        module = parse_module(text)
        kernels = [f.name for f in module.functions.values() if f.entry and f.defined]
        if wanted is not None and wanted not in kernels:
            have = ", ".join(kernels) or "none"
            _refuse(f"{file}: no kernel {wanted}; there are: {have}")
        for name in [wanted] if wanted is not None else kernels:
            shown = (
                sets(file, text, module, name) if emit == "sets" else stage_text(module, name, emit)
            )
            print(f"{COMMENT[emit]} kernel {name}\n{shown}", file=output)
    except ModuleError as error:
        _refuse(f"{file}{line_of(text, error)}: {error.message}")


def sets(file: Path, text: str, module: Module, name: str) -> str:
    """Returns what the kernel reads and writes, and why that may be incomplete, as text."""
    sets_found = sets_of(module, find(module, name), fixed_code=True)
    begin = max(text.find(f".entry {name}"), 0)
    lines = ["closed" if sets_found.closed else "open"]
    for reason in sets_found.reasons:
        offset = place_of(text, reason.instr, begin)
        offset = (
            place_of(text, reason.instr) if offset is None else offset
        )  # in a function before the kernel
        where = file if offset is None else f"{file}:{line_at(text, offset)}"
        lines.append(f"  {where}: it {reason.what}: {reason.instr}")
    for offset, use in sets_found.words:
        missing = use & (Use.READ | Use.WRITTEN) & ~sets_found.bounds.uses(offset)
        lines.append(f"  word {offset}: {_uses(use)}{_unless(missing)}")
    for variable, use in sets_found.variables:
        outside = variable not in sets_found.bounds.inside
        lines.append(f"  variable {variable}: {_uses(use)}{_unless(outside)}")
    lines += [f"  {line}" for line in text_of(sets_found.bounds)]
    return "\n".join(lines) + "\n"


def _unless(missing: object) -> str:
    if isinstance(missing, Use) and missing:
        return f", not bounded where {_uses(missing)}"
    return "" if missing else ", bounded"


def _uses(use: Use) -> str:
    return ", ".join(str(each.name).lower().replace("_", " ") for each in Use if each in use)


class _StageComplete(Exception):
    """The requested stage is complete; carries its text."""


def stage_text(module: Module, name: str, emit: str) -> str:
    """Returns one stage of a kernel as text. Raises ModuleError."""

    def keep(stage: str, text: str) -> None:
        if stage == emit:
            raise _StageComplete(text)

    try:
        codegen.compile_kernel(objects.kernel_source(module, name), name, keep)
    except _StageComplete as found:
        return str(found)
    raise ValueError(f"no stage {emit}")


def line_of(text: str, error: ModuleError) -> str:
    """Returns ``:LINE`` of the place that an error is about; "" if it is not found."""
    if error.line:
        return f":{error.line}"
    offset = place_of(text, error.about)
    return f":{line_at(text, offset)}" if offset is not None else ""


def _refuse(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m rankfold.proxy.hal.soft.compiler")

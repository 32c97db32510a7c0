"""The command `rankfold`. Writes data to stdout, everything else to stderr. Its exit codes are
stable: 0 done, 1 error, 2 changes pending, 64 wrong usage, 65 invalid input files."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from rankfold import __version__, paths, switches
from rankfold.legible import is_utf8, legible
from rankfold.reconciler.commands.common import EXIT_ERROR, EXIT_INVALID, EXIT_USAGE, fail
from rankfold.reconciler.report.lines import say

# Each command's module and its name there. A module is imported when its command runs: importing
# all of them takes longer than most commands do.
COMMANDS = {
    "validate": ("desired", "validate"),
    "plan": ("desired", "plan_command"),
    "apply": ("desired", "apply"),
    "watch": ("desired", "watch_command"),
    "status": ("looking", "status"),
    "describe": ("looking", "describe"),
    "events": ("looking", "events"),
    "usage": ("looking", "usage"),
    "inspect": ("looking", "inspect_command"),
    "logs": ("looking", "logs"),
    "doctor": ("looking", "doctor_command"),
    "scale": ("acting", "scale"),
    "suspend": ("acting", "suspend"),
    "resume": ("acting", "resume"),
    "cancel": ("acting", "cancel"),
    "checkpoint": ("acting", "checkpoint"),
    "stop": ("acting", "stop"),
    "run": ("run", "run"),
    "simulate": ("simulate", "simulate"),
    "store": ("checkpoints", "store"),
}


def main() -> NoReturn:
    """Entry point: maps click's errors to our exit codes."""
    try:
        result = cli.main(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.UsageError as error:
        click.UsageError(legible(error.format_message()), error.ctx).show()
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        fail(error.format_message())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_ERROR)
    except OSError as error:
        fail(_explain(error))
    except Exception as error:
        _fail_with(error)
        raise


def _explain(error: OSError) -> str:
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current directory was deleted; change to another one first"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _fail_with(error: Exception) -> None:
    """Exit with a message if the error is one that a command expects. Their modules are imported
    here: they take longer than some commands."""
    import sqlite3

    from rankfold import control
    from rankfold.reconciler.client import NoReconciler
    from rankfold.reconciler.journal.journal import JournalError
    from rankfold.reconciler.source.invalid import InvalidInput

    if isinstance(error, InvalidInput):
        for fault in error.faults:
            say(str(fault))
        sys.exit(EXIT_INVALID)
    if isinstance(error, (control.ControlError, NoReconciler, JournalError, sqlite3.Error)):
        fail(str(error))


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from rankfold import distribution

        commit = distribution.commit()
        click.echo(f"rankfold {__version__}" + (f" (commit {commit})" if commit else ""))
        context.exit()


class Commands(click.Group):
    """The commands of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        imported = importlib.import_module(f"rankfold.reconciler.commands.{module}")
        if not gc.isenabled():  # see __main__.py
            gc.freeze()  # what was imported stays: no collection has to traverse it
            gc.enable()
        command: click.Command = getattr(imported, name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and the commit that it was built from.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of the fleet's state. Default: $RANKFOLD_STATE, else $XDG_STATE_HOME/rankfold.",
)
@click.pass_context
def cli(context: click.Context, state: Path | None) -> None:
    """Fold the ranks of training jobs onto however many GPUs there are.

    Data go to stdout, the rest to stderr. Exit codes: 0 done, 1 error, 2 changes pending
    (`plan --detailed-exitcode`), 64 wrong usage, 65 invalid input files.
    """
    try:
        switches.check()
    except switches.BadSwitch as error:
        raise click.UsageError(str(error)) from error
    for line in switches.unknown():
        say(f"rankfold: {line}")
    folder = (state or paths.default_state()).absolute()
    if not is_utf8(str(folder.resolve())):
        raise click.UsageError(
            f"the state directory {os.fsencode(folder)!r} is not UTF-8: choose another with --state"
        )
    context.obj = folder

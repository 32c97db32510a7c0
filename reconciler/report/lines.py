"""Lines of output. Data go to stdout, everything else to stderr.

Apart from tables and views, because every command prints lines and few read the fleet's state.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from rankfold.legible import legible

screen: Any = None  # rich's console, while console.live_view draws below what is printed


def say(text: str) -> None:
    """Print a line to stderr; characters that could control a terminal are escaped."""
    _print(legible(text), err=True)


def emit(text: str) -> None:
    """As `say`, to stdout."""
    _print(legible(text), err=False)


def _print(text: str, err: bool) -> None:
    stream = sys.stderr if err else sys.stdout
    if screen is None or not stream.isatty():
        click.echo(text, err=err)
        return
    from rich.text import Text

    screen.print(Text(text), soft_wrap=True)  # above the view, which it moves down

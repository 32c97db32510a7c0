"""The common set-up of logging for reconciler, proxies and launchers: time, level, area, text.

An area is a source file, by its name, or a package, by its folder's name.
RANKFOLD_LOG=plan:debug,warning sets the level of one area, and of all others; the default is info.
Values of `env` are never logged: to refer to a job or an action, log its name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from rankfold.legible import legible

SWITCH = "RANKFOLD_LOG"
LEVELS = ("debug", "info", "warning", "error")
_ROOT = "rankfold"


def area(file: str) -> logging.Logger:
    """The logger of a source file: ``log = area(__file__)``."""
    path = Path(file)
    name = path.parent.name if path.stem in ("__init__", "__main__") else path.stem
    return logging.getLogger(f"{_ROOT}.{name}")


def set_up(environ: Mapping[str, str] = os.environ) -> None:
    """Log to stderr from now on, as RANKFOLD_LOG says. Invalid parts of the setting are logged
    first."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Line())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    levels, wrong = parse(environ.get(SWITCH, ""))
    for name, level in levels.items():
        logging.getLogger(f"{_ROOT}.{name}" if name else _ROOT).setLevel(level.upper())
    for each in wrong:
        known = ", ".join(LEVELS)
        text = "%s: %r is invalid: use LEVEL or AREA:LEVEL; the levels are %s"
        area(__file__).warning(text, SWITCH, each, known)


def parse(setting: str) -> tuple[dict[str, str], list[str]]:
    """Return the level of each area ("" for all others), and the invalid parts."""
    levels, wrong = {"": "info"}, []
    for each in filter(None, (part.strip() for part in setting.split(","))):
        name, colon, level = each.rpartition(":")
        if level.lower() in LEVELS and bool(name) == bool(colon):
            levels[name.removesuffix(".py")] = level.lower()
        else:
            wrong.append(each)
    return levels, wrong


class _Line(logging.Formatter):
    def __init__(self) -> None:
        line = "%(asctime)s.%(msecs)03d %(levelname)s %(area)s: %(message)s"
        super().__init__(line, "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.area = record.name.removeprefix(f"{_ROOT}.")
        return legible(super().format(record))

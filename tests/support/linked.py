"""Which of the product's C files use which others: the linker's view, for rules about floors."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Calls = dict[tuple[str, str], set[str]]


def calls(objects: dict[str, Path]) -> Calls:
    """Names of files with their objects; what the first of a pair uses of the second."""
    home: dict[str, str] = {}
    used: dict[str, list[str]] = {}
    for name, path in objects.items():
        listing = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listing.splitlines()]
        used[name] = [row[1] for row in rows if row[0] == "U"]
        home |= {row[2]: name for row in rows if len(row) == 3 and row[1].isupper()}
    result: Calls = defaultdict(set)
    for name, symbols in used.items():
        for symbol in symbols:
            if home.get(symbol, name) != name:
                result[name, home[symbol]].add(symbol)
    return result


def circle(graph: Calls) -> list[str]:
    """Files that call each other; none: an order has place for all of them."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for caller, called in graph:
        sorter.add(caller, called)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []

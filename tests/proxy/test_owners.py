"""In the proxy's core a field is written by its owner's files; others call a verb of theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.native import CORE

# Pattern of the end of an assignment's left side (a part of a rank or the proxy, or a field with a
# unique name) → the files or folders that may write it.
OWNERS: dict[str, tuple[str, ...]] = {
    r"turn\.\w+": (),  # by the verbs of turn.h only
    r"counters\.\w+|->counters": ("rank/rank.h",),
    r"ring\.[\w.]+": ("rank/ring.c",),
    r"intake\.\w+": ("loop/dispatch.c",),
    r"end\.\w+": ("loop/job.c",),
    r"slice\.\w+|device\.(active|yielding|relents)": ("loop/slice.c",),
    r"queue->(streams(\[[^=]*\])?|stream_count|legacy|items)": ("queue/stream.c",),
    r"(queue|q)->waiter\w*(\[[^=]*\])?": ("queue/event.c",),
    r"queue->frees\w*(->next)?": ("queue/fence.c",),
    r"queue->host_place": ("queue/host.c",),
    r"queue->moves": ("queue/item.c",),
    r"queue->last_function": ("queue/launch.c",),
    r"queue->tickets": ("queue/collective.c",),
    r"queue->order": ("queue/accesses.c",),
    r"queue->squashing[\w.]*|backoff->\w+": ("queue/squash.c",),
    r"->on_other_queue": ("queue/stream.c",),
    r"queue->(group|comms_changed)[\w.]*": ("queue/group.c",),
    r"r->(async_error|error_text)": ("rank/fault.c",),
    r"->pending|next_token|->asks": ("loop/python_request.c",),
    r"arriving": ("rank/module.c",),
    r"(?<!\bs)->(uses|doomed|loading|loaded|globals_addr|image_capacity|globals_image|hash)": (
        "rank/module.c",
        "queue/stream.c",
        "rank/comm.h",
    ),
    r"(?<!\bs)->(split_from|issued|queued)": (
        "rank/comm.c",
        "rank/comm.h",
        "barrier",
        "collective",
    ),
    r"(last|mark|m)->(complete|loud|time_ns)|e->last": ("queue/event.c",),
    r"memory\.[\w.\[\]>-]+": (),  # by verbs of memory/, which sees no rank
    r"->(alone|missing|inflight|dying|live_count|in_image|freed|move_count)": ("memory",),
    r"->(saved_bytes|cut|cut_at|released_at|activity|goal)|->jobs|"
    r"world\.(ranks(\[[^=]*\])?|attached|state)": (
        "loop/job.c",
        "loop/rank.c",
    ),
    r"device\.(rank_count|ranks(\[[^=]*\])?)": ("loop/rank.c",),
    r"\bcheck\.\w+": (),  # by verbs of crosscheck/
    r"\b(measure|launches)\.\w+": (),  # by verbs of opaque/
    r"queue->place[\w.]*": ("queue/opaque_launch.c",),
    r"\bcrosscheck\.\w+": ("loop/alarm.c",),
    r"\boverhead\.\w+|->overhead_ns(\[[^=]*\])?": ("loop/overhead.c",),
    r"wakeups": ("loop/loop.c",),
}

PLACE = r"[A-Za-z_]\w*(?:\[[^\]=]*\])?(?:(?:->|\.)\w+(?:\[[^\]=]*(?:\[[^\]]*\])?[^\]=]*\])?)*"
WRITE = re.compile(
    rf"(?:\+\+|--)({PLACE})|({PLACE})(?:\+\+|--|\s*(?:[-+|&^]|<<|>>)?=(?!=))", re.ASCII
)


def writes(text: str) -> Iterator[tuple[int, str]]:
    """Line and place of each assignment to what is reached through a pointer or a part."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    for found in WRITE.finditer(text):
        place = found[1] or found[2]
        if "->" in place or "." in place:
            yield text.count("\n", 0, found.start()) + 1, place


def may_write(file: str, owners: tuple[str, ...]) -> bool:
    return any(file == owner or file.startswith(f"{owner}/") for owner in owners)


def strange(file: str, text: str) -> list[str]:
    """The fields of other files that this file writes."""
    return [
        f"{file}:{line}: {place}"
        for line, place in writes(text)
        for pattern, owners in OWNERS.items()
        if re.search(rf"(?:{pattern})$", place) and not may_write(file, owners)
    ]


def sources() -> list[Path]:
    return [path for kind in ("*.c", "*.h") for path in sorted(CORE.rglob(kind))]


@pytest.fixture(scope="module")
def written() -> dict[str, set[str]]:
    """Places that each file of the core writes, by its path in the core."""
    return {
        str(path.relative_to(CORE)): {place for _line, place in writes(path.read_text())}
        for path in sources()
    }


def test_a_field_is_written_by_its_owner() -> None:
    bad = []
    for path in sources():
        file = str(path.relative_to(CORE))
        if file.startswith(("loop/", "queue/", "rank/", "memory/")):
            bad += strange(file, path.read_text())
    assert bad == []


@pytest.mark.parametrize("pattern", OWNERS)
def test_every_owned_field_exists(pattern: str, written: dict[str, set[str]]) -> None:
    """A field that was renamed does not drop out of the rule unseen."""
    field = re.compile(rf"(?:{pattern})$")
    writers = {file for file, places in written.items() if any(map(field.search, places))}
    owners = OWNERS[pattern]
    assert not owners or any(may_write(file, owners) for file in writers)


def test_the_rule_bites() -> None:
    assert strange("loop/api.c", "j->ranks[a->rank]->end.exited = true;") != []
    assert strange("queue/item.c", "\tr->ring.replies--;\n") == ["queue/item.c:1: r->ring.replies"]
    assert strange("loop/job.c", "j->ranks[n]->memory.alone = true;") != []
    assert strange("queue/fence.c", "r->proxy->turn.progress |= true;") != []
    assert strange("loop/api.c", "if (r->ring.replies == 1 && a->end.exited <= x) {}") == []
    assert strange("rank/ring.c", "r->ring.tail.bytes = 1; /* r->end.exited = 1; */") == []

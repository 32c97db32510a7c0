"""Documents that are checked against what they describe: switches, the JSON of status, pointers."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

import pytest

from rankfold import switches
from rankfold.paths import REPOSITORY
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.states import AT_ANY_TIME, TRANSITIONS
from tools import documents

from .test_tidy import C_LIKE, own_files, read, sources

SWITCH = re.compile(r"\bRANKFOLD_[A-Z][A-Z_]*[A-Z]\b")
# Names that `env` may not have, and names that are misspelt.
EXAMPLES = {"RANKFOLD_X", "RANKFOLD_QUANTM", "RANKFOLD_COLOUR"}
PROGRAMS = (*C_LIKE, ".py", ".mk", ".sh", ".toml", "Makefile")


# ---- switches ----------------------------------------------------------------------------------


def documented_switches() -> dict[str, str]:
    rows = re.findall(r"^\| `(RANKFOLD_\w+)` \| (.+) \|$", read("docs/switches.md"), re.MULTILINE)
    assert len(rows) == len(dict(rows)), "each once"
    return dict(rows)


def switches_in(names: list[str]) -> set[str]:
    found = {switch for name in names for switch in SWITCH.findall(read(name))}  # guards, too
    return {switch for switch in found - EXAMPLES if not switch.endswith(("_H", "_CUH"))}


def test_every_switch_is_in_the_table_and_no_other() -> None:
    programs = [n for n in sources(*PROGRAMS) if not n.endswith("test_documents.py")]
    programs += [n for n in own_files(".ci", "tools") if not (REPOSITORY / n).is_symlink()]
    assert switches_in(programs) == set(documented_switches())


def test_the_module_that_reads_switches_knows_those_of_the_table() -> None:
    assert switches.known() == set(documented_switches())


def test_other_documents_name_switches_of_the_table() -> None:
    assert switches_in(sources(".md")) == set(documented_switches())


def test_options_of_commands_are_no_undocumented_switches() -> None:
    commands = ["reconciler/cli.py", *own_files("reconciler/commands")]
    assert not [name for name in commands if "envvar" in read(name)]


# ---- generated parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", documents.PARTS)
def test_generated_parts_of_documents_are_what_is_generated(name: str) -> None:
    assert documents.written(name) == read(name), "run `make documents`"


def test_the_table_of_states_has_the_states_that_are_written() -> None:
    """Each state that the reconciler gives to a record is one that another state leads to."""
    found = {
        state
        for name in own_files("reconciler")
        if name.endswith(".py")
        for state in re.findall(r"""\bstep(?:=|": )"(\w+)\"""", read(name))
    }
    assert found == {each.target for each in (*TRANSITIONS, *AT_ANY_TIME)} - {"new"}


# ---- where things are --------------------------------------------------------------------------


def test_the_reference_says_where_logs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_RUNTIME", str(tmp_path / "run"))
    layout, text = Layout(tmp_path), read("docs/spec.md")
    proxy = layout.proxy_file("<pool>/<type>-<index>", ".log").relative_to(tmp_path)
    rank = layout.logs("<name>").relative_to(tmp_path) / "rank-<r>.out"
    assert f"`<state>/{proxy}`" in text and f"`<state>/{rank}`" in text


FOLDERS = (
    "checkpoint",
    "elastic",
    "policy",
    "reconciler",
    "simulator",
    "proxy",
    "interpose",
    "rankfold",
    "schemas",
    "specs",
    "examples",
    "tests",
    "benchmarks",
    "docs",
    "tools",
)
_PATH = r"/[\w./*-]*\w(?:\.\w+)?/?"
POINTER = re.compile(rf"(?<![\w./\"'}}>-])((?:{'|'.join(FOLDERS)}){_PATH})(?![\w*<{{])")


def pointed_at(name: str) -> set[str]:
    """The paths from the root that a file's documents, comments and docstrings mention."""
    text = read(name)
    if not name.endswith(".md"):
        text = "\n".join(re.findall(r'^\s*(?:/?\*|//|#).*$|""".*?"""|/\*.*?\*/', text, re.M | re.S))
    return set(POINTER.findall(text))


def there(path: str, known: list[str]) -> bool:
    """`rankfold/reconciler` and its like are links; `NAME` and its like stand for something."""
    if re.fullmatch(r"rankfold/v\d\w*", path):
        return True  # an apiVersion
    path = re.sub(
        r"^rankfold/(checkpoint|elastic|policy|reconciler|simulator|proxy|interpose)\b",
        r"\1",
        path.rstrip("/"),
    )
    if re.search(r"(^|/)[A-Z]{2,}\b(?!\.md)", path):
        return True
    patterns = (path, f"{path}.*", f"{path}/*", *([f"{path}*"] if path.endswith("_") else []))
    return any(fnmatch.filter(known, pattern) for pattern in patterns)


def test_paths_in_documents_exist() -> None:
    files = sources(*PROGRAMS, ".md", ".yaml")
    named = {(name, path) for name in files for path in pointed_at(name)}
    assert len(named) > 100
    known = own_files("--cached", "--others", "--exclude-standard")
    lost = {path for path in {path for _, path in named} if not there(path, known)}
    assert sorted((name, path) for name, path in named if path in lost) == []


def lost_sources(text: str, known: list[str]) -> list[str]:
    """Source files that a document names with a part of their path (`queue/item.c`) and that do not
    exist. A part in capitals stands for any name."""
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|c|h|cu|def))`", text)
    placeholders = re.compile(r"(^|/)[A-Z]{2,}")
    return [
        path
        for path in named
        if not (placeholders.search(path) or path.startswith("build/"))
        and not any(f"/{each}".endswith(f"/{path}") for each in known)
    ]


def test_documents_name_source_files_that_exist() -> None:
    known = own_files("--cached", "--others", "--exclude-standard")
    assert lost_sources("`here/gone.c` and `tests/NAME.py`", known) == ["here/gone.c"]
    found = {name: lost_sources(read(name), known) for name in sources(".md")}
    assert {name: paths for name, paths in found.items() if paths} == {}


def headings(name: str) -> set[str]:
    """The anchors of a document, as GitHub names them."""
    text = re.sub(r"^```.*?^```", "", read(name), flags=re.M | re.S)
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        twice = sum(
            re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each) is not None for each in found
        )
        found.append(f"{anchor}-{twice}" if twice else anchor)
    return set(found)


def test_links_to_headings_lead_to_them() -> None:
    links = [
        (name, os.path.normpath(os.path.join(os.path.dirname(name), file)) if file else name, to)
        for name in sources(".md")
        for file, to in re.findall(r"\]\(((?!https?:)[^)#\s]*)#([^)\s]+)\)", read(name))
    ]
    assert len(links) > 30
    anchors = {file: headings(file) for file in {file for _, file, _ in links}}
    assert [link for link in links if link[2] not in anchors[link[1]]] == []


# ---- decisions ---------------------------------------------------------------------------------

SECTIONS = ["Question", "Choice", "Reason", "What would change it"]
STATUS = re.compile(r"(?:accepted|superseded by \[\d{4}\]\([\w-]+\.md\))(?:; .+)?")


def decisions() -> list[str]:
    return sorted(n for n in sources(".md") if re.match(r"docs/decisions/\d", n))


def test_each_decision_has_its_sections_in_order() -> None:
    incomplete = [
        name
        for name in decisions()
        if [s for s in re.findall(r"^## (.+)$", read(name), re.M) if s != "Consequences"]
        != SECTIONS
    ]
    assert incomplete == []


def test_the_index_of_decisions_has_their_numbers_titles_and_statuses() -> None:
    rows = []
    for number, name in enumerate(decisions(), 1):
        title, status = re.findall(r"\A# (\d{4}\. .+)\n\nStatus: (.+)\n", read(name))[0]
        file = name.removeprefix("docs/decisions/")
        assert file.startswith(title[:4]) and int(title[:4]) == number, "numbers have no gap"
        assert STATUS.fullmatch(status), name
        rows.append(f"| {title[:4]} | [{title[6:]}]({file}) | {status} |")
    index = read("docs/decisions/README.md")
    listed = re.findall(r"^(\| \d{4} \| \[.+\]\(.+\.md\) \| .+? \|) \S", index, re.M)
    assert listed == rows

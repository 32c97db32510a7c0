"""Names, comments, messages and documents use the words of docs/glossary.md, and so do the names
and docstrings of tests."""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import PurePath

import pytest

from repository.test_tidy import read, sources

GLOSSARY = "docs/glossary.md"
PRODUCT = (
    "checkpoint/",
    "interpose/",
    "policy/",
    "proxy/",
    "rankfold/",
    "reconciler/",
    "schemas/",
    "simulator/",
)
# Sources whose digest is part of what is compiled from them: their comments stay as they are.
DIGESTED = re.compile(
    r"proxy/hal/(checksum|elements|number)\.h|\.ptx$|interpose/(blas|dnn)/kernels\.cu"
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (*FUNCTIONS, ast.ClassDef, ast.Module)
C_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.DOTALL)

# (word, file or folder) → why it stays there. Remove an entry when its reason is gone: one that
# nothing needs fails a test. Add none for a name that can be chosen.
_CRIU = "CRIU calls it so"
_REPLY = "a field of messages and of `status -o json`"
_SNAPSHOT = "a field of the request `snapshot`"
_TIMES = "a decision, in the words of its time"
_UNSEEN = "`hidden` is a field of the launcher's configuration: folders that a rank does not see"
KEPT = {
    ("adopt", "reconciler/commands/checkpoints.py"): "the command `rankfold store adopt`",
    ("adopt", "reconciler/node/launchers.py"): "the command `rankfold store adopt`",
    ("beside", "interpose/launcher/rest.py"): _SNAPSHOT,
    ("beside", "rankfold/messages.py"): _SNAPSHOT,
    ("beside", "reconciler/act/"): _SNAPSHOT,
    ("dump", "interpose/launcher/criu/"): _CRIU,
    ("dump", "interpose/launcher/files/"): "json.dump",
    ("dump", "interpose/launcher/launcher.py"): "json.dump",
    ("dump", "interpose/launcher/snapshot/"): _CRIU,
    ("for ever", "docs/decisions/"): _TIMES,
    ("guard", "proxy/hal/soft/"): "guard pages, which end a stack",
    ("guard", "rankfold/messages.py"): _REPLY,
    ("guard", "reconciler/"): _REPLY,
    ("half saved", "docs/decisions/"): _TIMES,
    ("hidden", "interpose/client/base/elf.c"): "the visibility of an ELF symbol",
    ("hidden", "interpose/launcher/"): _UNSEEN,
    ("hidden", "reconciler/source/"): "files whose names begin with a dot",
    ("nobody", "docs/decisions/"): _TIMES,
    ("somebody", "docs/decisions/"): _TIMES,
}


def kept(word: str, file: str) -> bool:
    return any(word == each and file.startswith(where) for each, where in KEPT)


@cache
def rejected(scope: str) -> dict[str, str]:
    """Word → what to write instead, of the glossary's table of rejected words."""
    table = read(GLOSSARY).partition("\n## Rejected words\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (names|text|names, text) \| (.+?) \|$", table, re.MULTILINE)
    return {
        word: instead
        for words, where, instead in rows
        for word in words.split(", ")
        if scope in where.split(", ")
    }


def words_of(name: str) -> list[str]:
    """The words of an identifier, in lower case: of `memory_swapIn` memory, swap and in."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return [part.lower() for part in parts]


def names_of(name: str, text: str) -> Iterator[str]:
    """The identifiers of Python or C source."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                yield token.string
    else:
        yield from re.findall(r"[A-Za-z_]\w*", C_TEXT.sub(" ", text))


def prose_of(name: str, text: str) -> Iterator[str]:
    """The comments and strings of source; all of a document."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.string
    elif name.endswith((".c", ".h", ".def")):
        yield from C_TEXT.findall(text)
    else:
        yield text


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    return {
        phrase: re.compile(rf"(?<![\w`-]){re.escape(phrase)}(?![\w`-])".replace(r"\ ", r"\s+"))
        for phrase in rejected("text")
    }


def phrases_in(prose: str) -> set[str]:
    """The rejected phrases in a text."""
    return {phrase for phrase, pattern in patterns().items() if pattern.search(prose)}


@cache
def product(*suffixes: str) -> dict[str, str]:
    return {
        name: read(name)
        for name in sources(*suffixes)
        if name.startswith(PRODUCT) and not DIGESTED.search(name)
    }


@cache
def in_names() -> set[tuple[str, str]]:
    """(rejected word, file) of each identifier with such a word."""
    words = rejected("names")
    return {
        (word, file)
        for file, text in product(".py", ".c", ".h", ".def").items()
        for name in set(names_of(file, text))
        for word in words_of(name)
        if word in words
    }


@cache
def in_text() -> set[tuple[str, str]]:
    """(rejected phrase, file) of comments, messages and documents."""
    files = product(".py", ".c", ".h", ".def", ".json", ".yaml")
    documents = {name: read(name) for name in sources(".md") if name != GLOSSARY}
    return {
        (phrase, file)
        for file, text in (files | documents).items()
        for prose in prose_of(file, text)
        for phrase in phrases_in(prose)
    }


def rejected_in(name: str) -> set[str]:
    return {word for word in words_of(name) if word in rejected("names")}


def riddles(name: str, text: str) -> list[str]:
    """Comments and docstrings that begin with a question word and are no question."""
    if name.endswith(".py"):
        begins = re.findall(r'"""((?:What|Who|Whose|Whom) [^"]*)', text)
    else:
        begins = re.findall(r"/\*\s+((?:What|Who|Whose|Whom) .*?)\*/", text, re.DOTALL)
    return [each[:60] for each in begins if "?" not in each.partition(".")[0]]


def in_test(text: str) -> set[str]:
    """Rejected words and phrases in a test file: in the names of its tests, as words and as a
    sentence, and in its docstrings."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED):
            found |= phrases_in(ast.get_docstring(node, clean=False) or "")
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
            found |= rejected_in(node.name)
            found |= phrases_in(node.name.replace("_", " "))
    return found


def test_the_table_is_read() -> None:
    assert rejected("names")["foreseen"] == "footprint"
    assert rejected("text")["in vain"] == "without success"


@pytest.mark.parametrize("word", sorted(rejected("names")))
def test_names_have_the_words_of_the_glossary(word: str) -> None:
    found = [file for each, file in in_names() if each == word and not kept(word, file)]
    assert sorted(found) == [], f"write: {rejected('names')[word]}"


@pytest.mark.parametrize("phrase", sorted(rejected("text")))
def test_comments_messages_and_documents_are_in_plain_english(phrase: str) -> None:
    found = [file for each, file in in_text() if each == phrase and not kept(phrase, file)]
    assert sorted(found) == [], f"write: {rejected('text')[phrase]}"


def test_comments_and_docstrings_begin_with_their_subject() -> None:
    files = product(".py", ".c", ".h")
    assert [(name, each) for name, text in files.items() for each in riddles(name, text)] == []


def test_tests_are_in_plain_english() -> None:
    files = {name: read(name) for name in sources(".py") if name.startswith("tests/")}
    found = [(name, words) for name, text in files.items() if (words := in_test(text))]
    found += [(name, words) for name in files if (words := rejected_in(PurePath(name).stem))]
    assert sorted(found) == [], f"see the table of rejected words in {GLOSSARY}"


def test_what_is_kept_is_needed() -> None:
    found = in_names() | in_text()
    unneeded = [
        (word, where)
        for word, where in KEPT
        if not any(word == each and file.startswith(where) for each, file in found)
    ]
    assert unneeded == []


def test_the_search_for_words_bites() -> None:
    c = 'int run_vain; /* it was in\n * vain */ char *s = "goes on";'
    assert list(names_of("a.c", c)) == ["int", "run_vain", "char", "s"]
    assert words_of("RANKFOLD_inVain") == ["rankfold", "in", "vain"]
    python = 'def mend(a):  # beside it\n    return f"told {a}"\n'
    assert [*names_of("a.py", python)] == ["mend", "a"] and "# beside it" in prose_of(
        "a.py", python
    )
    assert riddles("a.py", '"""What a rank sees. More?"""') == ["What a rank sees. More?"]
    assert riddles("a.h", "/* Who waits? */ /* a */ int x;") == []
    test = 'def test_a_job_goes_on():\n    """It is\n    told."""\ndef test_a_vain_wait(): ...\n'
    assert in_test(test) == {"goes on", "is told", "vain"}

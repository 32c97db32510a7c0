"""Names, comments, messages and documents use the words of docs/glossary.md, also in tests,
benchmarks and examples; sentences name their subject."""

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
    "elastic/",
    "interpose/",
    "policy/",
    "proxy/",
    "rankfold/",
    "reconciler/",
    "schemas/",
    "simulator/",
)
AROUND = ("benchmarks/", "examples/", "tests/", "tools/")
OWN = "tests/repository/test_words.py"
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
# A sentence that begins so, and is no question, hides its subject in a clause.
RIDDLE = re.compile(r"\b(What|Who|Whoever|Whose|Whom|Of)\s[^.?!|]*(?:[.?!|]|$)")
# A docstring that begins so continues the test's name instead of being a sentence.
CONTINUED = re.compile(r'"""(?:And|Also|But|Else|Nor|Not|Or|Unless|Until) ')
RIDDLED = re.compile(r"def (test_(?:what|who|whoever|whose|whom|of|by)_\w+)")
OF_WHICH = re.compile(r"(?<!\ball )(?<!\beach )(?<!\bnone )\bof which\b")
WORD = re.compile(r"[\w`-]+")
C_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.DOTALL)

# (word, file or folder) → why it stays there. Remove an entry when its reason is gone: one that
# nothing needs fails a test. Add none for a name that can be chosen.
_CRIU = "CRIU calls it so"
_REPLY = "a field of messages and of `status -o json`"
_SNAPSHOT = "a field of the request `snapshot`"
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
    ("guard", "proxy/hal/soft/"): "guard pages, which end a stack",
    ("guard", "rankfold/messages.py"): _REPLY,
    ("guard", "reconciler/"): _REPLY,
    ("hidden", "interpose/client/base/elf.c"): "the visibility of an ELF symbol",
    ("hidden", "interpose/launcher/"): _UNSEEN,
    ("hidden", "reconciler/source/"): "files whose names begin with a dot",
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
    elif name.endswith((".c", ".h", ".def", ".cu")):
        yield from C_TEXT.findall(text)
    else:
        yield text


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    return {
        phrase: re.compile(rf"(?<![\w`-]){re.escape(phrase)}(?![\w`-])".replace(r"\ ", r"\s+"))
        for phrase in rejected("text")
    }


def may_have_phrase(text: str) -> bool:
    """Faster than one search for each phrase: few texts contain any."""
    words = {phrase for phrase in patterns() if " " not in phrase}
    if not words.isdisjoint(WORD.findall(text)):
        return True
    spaced = " ".join(text.split())
    return any(phrase in spaced for phrase in patterns() if " " in phrase)


def phrases_in(prose: str) -> set[str]:
    """The rejected phrases in a text."""
    if not may_have_phrase(prose):
        return set()
    return {phrase for phrase, pattern in patterns().items() if pattern.search(prose)}


@cache
def product(*suffixes: str) -> dict[str, str]:
    return {name: read(name) for name in sources(*suffixes) if name.startswith(PRODUCT)}


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
        if may_have_phrase(text)
        for prose in prose_of(file, text)
        for phrase in phrases_in(prose)
    }


def rejected_in(name: str) -> set[str]:
    return {word for word in words_of(name) if word in rejected("names")}


def comments_of(name: str, text: str) -> Iterator[str]:
    """Comments and docstrings. A comment at the end of a line of code is not among them; adjacent
    lines that only have comments are one."""
    if not name.endswith(".py"):
        yield from re.findall(r"/\*+\s+(.*?)\*/", text, re.DOTALL)
        for block in re.findall(r"(?:^[ \t]*// ?[^\n]*\n)+", text, re.MULTILINE):
            yield re.sub(r"(?m)^\s*// ?", "", block)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node, clean=False) or ""
    for block in re.findall(r"(?:^[ \t]*# [^\n]*\n)+", text, re.MULTILINE):
        yield re.sub(r"(?m)^\s*# ", "", block)


def riddles(prose: str) -> list[str]:
    """Sentences of a comment or a document whose subject is a question word, and comments that
    begin with "Of", a phrase without a subject."""
    if not RIDDLE.search(prose):
        return []
    text = re.sub(r"\s*\n[ \t]*(?:\*|#|//)?[ \t]*", " ", prose)
    return [
        found[0][:60]
        for found in RIDDLE.finditer(text)
        if not found[0].endswith("?")
        and (not found.start() or (found[1] != "Of" and text[found.start() - 2] in ".:;!"))
    ]


def in_test(text: str) -> set[str]:
    """Rejected words and phrases in a Python file of tests: in names of its functions and classes,
    as words and as a sentence, and in its comments, docstrings and messages. A string of one word
    is data, for example the user `nobody`."""
    found = set()
    for name in re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", text, re.MULTILINE):
        found |= rejected_in(name) | phrases_in(name.replace("_", " "))
    if may_have_phrase(text):
        found |= {each for prose in prose_of("a.py", text) for each in in_string(prose)}
    return found


def in_string(prose: str) -> set[str]:
    """The rejected phrases in a comment or a string of several words."""
    return set() if re.fullmatch(r'"\w*"', prose) else phrases_in(prose)


def written_here(name: str) -> bool:
    """The file is neither this test nor the glossary, which quote what they reject."""
    return name not in (OWN, GLOSSARY)


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


def test_comments_name_their_subject() -> None:
    files = {name: read(name) for name in sources(".py", ".c", ".h", ".cu") if written_here(name)}
    found = [
        (name, each)
        for name, text in files.items()
        if RIDDLE.search(text)
        for comment in comments_of(name, text)
        for each in riddles(comment)
    ]
    assert found == []


def test_documents_name_their_subject() -> None:
    documents = {name: read(name) for name in sources(".md")}
    found = [
        (name, each)
        for name, text in documents.items()
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-|#])", text)
        if not paragraph.lstrip().startswith(("#", "*What would change it*"))  # headings
        for each in riddles(paragraph.lstrip("-| *"))
        if not each.startswith("Of ")  # "Of 440 tests, two fail" has a subject
    ]
    assert found == []


def test_a_relative_clause_has_its_noun() -> None:
    """For example "a kernel whose effect is unknown". "All of which" is accepted."""
    names = sources(".py", ".c", ".h", ".cu", ".def", ".md", ".json", ".yaml")
    found = [name for name in names if written_here(name) and OF_WHICH.search(read(name))]
    assert found == [], "write: whose, or a sentence of its own"


def test_tests_are_in_plain_english() -> None:
    files = {name: read(name) for name in sources(".py") if name.startswith(AROUND)}
    del files[OWN]
    found = [(name, words) for name, text in files.items() if (words := in_test(text))]
    for name in sources(".c", ".h", ".cu"):
        if name.startswith(AROUND):
            words = {each for prose in prose_of(name, read(name)) for each in in_string(prose)}
            found += [(name, words)] if words else []
    found += [(name, words) for name in files if (words := rejected_in(PurePath(name).stem))]
    assert sorted(found) == [], f"see the table of rejected words in {GLOSSARY}"


def test_docstrings_are_sentences_of_their_own() -> None:
    files = [name for name in sources(".py") if written_here(name)]
    assert [name for name in files if CONTINUED.search(read(name))] == []


def test_names_of_tests_begin_with_their_subject() -> None:
    files = {name: read(name) for name in sources(".py") if written_here(name)}
    assert [(name, each) for name, text in files.items() for each in RIDDLED.findall(text)] == []


def test_every_exception_is_needed() -> None:
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
    python = '"""What a rank\n sees. More?"""\n# Who waits?\n# Of it.\n'
    assert [*comments_of("a.py", python)] == ["What a rank\n sees. More?", "Who waits?\nOf it.\n"]
    assert [*comments_of("a.h", "/* a */\n// b\n")] == ["a ", "b\n"]
    assert riddles("What a rank\n * sees. More?") == ["What a rank sees."]
    assert riddles("It is. Who waits is late") == ["Who waits is late"]
    assert riddles("Of a rank: its number.") == ["Of a rank: its number."]
    assert riddles("Who waits? All of them. Tell what it is: for what.") == []
    assert RIDDLED.findall("def test_what_is_so(): def test_of_it(): def test_office():") == [
        "test_what_is_so",
        "test_of_it",
    ]
    assert CONTINUED.search('"""Also two. """') and not CONTINUED.search('"""Android."""')
    assert OF_WHICH.search("kernels of which two wait")
    assert not OF_WHICH.search("kernels, all of which wait")
    test = 'def test_a_job_goes_on():\n    """It is\n    told."""\ndef test_a_vain_wait(): ...\n'
    assert in_test(test) == {"goes on", "is told", "vain"}
    helper = 'def beside(a):  # in vain\n    assert a, "nobody waits"\n    return "nobody"\n'
    assert in_test(helper) == {"beside", "in vain", "nobody"}
    assert in_string('"nobody"') == set() and in_string("/* nobody waits */") == {"nobody"}

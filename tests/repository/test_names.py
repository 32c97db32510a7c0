"""In one library a name means one thing: the proxy's, of the core and both kinds of devices. And no
function of the client has the name of one of the proxy."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from repository.test_tidy import read, sources

# Each kind of device defines these for itself; see proxy/hal/hal.h.
OFFERED = {"struct hal_device", "struct hal_space", "struct hal_stream", "struct hal_function"}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
TAG = re.compile(r"\b(struct|union|enum) (\w+) \{")
CONSTANTS = re.compile(r"\benum (?:\w+ )?\{([^{}]*)\}")
NUMBER = re.compile(r"^[ \t]*#[ \t]*define (\w+)[ \t]+([^\n]*\S)", re.MULTILINE)


def named(text: str) -> Iterator[tuple[str, str]]:
    """(name, what it means there) of all tags, enumeration constants and macros without arguments.

    A tag or constant means something of its own at each place; a macro means its text, so that
    two files of different rooms may say the same.
    """
    text = COMMENT.sub("", text).replace("\\\n", " ")
    for number, (kind, name) in enumerate(TAG.findall(text)):
        yield f"{kind} {name}", f"definition {number}"
    for number, body in enumerate(CONSTANTS.findall(text)):
        for constant in re.findall(r"(?:^|,)\s*(\w+)", body):
            yield constant, f"enumeration {number}"
    yield from NUMBER.findall(text)


def clashes(files: dict[str, str]) -> dict[str, list[str]]:
    """Which names mean several things, and where."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for file, text in files.items():
        for name, meaning in named(text):
            own = meaning.split()[0] in ("definition", "enumeration")
            found[name][f"{file} {meaning}" if own else meaning] = file
    return {
        name: sorted(where.values())
        for name, where in found.items()
        if len(where) > 1 and name not in OFFERED
    }


def test_a_name_means_one_thing_in_the_proxys_library() -> None:
    files = {name: read(name) for name in sources(".c", ".h") if name.startswith("proxy/")}
    assert "proxy/core/barrier/barrier.c" in files
    assert clashes(files) == {}


def test_the_search_for_clashes_bites() -> None:
    both = {
        "a.h": "#define ROOM 4u\nstruct rank { int a; };\nenum { RED, GREEN = 2 };\nenum a { X };",
        "b.c": "#define ROOM 5u /* more */\nstruct rank { int b; };\nenum stage { UP, GREEN };",
    }
    assert set(clashes(both)) == {"ROOM", "struct rank", "GREEN"}
    assert clashes({"a.c": both["a.h"], "b.c": "#define ROOM 4u\nstruct rank *r;\n"}) == {}


# ---- functions of the client and the proxy -----------------------------------------------------

FUNCTION = re.compile(
    r"^(?!return\b)[A-Za-z_][\w ]*?[ *]+(\w+)\([^;{}]*?\)\s*\{", re.MULTILINE | re.DOTALL
)


def functions(files: dict[str, str]) -> dict[str, str]:
    """Each function that C source defines, and a file that does."""
    return {
        name: file
        for file, text in files.items()
        for name in FUNCTION.findall(COMMENT.sub("", text))
    }


def of(folder: str) -> dict[str, str]:
    return {name: read(name) for name in sources(".c", ".h") if name.startswith(folder)}


def test_a_search_for_a_function_finds_the_client_or_the_proxy() -> None:
    """Functions of interpose/channel/ belong to both."""
    client, proxy = functions(of("interpose/client/")), functions(of("proxy/"))
    assert "heap_alloc" in client and "memory_free" in proxy, "functions are found"
    assert {name: (client[name], proxy[name]) for name in client.keys() & proxy.keys()} == {}


def test_the_search_for_functions_bites() -> None:
    text = """
static struct module *find(const struct table *t,
                           uint64_t number)
{
        return check(t) ? NULL : t->first;
}
int declared(void);
/* void commented(void) { */
static inline bool within(int a) { return a > 0; }
"""
    assert set(functions({"a.c": text})) == {"find", "within"}

"""Faults seeded into the map of versions: its rules, or random histories, show each."""

from __future__ import annotations

from collections.abc import Callable

from support.seeding import Check, Copy, Table
from versions.test_versions import all_of_them
from versions.world import load


def histories(copy: Copy) -> Callable[[], None]:
    library = load(copy.folder, copy.changed)
    return lambda: all_of_them(library)


HISTORIES = Check(histories, quick=True)

TABLE: Table = {
    "proxy/core/versions/versions.c": {
        HISTORIES: {
            "offset-not-advanced": ("c.offset += bytes;", ""),
            "offset-not-repeated": ("c.offset %= c.period;", ";"),
            "offset-not-compared": ("x->offset == y->offset && ", ""),
            "version-not-compared": (
                "x->version.a == y->version.a && x->version.b == y->version.b &&",
                "",
            ),
            "fill-of-any-value": ("digest_word(&d, width == 4 ? value :", "digest_word(&d, 0 & "),
            "fill-of-any-width": (
                "if (width == 2 && (value >> 8 & 0xff) == (value & 0xff))",
                "if (width == 2)",
            ),
            "private-is-shared": ("digest_word(&d, v->privates++);", ""),
            "one-life": ("digest_word(&d, v->life[0]);\n\tdigest_word(&d, v->life[1]);", ""),
            "tail-not-advanced": (
                "content_from(v->extents[last].content, end - v->extents[last].addr)",
                "v->extents[last].content",
            ),
            "tail-forgotten": ("bool rest = end_of(v, last) > end;", "bool rest = false;"),
            "head-forgotten": ("bool head = v->extents[first].addr < addr;", "bool head = false;"),
            "joined-regardless": (
                "if (!continues_extent(&v->extents[kept], &v->extents[i]))",
                "if (0)",
            ),
            "never-joined": ("join_extents(v, first ? first - 1 : 0, (uint32_t)more + 2);", ""),
            "copy-not-clipped": ("content_from(e.content, skipped)", "e.content"),
            "copy-of-one-extent": ("extent_at(from, from_addr + bytes - 1) - first + 1;", "1;"),
            "offset-not-absorbed": ("digest_word(d, c.offset);", ""),
            "version-not-absorbed": (
                "digest_word(d, c.version.a);\n\t\tdigest_word(d, c.version.b);",
                "",
            ),
            "length-not-absorbed": ("digest_word(d, until - begin);", ""),
            "absorbed-from-the-extent": ("content_from(e->content, begin - e->addr)", "e->content"),
            "held-if-it-begins-so": (
                "if (!same_content(&has, &should))",
                "if (i == extent_at(v, addr) && !same_content(&has, &should))",
            ),
            "held-from-the-extent": ("content_from(e->content, from - e->addr)", "e->content"),
            "held-wherever-it-begins": ("content_from(content, from - addr)", "content"),
            "drawn-twice": ("before->privates = v->privates;", ""),
            "coarsened-but-named": ("e.content = private_content(v);", ";"),
            "loaded-unseen": ("if (versions_invalid(&loaded)) {", "if (0) {"),
            "room-for-too-few": (
                "if (capacity > EXTENTS_MAX) /*",
                "if (capacity > EXTENTS_MAX)\n\t\treturn false;\n\tif (0) /*",
            ),
            "no-room-and-as-it-was": (
                "if (!replace_extents(to, to_addr, bytes, copied, count))",
                "if (!replace_extents(to, to_addr, bytes, copied, count) && 0)",
            ),
            "empty-and-held": (
                (
                    "uint32_t i = bytes ? extent_at(v, addr) : v->count; i < v->count; i++) {\n"
                    "\t\tconst struct extent *e = &v->extents[i];\n\t\tif (e->addr >= end)\n"
                    "\t\t\tbreak;\n\t\tuint64_t from"
                ),
                (
                    "uint32_t i = extent_at(v, addr); i < v->count; i++) {\n"
                    "\t\tconst struct extent *e = &v->extents[i];\n\t\tif (e->addr >= end)\n"
                    "\t\t\tbreak;\n\t\tuint64_t from"
                ),
            ),
            "wide-fill-of-its-own": ("value & ((1u << 8 * width) - 1)", "value"),
            "zeros-but-for-the-last": (
                "end_of(v, i) >= addr + bytes;",
                "end_of(v, i) > addr + bytes;",
            ),
            "two-ranges-as-one": ("\tdigest_word(d, bytes);\n", ""),
            "loaded-in-part": ("bytes % sizeof(struct extent) || ", ""),
            "drawn-again-when-loaded": (
                "struct versions loaded = *v;",
                "struct versions loaded = *v;\n\tloaded.privates = 0;",
            ),
            "extents-of-nothing": ("WRONG(e->addr >= end_of(v, i)", "WRONG(e->addr > end_of(v, i)"),
            "offset-at-the-period": (
                "e->content.offset >= e->content.period",
                "e->content.offset > e->content.period",
            ),
            "two-that-are-one": ("WRONG(i && continues_extent(e - 1, e)", "WRONG(0"),
        },
    },
}

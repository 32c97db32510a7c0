"""Faults seeded into the map of versions, one at a time: each must be noticed by the tests."""

from __future__ import annotations

from barrier.mutants import Mutant

MUTANTS = [
    Mutant("offset-not-advanced", "c.offset += bytes;", ""),
    Mutant("offset-not-repeated", "c.offset %= c.period;", ";"),
    Mutant("offset-not-compared", "x->offset == y->offset && ", ""),
    Mutant(
        "version-not-compared",
        "x->version.a == y->version.a && x->version.b == y->version.b &&",
        "",
    ),
    Mutant("fill-of-any-value", "digest_word(&d, width == 4 ? value :", "digest_word(&d, 0 & "),
    Mutant(
        "fill-of-any-width",
        "if (width == 2 && (value >> 8 & 0xff) == (value & 0xff))",
        "if (width == 2)",
    ),
    Mutant("private-is-shared", "digest_word(&d, v->privates++);", ""),
    Mutant("one-life", "digest_word(&d, v->life[0]);\n\tdigest_word(&d, v->life[1]);", ""),
    Mutant(
        "tail-not-advanced",
        "later(v->extents[last].content, end - v->extents[last].addr)",
        "v->extents[last].content",
    ),
    Mutant("tail-forgotten", "bool rest = end_of(v, last) > end;", "bool rest = false;"),
    Mutant("head-forgotten", "bool head = v->extents[first].addr < addr;", "bool head = false;"),
    Mutant("joined-regardless", "if (!goes_on(&v->extents[kept], &v->extents[i]))", "if (0)"),
    Mutant("never-joined", "join(v, first ? first - 1 : 0, (uint32_t)more + 2);", ""),
    Mutant("copy-not-clipped", "later(e.content, skipped)", "e.content"),
    Mutant("copy-of-one-extent", "at(from, from_addr + bytes - 1) - first + 1;", "1;"),
    Mutant("offset-not-absorbed", "digest_word(d, c.offset);", ""),
    Mutant(
        "version-not-absorbed", "digest_word(d, c.version.a);\n\t\tdigest_word(d, c.version.b);", ""
    ),
    Mutant("length-not-absorbed", "digest_word(d, until - begin);", ""),
    Mutant("absorbed-from-the-extent", "later(e->content, begin - e->addr)", "e->content"),
    Mutant(
        "held-if-it-begins-so",
        "if (!same(&has, &should))",
        "if (i == at(v, addr) && !same(&has, &should))",
    ),
    Mutant("held-from-the-extent", "later(e->content, from - e->addr)", "e->content"),
    Mutant("held-wherever-it-begins", "later(content, from - addr)", "content"),
    Mutant("drawn-twice", "before->privates = v->privates;", ""),
    Mutant("coarsened-but-named", "e.content = private_content(v);", ";"),
    Mutant("loaded-unseen", "if (versions_invalid(&loaded)) {", "if (0) {"),
    Mutant(
        "room-for-too-few",
        "if (capacity > EXTENTS_MAX) /*",
        "if (capacity > EXTENTS_MAX)\n\t\treturn false;\n\tif (0) /*",
    ),
    Mutant(
        "no-room-and-as-it-was",
        "if (!put(to, to_addr, bytes, copied, count))",
        "if (!put(to, to_addr, bytes, copied, count) && 0)",
    ),
    Mutant(
        "empty-and-held",
        "uint32_t i = bytes ? at(v, addr) : v->count; i < v->count; i++) {\n"
        "\t\tconst struct extent *e = &v->extents[i];\n\t\tif (e->addr >= end)\n\t\t\tbreak;\n"
        "\t\tuint64_t from",
        "uint32_t i = at(v, addr); i < v->count; i++) {\n"
        "\t\tconst struct extent *e = &v->extents[i];\n\t\tif (e->addr >= end)\n\t\t\tbreak;\n"
        "\t\tuint64_t from",
    ),
    Mutant("wide-fill-of-its-own", "value & ((1u << 8 * width) - 1)", "value"),
    Mutant(
        "zeros-but-for-the-last", "end_of(v, i) >= addr + bytes;", "end_of(v, i) > addr + bytes;"
    ),
    Mutant("two-ranges-as-one", "\tdigest_word(d, bytes);\n", ""),
    Mutant("loaded-in-part", "bytes % sizeof(struct extent) || ", ""),
    Mutant(
        "drawn-again-when-loaded",
        "struct versions loaded = *v;",
        "struct versions loaded = *v;\n\tloaded.privates = 0;",
    ),
    Mutant("extents-of-nothing", "WRONG(e->addr >= end_of(v, i)", "WRONG(e->addr > end_of(v, i)"),
    Mutant(
        "offset-at-the-period",
        "e->content.offset >= e->content.period",
        "e->content.offset > e->content.period",
    ),
    Mutant("two-that-are-one", "WRONG(i && goes_on(e - 1, e)", "WRONG(0"),
]

"""Faults seeded into the bounds of launches: test_bounds.py, test_slots.py, or random kernels, show
each."""

from __future__ import annotations

from collections.abc import Callable

from ptx import test_bounds, test_slots
from ptx.launches import Core
from ptx.test_bounds_patches import shown

from support.seeding import Check, Copy, Table


def launches(copy: Copy) -> Callable[[], None]:
    core = Core(copy.folder, copy.changed)

    def check() -> None:
        assert not shown(core)
        test_bounds.test_parameters_that_decide_nothing_do_not_matter(core)
        for n in (1, 2):
            test_bounds.test_one_of_two_paths_is_taken(core, n)

    return check


def lists(copy: Copy) -> Callable[[], None]:
    core = Core(copy.folder, copy.changed, "lists")

    def check() -> None:
        for name, test in vars(test_slots).items():
            if name.startswith("test_"):
                test(core)
        test_bounds.test_other_numbers_do_not_make_a_remainder(core)

    return check


BOUNDS = Check(launches)
LISTS = Check(lists)

TABLE: Table = {
    "proxy/core/rank/spans.c": {
        BOUNDS: {
            "wrap-around-ignored": ("a >> bits == b >> bits", "bits"),
            "all-is-signed": (
                "sign == PROXY_UNSIGNED ? 0 : -(1ll << (bits - 1))",
                "-(1ll << (bits - 1))",
            ),
            "all-is-unsigned": ("sign == PROXY_UNSIGNED ? 0 : -(1ll << (bits - 1))", "0"),
            "below-is-well-below": (
                "a.high = low_of(a.high, b.high - 1);",
                "a.high = low_of(a.high, b.high - 2);",
            ),
            "above-is-well-above": (
                "a.low = high_of(a.low, b.low + 1);",
                "a.low = high_of(a.low, b.low + 2);",
            ),
            "a-limit-is-the-lowest": (
                "a.high = low_of(a.high, b.high - 1);",
                "a.high = low_of(a.high, b.low - 1);",
            ),
            "loops-are-believed": ("next.low < guess.low ||", "false ||"),
            "loops-end-where-they-should": ("next.high > guess.high ||", "false ||"),
            "a-turn-too-few": (
                "width(all) / fewest & INT64_MAX",
                "width(all) / (fewest + 1) & INT64_MAX",
            ),
            "steps-that-may-be-none": ("(by.low <= 0 && by.high >= 0)", "false"),
            "loops-never-wrap": ("!inside || !fits(whole, bits) ||", ""),
            "joined-is-the-first": (
                "low_of(a.low, b.low), high_of(a.high, b.high), a.base,",
                "a.low, a.high, a.base,",
            ),
            "rests-have-no-sign": ("high_of(a.low, 1 - b.high)", "0"),
            "differences-are-sums": (
                "__builtin_sub_overflow(a.low, b.high, &low)",
                "__builtin_sub_overflow(a.low, b.low, &low)",
            ),
            "products-have-two-corners": (
                (
                    "low_of(low_of(at[0], at[1]), low_of(at[2], at[3])),\n"
                    "\t\t\t high_of(high_of(at[0], at[1]), high_of(at[2], at[3])), 0, zeros, bits)"
                ),
                "at[0], at[3], 0, zeros, bits)",
            ),
            "masks-of-all-signs": ("a.low >= 0 && a.high <= fill_below(mask) &&", ""),
            "zeros-of-sums": (
                "a.base | b.base, least_of(zeros_of(a), zeros_of(b)), bits",
                "a.base | b.base, zeros_of(a), bits",
            ),
            "shifted-without-sign": (
                (
                    "a = as_bits(a, bits, sign == PROXY_SIGNED ? PROXY_SIGNED : PROXY_UNSIGNED, "
                    "&ok);"
                ),
                "a = as_bits(a, bits, PROXY_SIGNED, &ok);",
            ),
            "strides-go-one-way": ("moved.low = low_of(moved.low, 0);", "moved.low = 0;"),
        },
        LISTS: {
            "any-factor-divides": (
                "(uint64_t)factor.low != (((1ull << s) - d) << 32) / d + 1",
                "false",
            ),
            "sums-always-fit": ("return ok && !b.base && b.low >= 0 ? a", "return true ? a"),
        },
    },
    "proxy/core/rank/bounds.c": {
        BOUNDS: {
            "the-last-bytes-forgotten": ("+ (int64_t)reached->bytes", "+ 1"),
            "offsets-forgotten": (
                "int64_t low = at.low + reached->offset;",
                "int64_t low = at.low;",
            ),
            "one-block": (".high = whole ? n : n - 1", ".high = whole ? n : 0"),
            "numbers-have-no-sign": ("s->bits < 64 && s->sign == PROXY_SIGNED", "false"),
            "the-first-access-alone": ("b->high = b->high > high ? b->high : high;", ""),
            "what-is-anywhere-is-nowhere": ("known &= ~sides_of(reached->use);", "known &= ~0u;"),
            "all-parameters-decide": ("!n && first_decides(s) &&", "false &&"),
            "one-empty-path-empties-all": (
                "\tcase PROXY_STEP_JOIN:\n\tcase PROXY_STEP_LOOP:\n",
                "",
            ),
        },
        LISTS: {
            "all-blocks-are-the-first": (
                "r->done[n] &= !runs_now(e, n, again);",
                "r->done[n] &= again;",
            ),
            "one-block-of-a-list": ("while (!e->failed && next_block(e))", "while (false)"),
            "lists-are-always-known": ("e->lost |= sides_of(reached->use);", ";"),
            "all-words-of-a-list-are-kept": (
                "memcmp(k->params + k->bytes[n].at,",
                "0 && memcmp(k->params + k->bytes[n].at,",
            ),
            "null-is-an-address": ("x != y && !(is_address(x) && is_address(y))", "false"),
            "only-fixed-places-are-read": ("memset(e->r->read + at.low, 1, l->bytes);", ";"),
            "unknown-places-are-not-read": ("memset(e->r->read, 1, e->r->param_bytes);", ";"),
            "a-list-adds-no-use": ("w->use |= s->use;", "w->use |= w->use ? 0 : s->use;"),
            "blocks-in-one-dimension-alone": (
                "return evaluations <= EVALUATIONS_MAX ? r->walked : 0;",
                "return r->walked & 2;",
            ),
        },
    },
}

"""Faults seeded into cuts of several matrix operations."""

from __future__ import annotations

from support.seeding import Table

RUNS = ("tests/softgpu/test_matrix_runs.py",)

TABLE: Table = {
    "proxy/hal/soft/compiler/matrix_runs.py": {
        RUNS: {
            "address-from-before-the-run": (
                "if instr.pred or pointers & self.written:",
                "if False:",
            ),
            "moved-over-a-reader": (
                "defined & (self.read | self.written)",
                "defined & self.written",
            ),
            "moved-over-a-writer": ("defined & (self.read | self.written)", "defined & self.read"),
            "moved-from-its-operands": (
                "and not self.written.intersection(uses_of(instr))",
                "and True",
            ),
            "moved-store": ("(Effect.CHEAP, Effect.COMPUTES)", "(Effect.CHEAP, Effect.STORES)"),
            "moved-clock": ("            and not any(_is_clock(a) for a in instr.args)\n", ""),
            "result-that-is-no-result": (
                "written.update(dict.fromkeys(_items(step.args[:1] if gives else ())))",
                "pass",
            ),
        },
    },
    "proxy/hal/soft/compiler/matrix.py": {
        RUNS: {
            "one-zero": ("isinstance(word.of, Float) else word", "False else word"),
            "every-word-is-given": ("if s not in made)", "if s in given)"),
        },
    },
    "proxy/hal/soft/compiler/segment.py": {
        RUNS: {
            "conditional-value-is-not-loaded": (" or name in self.written_here):", "):"),
        },
    },
    "proxy/hal/soft/matrix.c": {
        RUNS: {"only-the-first-step": ("i < cut->op; i++", "i < 1; i++")},
    },
}

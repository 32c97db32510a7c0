"""The kernels that are to be fast are cut into few segments, and LLVM vectorises their loops.

A change of the compiler, or of LLVM, that costs a kernel its vector loops makes it several times
slower without any other sign. If a change is for the better, change the table.
"""

from __future__ import annotations

import re
from pathlib import Path

import cuda
import pytest

from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.compiler.__main__ import stage_text
from rankfold.proxy.ptx.module import parse_module

GPT = f'#include "{REPOSITORY / "examples/gpt/kernels.cuh"}"\n'
REDUCTIONS = Path(__file__).with_name("reductions.cu")
BENCHMARK = REPOSITORY / "benchmarks/dispatch_kernels.cu"

# For each kernel, the most segments and the fewest vector loops.
TABLE: dict[str | Path, dict[str, tuple[int, int]]] = {
    GPT: {
        "gemm_nn": (3, 1),
        "gemm_nt": (3, 1),
        "gemm_tn": (3, 1),
        "column_sum": (5, 11),
        "mean": (10, 12),
        "adamw": (1, 1),
        "embedding_forward": (1, 3),
        "token_embedding_backward": (1, 2),
        "position_embedding_backward": (5, 10),
        "layernorm_forward": (23, 24),
        "layernorm_backward_input": (19, 14),
        "layernorm_backward_params": (5, 11),
        "attention_forward": (16, 16),
        "attention_backward_query": (9, 5),
        "attention_backward_key_value": (7, 3),
        "gelu_forward": (1, 1),
        "gelu_backward": (1, 1),
        "cross_entropy": (24, 24),
    },
    BENCHMARK: {
        "vadd": (1, 1),
        "softmax": (13, 25),
        "layernorm": (13, 24),
        "adam": (1, 1),
        "matmul": (3, 3),
    },
    REDUCTIONS: {
        "halving": (3, 2),
        "launched": (3, 2),
        "unrolled": (10, 9),
        "shuffled": (9, 8),
        "greatest": (3, 2),
        "paired": (3, 1),
    },
}


def shape(source: Path | str, kernel: str) -> tuple[int, int]:
    """Segments and vector loops."""
    module = parse_module(cuda.ptx(source))
    text = stage_text(module, kernel, "optimised")
    (cuts,) = re.findall(r"^@cuts = .*?\[(\d+) x ", text, re.MULTILINE)
    return int(cuts) - 1, len(re.findall(r"^vector\.body[\w.]*:", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("source", "kernel"),
    [pytest.param(source, name, id=name) for source, names in TABLE.items() for name in names],
)
def test_segments_and_vector_loops(source: Path | str, kernel: str) -> None:
    segments, loops = shape(source, kernel)
    most, least = TABLE[source][kernel]
    assert segments <= most and loops >= least, f"{segments} segments, {loops} vector loops"


def test_every_kernel_of_the_gpt_is_in_the_table() -> None:
    module = parse_module(cuda.ptx(GPT))
    assert {name for name, f in module.functions.items() if f.entry} == set(TABLE[GPT])

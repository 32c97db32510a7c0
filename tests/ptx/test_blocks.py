"""Compares the answers of blocks.py with their definitions: nodes are left out, paths tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.proxy.ptx.blocks import dominators, post_dominators

pytestmark = pytest.mark.unit

Graph = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random graph: the successors of each node, none, one or several, possibly including
    itself."""
    count = draw(st.integers(1, 9))
    following = st.lists(st.integers(0, count - 1), max_size=3, unique=True)
    return draw(st.lists(following, min_size=count, max_size=count))


def reachable(graph: Graph, start: int, without: int = -1) -> set[int]:
    seen, todo = {without}, [start]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += graph[node]
    return seen - {without}


@given(graphs())
def test_the_nearest_dominator(graph: Graph) -> None:
    order, above = dominators(0, graph)
    assert set(order) == set(above) == reachable(graph, 0)
    for node in order[1:]:
        upper = {n for n in order if n != node and node not in reachable(graph, 0, without=n)}
        assert above[node] in upper
        # All others are above the nearest one as well.
        assert all(above[node] not in reachable(graph, 0, without=n) for n in upper - {above[node]})
        assert all(order.index(n) < order.index(node) for n in upper)


@given(graphs())
def test_the_nearest_post_dominator(graph: Graph) -> None:
    behind = post_dominators(graph)
    ends = {node for node, following in enumerate(graph) if not following}
    for node in range(len(graph)):
        ways = reachable(graph, node)
        lower = {n for n in ways - {node} if not reachable(graph, node, without=n) & ends}
        lower = lower if ways & ends else set()
        if not lower:
            assert behind[node] == -1
            continue
        assert behind[node] in lower
        # All others are behind the nearest one as well.
        others = lower - {behind[node]}
        assert not any(reachable(graph, behind[node], without=n) & ends for n in others)

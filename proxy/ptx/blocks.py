"""Splits a kernel's instructions into basic blocks; computes the edges between them and dominance.

(Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm", 2001.)
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .model import Instr

_LEAVES = frozenset(("ret", "exit", "trap"))
_ENDS = _LEAVES | {"bra", "brx"}


class NoLabel(KeyError):
    """A branch has no target."""


class Condition(NamedTuple):
    """A predicate register holds, or does not hold."""

    register: str
    holds: bool


class Edge(NamedTuple):
    """An edge from the end of another block. `condition`: it is only taken if that is true."""

    source: int
    condition: Condition | None


@dataclass
class Block:
    """Instructions that are executed one after another; `first` is the number of the first one.

    `dominator`: the immediate dominator, the nearest block that all paths to this one lead through;
    the block itself if there is none.
    """

    number: int
    first: int
    instrs: list[Instr]
    edges_in: list[Edge] = field(default_factory=list)  # edges into this block
    successors: list[int] = field(default_factory=list)
    dominator: int = -1


class Blocks:
    """The basic blocks of a kernel.

    `all`: the blocks in the order of the instructions. `order`: numbers of the reachable blocks,
    each after all that dominate it; everything else concerns only these. Raises NoLabel.
    """

    def __init__(self, instrs: list[Instr]):
        self.all = _split(instrs)
        self.order, dominator = dominators(0, [block.successors for block in self.all])
        self.position = {number: index for index, number in enumerate(self.order)}
        for block in self.all:
            block.dominator = dominator.get(block.number, -1)
            block.edges_in = [edge for edge in block.edges_in if edge.source in self.position]

    def __getitem__(self, number: int) -> Block:
        return self.all[number]

    def dominates(self, upper: int, lower: int) -> bool:
        """True if all paths to `lower` lead through `upper`. (Each block dominates itself.)"""
        while self.position[lower] > self.position[upper]:
            lower = self.all[lower].dominator
        return lower == upper

    def iterated_frontier(self, where: set[int]) -> set[int]:
        """The iterated dominance frontier of these blocks.

        These blocks need a phi if there is a definition in each of them and one at the start.
        """
        frontier: set[int] = set()
        todo = list(where)
        while todo:
            number = todo.pop()
            for join in self._frontiers[number]:
                if join not in frontier:
                    frontier.add(join)
                    todo.append(join)
        return frontier

    @functools.cached_property
    def _frontiers(self) -> dict[int, set[int]]:
        """The dominance frontiers: blocks that some, but not all, paths reach through a block."""
        frontiers: dict[int, set[int]] = {number: set() for number in self.order}
        for number in self.order:
            block = self.all[number]
            for edge in block.edges_in if len(block.edges_in) > 1 else ():
                runner = edge.source
                while runner != block.dominator:
                    frontiers[runner].add(number)
                    runner = self.all[runner].dominator
        return frontiers

    def loop(self, head: int) -> set[int]:
        """The blocks of the loops with this head: all on paths from it back to it."""
        blocks = {head}
        todo = [w.source for w in self.all[head].edges_in if self.dominates(head, w.source)]
        while todo:
            number = todo.pop()
            if number not in blocks:
                blocks.add(number)
                todo += [edge.source for edge in self.all[number].edges_in]
        return blocks


def dominators(root: int, successors: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, int]]:
    """The reachable nodes of a graph in reverse postorder, and the immediate dominator of each.

    The immediate dominator is the nearest node through which all paths from `root` lead (the
    root's: itself). `after[n]`: the successors of node n.
    """
    order = _depth_first(root, successors)
    position = {node: index for index, node in enumerate(order)}
    predecessors = defaultdict[int, list[int]](list)
    for node in order:
        for other in successors[node]:
            predecessors[other].append(node)
    dominator = {root: root}

    def common_dominator(a: int, b: int) -> int:
        while a != b:
            if position[a] > position[b]:
                a = dominator[a]
            else:
                b = dominator[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            found = functools.reduce(
                common_dominator, (each for each in predecessors[node] if each in dominator)
            )
            changed |= dominator.get(node) != found
            dominator[node] = found
    return order, dominator


def post_dominators(successors: Sequence[Sequence[int]]) -> list[int]:
    """The immediate post-dominator of each node of a graph; -1 if there is none.

    It is the nearest other node through which all paths from the node to an end lead; an end is a
    node without successors. `after[n]`: the successors of node n.
    """
    end = len(successors)  # a node after all ends
    predecessors: list[list[int]] = [[] for _ in range(end + 1)]
    for node, following in enumerate(successors):
        for other in following or (end,):
            predecessors[other].append(node)
    _, post_dominator = dominators(end, predecessors)
    return [
        -1 if post_dominator.get(node, end) == end else post_dominator[node] for node in range(end)
    ]


def _depth_first(root: int, successors: Sequence[Sequence[int]]) -> list[int]:
    """The reachable nodes, in reverse postorder."""
    finished, seen = list[int](), {root}
    stack = [(root, iter(successors[root]))]
    while stack:
        node, untried = stack[-1]
        following = next((each for each in untried if each not in seen), None)
        if following is None:
            finished.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(successors[following])))
    return finished[::-1]


def _split(instrs: list[Instr]) -> list[Block]:
    starts = {0}
    for index, instr in enumerate(instrs):
        if instr.op[0] == "label":
            starts.add(index)
        elif instr.op[0] in _ENDS:
            starts.add(index + 1)
    begins = sorted(index for index in starts if index < len(instrs))
    ends = [*begins[1:], len(instrs)]
    # The first block is empty: no edge leads back to it.
    blocks = [Block(0, 0, [])]
    for begin, end in zip(begins, ends, strict=True):
        blocks.append(Block(len(blocks), begin, instrs[begin:end]))
    labels = {b.instrs[0].target: b.number for b in blocks[1:] if b.instrs[0].op[0] == "label"}
    blocks[0].successors = [1]
    blocks[1].edges_in.append(Edge(0, None))
    for block in blocks[1:]:
        _connect(blocks, block, labels)
    return blocks


def _connect(blocks: list[Block], block: Block, labels: dict[str, int]) -> None:
    last = block.instrs[-1]
    name, pred = last.op[0], last.pred
    edges: list[tuple[int, Condition | None]] = []
    targets = last.targets if name == "brx" else (last.target,) if name == "bra" else ()
    if (name == "brx" and not targets) or any(target not in labels for target in targets):
        raise NoLabel(last.target)
    if_true = Condition(pred.name, not last.negated) if pred and name == "bra" else None
    edges += [(labels[target], if_true) for target in targets]
    if name not in _ENDS or pred:
        if block.number + 1 < len(blocks):
            if_false = Condition(pred.name, last.negated) if pred and name in _ENDS else None
            edges.append((block.number + 1, if_false))
    numbers = [number for number, _ in edges]
    for number, condition in edges:
        if number in block.successors:
            continue
        only = numbers.count(number) == 1 and name != "brx"
        block.successors.append(number)
        blocks[number].edges_in.append(Edge(block.number, condition if only else None))

"""Computes the ranges of the values of a kernel.

Each value (values.py) has a range, and a step (steps.py) that computes it at the launch. The range
follows from the ranges of the operands, restricted by the branches that lead to the place. A branch
is known by the comparison that decides it; a value that changes in a loop, by its increment and by
the maximum number of iterations. A value that is not understood may be anything.

A range holds for all threads together: a thread's coordinates are ranges, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .blocks import Edge
from .computing import ARITHMETIC, MODIFIERS, as_signed
from .facts import Fact, facts_of
from .model import TYPE_BYTES, Sym
from .steps import SPECIAL_NAMES, Op, Sign, Steps
from .values import INTEGERS, LITERAL_BITS, Kind, Value, Values

VISITS_MAX = 200_000
DEPTH_MAX = 150  # of the nesting of values
STEPS_DEPTH_MAX = 8
SPECIAL = {name: n for n, name in enumerate(SPECIAL_NAMES)}
LANES = 32


@dataclass(frozen=True)
class Made:
    """A value: the sum of another one and a number, or that one shifted up by so many bits."""

    total: Value
    number: int
    shifted: bool


@dataclass(eq=False)
class Context:
    """The facts that hold where a value is used, by the values that they concern.

    `made`: by a value, the values with facts that are made of it and a number. `outer` has all
    facts but those in `added`.
    """

    facts: dict[Value, tuple[Fact, ...]] = field(default_factory=dict)
    made: dict[Value, tuple[Made, ...]] = field(default_factory=dict)
    outer: Context | None = None
    added: tuple[Fact, ...] = ()


Assumed = dict[Value, int]  # phis of a loop: the step that represents the assumed range


class Ranges:
    """The ranges of a kernel's values, as the steps that compute them."""

    def __init__(self, values: Values, param_bytes: int):
        self.values, self.blocks, self.param_bytes = values, values.blocks, param_bytes
        self.steps = Steps()
        self.visits = self.depth = 0
        self._root = Context()
        self._contexts: dict[object, Context] = {}
        self._conditions: dict[Context, int | None] = {}
        self._known: dict[object, int] = {}
        self._facts_in_use: set[Fact] = set()
        self._open_phis: set[Value] = set()
        self._counters_of: dict[int, tuple[Value, ...]] = {}

    def _is_any(self, step: int) -> bool:
        return self.steps.steps[step].op == Op.ANY

    # ---- facts by place

    def _block(self, number: int) -> Context:
        if number not in self._contexts:
            block = self.blocks[number]
            if block.dominator == number:
                self._contexts[number] = self._root
            else:
                dominator = self._block(block.dominator)
                only = block.edges_in[0] if len(block.edges_in) == 1 else None
                self._contexts[number] = self._on_edge(dominator, only) if only else dominator
        return self._contexts[number]

    def _on_edge(self, context: Context, edge: Edge) -> Context:
        """Add what holds if an edge is taken."""
        predicate = self.values.predicate(edge)
        return self._with(context, *predicate) if predicate else context

    def _with(self, context: Context, predicate: Value, holds: bool) -> Context:
        key = (context, predicate, holds)
        if key not in self._contexts:
            facts, made = dict(context.facts), dict(context.made)
            added = tuple(facts_of(predicate, holds))
            for fact in added:
                facts[fact.value] = (*facts.get(fact.value, ()), fact)
                for value, how in made_of(fact.value):
                    if how not in made.get(value, ()):
                        made[value] = (*made.get(value, ()), how)
            self._contexts[key] = Context(facts, made, context, added)
        return self._contexts[key]

    def _if_executed(self, step: int, context: Context) -> int:
        """The range of a step: none where the launch alone excludes one of these facts."""
        condition = self._condition(context)
        return step if condition is None else self.steps.add(Op.IF, a=step, b=condition)

    def _condition(self, context: Context) -> int | None:
        """A step whose range is empty if the launch's parameters and shape exclude a fact for all
        threads."""
        if context not in self._conditions:
            condition = self._condition(context.outer) if context.outer else None
            for fact in context.added:
                if self._is_plain(fact.value) and self._is_plain(fact.other):
                    outer = context.outer or self._root
                    value, other = (
                        self.range(each, outer, {}) for each in (fact.value, fact.other)
                    )
                    holds = self.steps.add(fact.op, fact.bits, fact.sign, value, other)
                    condition = (
                        holds if condition is None else self.steps.add(Op.IF, a=holds, b=condition)
                    )
            self._conditions[context] = condition
        return self._conditions[context]

    def _is_plain(self, value: Value, depth: int = 0) -> bool:
        """True if the value is computed from the launch and the thread's coordinates alone."""
        if value.kind is Kind.SPECIAL:
            return value.about in SPECIAL
        if value.kind not in (Kind.COMPUTED, Kind.FETCHED):
            return value.kind in (Kind.NUMBER, Kind.PARAMETER, Kind.PLACE)
        return depth < STEPS_DEPTH_MAX and all(
            self._is_plain(each, depth + 1) for each in value.args
        )

    # ---- ranges of values

    def any(self, bits: int) -> int:
        return self.steps.add(Op.ANY, min(bits or 64, 64))

    def range(self, value: Value, context: Context, assumed: Assumed) -> int:
        """The step that computes the range of a value."""
        self.visits += 1
        if self.visits > VISITS_MAX or self.depth > DEPTH_MAX:
            return self.any(value.bits)
        key = (value, context, tuple(assumed.items()))
        if key not in self._known:
            self.depth += 1
            result = self._unrestricted(value, context, assumed)
            # A parameter has one value, which `_condition` compares.
            single = value.kind in (Kind.PARAMETER, Kind.FETCHED)
            for fact in () if single else context.facts.get(value, ()):
                result = self._narrowed(result, fact, context, assumed)
            for made in context.made.get(value, ()):
                result = self._less(result, value, made, context, assumed)
            self.depth -= 1
            self._known[key] = result
        return self._known[key]

    def _narrowed(self, step: int, fact: Fact, context: Context, assumed: Assumed) -> int:
        if fact in self._facts_in_use or (
            fact.bits == 64 and fact.op is Op.OTHER and _is_zero(fact.other)
        ):
            return step
        self._facts_in_use.add(fact)
        other = self.range(fact.other, context, assumed)
        self._facts_in_use.discard(fact)
        return (
            step
            if self._is_any(other)
            else self.steps.add(fact.op, fact.bits, fact.sign, step, other)
        )

    def _less(self, step: int, value: Value, made: Made, context: Context, assumed: Assumed) -> int:
        """Narrows the range of a value by the facts about one that is made of it."""
        if self._is_any(step):
            return step
        bits = made.total.bits
        by = self.steps.add(Op.NUMBER, number=made.number)
        if not made.shifted:
            total = known = self.steps.add(Op.ADD, bits, a=step, b=by)
        else:
            part = step
            if bits != value.bits:
                sign = Sign.SIGNED if made.total.op[-1][0] == "s" else Sign.UNSIGNED
                part = self.steps.add(Op.AS, value.bits, sign, step)
            total = known = self.steps.add(Op.SHIFT_UP, bits, a=part, b=by)
        for fact in context.facts.get(made.total, ()):
            total = self._narrowed(total, fact, context, assumed)
        if total == known:
            return step
        if made.shifted:
            less = self.steps.add(Op.PART, bits, 0, total, by, known)
        else:
            less = self.steps.add(Op.SUBTRACT, bits, a=total, b=by)
        return self.steps.add(Op.BOTH, value.bits, a=step, b=less)

    def _unrestricted(self, value: Value, context: Context, assumed: Assumed) -> int:
        if value in assumed:
            return assumed[value]
        match value.kind:
            case Kind.NUMBER:
                assert isinstance(value.about, int)
                return self.steps.add(Op.NUMBER, number=as_signed(value.about))
            case Kind.SPECIAL:
                if value.about in SPECIAL:
                    return self.steps.add(Op.SPECIAL, number=SPECIAL[str(value.about)])
                return (
                    self.steps.add(Op.UP_TO, number=LANES - 1)
                    if value.about == "laneid"
                    else (self.any(value.bits))
                )
            case Kind.PARAMETER:
                return self._parameter(value)
            case Kind.PLACE:
                return self._place(value)
            case Kind.FETCHED:
                return self._fetched(value, context, assumed)
            case Kind.RECEIVED:
                assert isinstance(value.about, tuple)
                return self.range(value.args[0], self._block(value.about[0]), assumed)
            case Kind.SELECT:
                return self._select(value.args, value.bits, context, assumed)
            case Kind.PHI:
                return self._phi(value, assumed)
            case Kind.COMPUTED:
                return self._computed(value, context, assumed)
        return self._loaded(value)

    def _loaded(self, value: Value) -> int:
        """The range of a value from memory follows from its size."""
        if value.op[:1] in (("ld",), ("ldu",)) and value.op[-1] in ("u8", "b8", "u16", "b16"):
            return self.steps.add(Op.UP_TO, number=(1 << 8 * TYPE_BYTES[value.op[-1]]) - 1)
        if value.op[:1] in (("ld",), ("ldu",)) and value.op[-1] in ("u32", "b32"):
            return self.steps.add(Op.UP_TO, number=(1 << 32) - 1)
        return self.any(value.bits)

    def _parameter(self, value: Value) -> int:
        kind, offset = value.op[-1], value.about
        assert isinstance(offset, int)
        size = TYPE_BYTES[kind]
        if not 0 <= offset <= self.param_bytes - size:
            return self.any(value.bits)
        sign = Sign.SIGNED if kind[0] == "s" else Sign.UNSIGNED
        return self.steps.add(Op.PARAMETER, 8 * size, sign, number=offset)

    def _place(self, value: Value) -> int:
        """The address of a parameter."""
        assert isinstance(value.about, Sym)
        offset = self.values.params.get(value.about.name)
        if offset is None:
            return self.any(value.bits)
        return self.steps.add(Op.PLACE, number=offset + value.about.offset)

    def place_of(self, value: Value, context: Context, assumed: Assumed) -> int:
        """The step that computes where a FETCHED value is among the parameters."""
        assert isinstance(value.about, int)
        base = self.range(value.args[0], context, assumed)
        by = self.steps.add(Op.NUMBER, number=value.about)
        return base if self._is_any(base) else self.steps.add(Op.ADD, 64, a=base, b=by)

    def _fetched(self, value: Value, context: Context, assumed: Assumed) -> int:
        kind = value.op[-1]
        place = self.place_of(value, context, assumed)
        if self._is_any(place):
            return self._loaded(value)
        sign = Sign.SIGNED if kind[0] == "s" else Sign.UNSIGNED
        return self.steps.add(Op.FETCH, 8 * TYPE_BYTES[kind], sign, a=place)

    def _select(
        self, args: tuple[Value, ...], bits: int, context: Context, assumed: Assumed
    ) -> int:
        predicate, yes, no = args
        steps = [
            self.range(each, self._with(context, predicate, holds), assumed)
            for each, holds in ((yes, True), (no, False))
        ]
        return self._join(steps, bits)

    def _join(self, steps: list[int], bits: int) -> int:
        first, *others = dict.fromkeys(steps)
        for each in others:
            if self._is_any(first) or self._is_any(each):
                return self.any(bits)
            first = self.steps.add(Op.JOIN, bits, a=first, b=each)
        return first

    # ---- loops

    def _phi(self, value: Value, assumed: Assumed) -> int:
        key = (value, tuple(assumed.items()))
        if key in self._known:
            return self._known[key]
        if value in self._open_phis:
            return self.any(value.bits)
        self._open_phis.add(value)
        looped = self._loop_range(value, assumed)
        self._open_phis.discard(value)
        self._known[key] = looped
        return looped

    def _incoming(self, value: Value, back: bool) -> Iterator[tuple[Value, Edge]]:
        """The operands of a phi with their edges: those from outside a loop, or (`back`) those of
        its back edges."""
        assert isinstance(value.about, tuple)
        head = value.about[0]
        for each, edge in zip(value.args, self.blocks[head].edges_in, strict=True):
            if self.blocks.dominates(head, edge.source) == back:
                yield each, edge

    def _incoming_range(self, value: Value, back: bool, assumed: Assumed, raw: bool = False) -> int:
        """The joint range of these values; `raw`: without facts about the incoming value."""
        steps = []
        for each, edge in self._incoming(value, back):
            context = self._on_edge(self._block(edge.source), edge)
            step = (
                self._unrestricted(each, context, assumed)
                if raw
                else (self.range(each, context, assumed))
            )
            steps.append(self._if_executed(step, context))
        return self._join(steps, value.bits)

    def _loop_range(self, value: Value, assumed: Assumed) -> int:
        start = self._incoming_range(value, False, assumed)
        if not any(self._incoming(value, True)):
            return start
        if self._is_any(start):
            return start
        increments = [steps_to(each, value) for each, _ in self._incoming(value, True)]
        guessed = self._guessed_range(value, start, increments, assumed)
        if any(a is None for a in increments):
            return guessed
        iterations = self._iterations(value, assumed)
        if iterations is None:
            return guessed
        by = self._change_per_iteration(value, increments, {**assumed, value: guessed})
        stride = self.steps.add(Op.STRIDE, value.bits, a=start, b=by, c=iterations)
        return self.steps.add(Op.BOTH, value.bits, a=guessed, b=stride)

    def _guessed_range(
        self,
        value: Value,
        start: int,
        increments: list[list[tuple[int, Value]] | None],
        assumed: Assumed,
    ) -> int:
        """Guess a range; the proxy checks whether an iteration of the loop stays within it."""
        decreasing = any(_decreases(a, value.bits) for a in increments)
        bits = value.bits
        by = self._change_per_iteration(value, increments, {**assumed, value: self.any(bits)})
        limit = self._limit(value, decreasing, assumed)
        guess = self.steps.add(
            Op.FALLING if decreasing else Op.RISING, bits, a=start, b=limit, c=by
        )
        around_step = self._incoming_range(value, True, {**assumed, value: guess})
        return self.steps.add(Op.LOOP, bits, a=start, b=guess, c=around_step)

    def _limit(self, value: Value, decreasing: bool, assumed: Assumed) -> int:
        """The limit of the value, from what must hold of it where the loop continues."""
        steps = []
        for each, edge in self._incoming(value, True):
            context = self._on_edge(self._block(edge.source), edge)
            step = self.any(value.bits)
            for made in (Made(each, 0, False), *context.made.get(each, ())):
                for fact in context.facts.get(made.total, ()):
                    op = fact.op
                    if op is Op.OTHER:  # a guess: it counts up or down to that value
                        op = Op.ABOVE if decreasing else Op.BELOW
                    outside = {**assumed, value: self.any(value.bits)}
                    other = self.range(fact.other, context, outside)
                    if self._is_any(other):
                        continue
                    by = self.steps.add(Op.NUMBER, number=made.number)
                    if made.shifted:  # what is at most this shifted is below one more
                        one = self.steps.add(Op.NUMBER, number=1)
                        other = self.steps.add(Op.SHIFT_DOWN, 64, Sign.SIGNED, other, by)
                        other = self.steps.add(Op.ADD, 64, a=other, b=one)
                    elif made.number:
                        other = self.steps.add(Op.SUBTRACT, fact.bits, a=other, b=by)
                    step = self.steps.add(op, fact.bits, fact.sign, step, other)
            steps.append(step)
        return self._join(steps, value.bits)

    def _change_per_iteration(
        self, value: Value, increments: list[list[tuple[int, Value]] | None], assumed: Assumed
    ) -> int:
        """The change of the value in one iteration of the loop."""
        changes = []
        for parts, (_, edge) in zip(increments, self._incoming(value, True), strict=True):
            if parts is None:
                return self.any(64)
            context = self._on_edge(self._block(edge.source), edge)
            total = self.steps.add(Op.NUMBER, number=0)
            for sign, part in parts:
                step = self._operand(part, value.bits, context, assumed)
                op = Op.ADD if sign > 0 else Op.SUBTRACT
                total = self.steps.add(op, 64, a=total, b=step)
            changes.append(total)
        return self._join(changes, 64)

    def _iterations(self, value: Value, assumed: Assumed) -> int | None:
        """The maximum number of iterations, from other values that count."""
        assert isinstance(value.about, tuple)
        fewest: int | None = None
        for counter in self._counters(value.about[0]):
            if counter is value or counter in assumed or counter in self._open_phis:
                continue
            increments = [steps_to(each, counter) for each, _ in self._incoming(counter, True)]
            guessed = self._phi(counter, assumed)
            if self._is_any(guessed):
                continue
            inside = {**assumed, counter: guessed}
            raw = self._incoming_range(counter, True, inside, raw=True)
            by = self._change_per_iteration(counter, increments, inside)
            iterations = self.steps.add(Op.TURNS, counter.bits, a=guessed, b=by, c=raw)
            fewest = (
                iterations
                if fewest is None
                else self.steps.add(Op.BOTH, 64, a=fewest, b=iterations)
            )
        return fewest

    def _counters(self, head: int) -> tuple[Value, ...]:
        """Values that change by steps in the loop with this head, and decide when it ends."""
        if head not in self._counters_of:
            self._counters_of[head] = self._find_counters(head)
        return self._counters_of[head]

    def _find_counters(self, head: int) -> tuple[Value, ...]:
        loop, counters = self.blocks.loop(head), dict[Value, None]()
        for number in loop:
            for after in self.blocks[number].successors:
                edge = next(w for w in self.blocks[after].edges_in if w.source == number)
                condition = self.values.predicate(edge)
                if not condition or (after in loop and after != head):
                    continue
                for fact in facts_of(*condition) + facts_of(condition[0], not condition[1]):
                    counters |= dict.fromkeys(self._counted(fact.value, head))
        return tuple(counters)

    def _counted(self, value: Value, head: int) -> Iterator[Value]:
        """The phis of this block from which a value differs by constant steps."""
        todo, seen = [value], set[Value]()
        while todo and len(seen) < DEPTH_MAX:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            if each.kind is Kind.PHI and isinstance(each.about, tuple) and each.about[0] == head:
                if all(steps_to(v, each) is not None for v, _ in self._incoming(each, True)):
                    yield each
            elif each.kind is Kind.COMPUTED and each.op[0] in ("add", "sub"):
                todo += each.args

    # ---- arithmetic

    def _computed(self, value: Value, context: Context, assumed: Assumed) -> int:
        op, args = value.op, value.args
        kind = op[-1]
        if kind not in INTEGERS or value.bits == 1:
            return self.any(value.bits)
        write = ARITHMETIC.get(op[0])
        if write is None or set(op[1:-1]) - MODIFIERS.get(op[0], frozenset()):
            return self.any(value.bits)
        if op[0] == "selp":
            return self._select((args[2], *args[:2]), value.bits, context, assumed)
        bits = 8 * TYPE_BYTES[kind]
        same_width = args[: 0 if op[0] == "cvt" else 1 if op[0] in ("shl", "shr") else 2]
        result_bits = 2 * bits if "wide" in op else bits
        if any(a.bits not in (bits, LITERAL_BITS) for a in same_width) or (
            op[0] != "cvt" and value.bits != result_bits
        ):
            return self.any(value.bits)
        steps = [
            self._operand(a, 2 * bits if n == 2 and "wide" in op else bits, context, assumed)
            for n, a in enumerate(args)
        ]
        sign = Sign.SIGNED if kind[0] == "s" else Sign.UNSIGNED
        if op[0] == "cvt":
            return self._converted(op, value.bits, steps[0])
        written = write(self.steps, op, bits, sign, steps)
        if magic := multiplied_division_of(value):
            numbers = [self._operand(each, 32, context, assumed) for each in magic]
            by = self.steps.add(Op.DIVISOR, 32, 0, *numbers)
            by = self.steps.add(Op.IF_SIGNED, 32, a=by, b=steps[0])
            rest = self.steps.add(Op.REST, 32, Sign.UNSIGNED, steps[0], by)
            written = self.steps.add(Op.BOTH, 32, a=rest, b=written)
        if division := division_of(value):
            sign = Sign.SIGNED if division.op[-1][0] == "s" else Sign.UNSIGNED
            by = self._operand(division.args[1], bits, context, assumed)
            rest = self.steps.add(Op.REST, bits, sign, steps[0], by)
            written = self.steps.add(Op.BOTH, bits, a=rest, b=written)
        return written

    def _operand(self, value: Value, bits: int, context: Context, assumed: Assumed) -> int:
        """A constant of fewer bits is read as signed, so that its magnitude is small."""
        if value.kind is Kind.NUMBER:
            assert isinstance(value.about, int)
            return self.steps.add(Op.NUMBER, number=as_signed(value.about, bits))
        return self.range(value, context, assumed)

    def _converted(self, op: tuple[str, ...], bits: int, step: int) -> int:
        if len(op) != 3 or op[1] not in INTEGERS:
            return self.any(bits)
        to, source = (8 * TYPE_BYTES[kind] for kind in op[1:])
        signs = [Sign.SIGNED if kind[0] == "s" else Sign.UNSIGNED for kind in op[1:]]
        if to > source:
            step = self.steps.add(Op.AS, source, signs[1], step)
        if to < source or bits != to:
            step = self.steps.add(Op.AS, to, signs[0], step)
        return step


def made_of(value: Value) -> Iterator[tuple[Value, Made]]:
    """The value that another one is made of, with a number, and how, if it is."""
    if value.kind is not Kind.COMPUTED or len(value.args) != 2 or value.op[-1] not in INTEGERS:
        return
    part, other = value.args
    if part.kind is Kind.NUMBER and value.op[0] in ("add", "mul"):
        part, other = other, part
    number = other.about
    if other.kind is not Kind.NUMBER or not isinstance(number, int):
        return
    bits = 8 * TYPE_BYTES[value.op[-1]]
    if part.bits != bits or value.bits != (2 * bits if "wide" in value.op else bits):
        return
    match value.op:
        case ("add" | "sub" as how, _):
            number = as_signed(number, bits)
            yield part, Made(value, number if how == "add" else -number, False)
        case ("shl", _) if 0 <= number < bits:
            yield part, Made(value, number, True)
        case ("mul", "lo" | "wide", _) if number > 0 and not number & (number - 1):
            yield part, Made(value, number.bit_length() - 1, True)


def steps_to(value: Value, start: Value, depth: int = 0) -> list[tuple[int, Value]] | None:
    """The operands that are added (1) or subtracted (-1) from `start` to `value`.

    None: it is computed in another way, or the chain is too long.
    """
    if value is start:
        return []
    if value.kind is not Kind.COMPUTED or len(value.op) != 2 or depth > STEPS_DEPTH_MAX:
        return None
    name, kind = value.op
    if name not in ("add", "sub") or kind not in INTEGERS or 8 * TYPE_BYTES[kind] != start.bits:
        return None
    for n in (0, 1) if name == "add" else (0,):
        before = steps_to(value.args[n], start, depth + 1)
        if before is not None:
            return [*before, (1 if name == "add" else -1, value.args[1 - n])]
    return None


def division_of(value: Value) -> Value | None:
    """The n / d in n - n / d * d.

    Compilers compute the remainder in this way if they also need the quotient. All operands have
    the same number of bits; the sign is the division's.
    """
    if value.op[0] != "sub" or len(value.op) != 2:
        return None
    number, product = value.args
    if product.op[:-1] != ("mul", "lo"):
        return None
    for quotient, divisor in (product.args, product.args[::-1]):
        kinds = (value.op[-1], product.op[-1], *quotient.op[-1:])
        if (
            quotient.op[:-1] == ("div",)
            and quotient.args == (number, divisor)
            and (set(kinds) <= INTEGERS and len({TYPE_BYTES[kind] for kind in kinds}) == 1)
        ):
            return quotient
    return None


def multiplied_division_of(value: Value) -> tuple[Value, Value, Value] | None:
    """In n - q * d, where q is ((n * m >> 32) + n) >> s: m, s and d, of 32 bits.

    So PyTorch divides by a number that it knows before the launch (Granlund and Montgomery, 1994).
    """
    if value.op[:1] != ("sub",) or len(value.op) != 2 or value.bits != 32:
        return None
    number, product = value.args
    if product.op[:2] != ("mul", "lo") or TYPE_BYTES.get(product.op[-1]) != 4:
        return None
    for quotient, divisor in (product.args, product.args[::-1]):
        if quotient.op != ("shr", "u32") or quotient.args[0].op[:1] != ("add",):
            continue
        total, shift = quotient.args
        for high, other in (total.args, total.args[::-1]):
            if high.op != ("mul", "hi", "u32") or other is not number or number not in high.args:
                continue
            magic = high.args[1] if high.args[0] is number else high.args[0]
            if total.bits == high.bits == divisor.bits == 32:
                return magic, shift, divisor
    return None


def _decreases(parts: list[tuple[int, Value]] | None, bits: int) -> bool:
    if not parts:
        return False
    sign, part = parts[-1]
    below = (
        isinstance(part.about, int)
        and part.kind is Kind.NUMBER
        and (as_signed(part.about, bits) < 0)
    )
    return (sign < 0) != below


def _is_zero(value: Value) -> bool:
    return value.kind is Kind.NUMBER and value.about == 0

"""Alias analysis: finds accesses to shared memory that never overlap, in any two threads of a
block.

The loop of a sum over a block is `if (t < h) s[t] += s[t + h]`. No other thread loads in the same
iteration what a thread stores there: the stores are below `s + h`, the loads of `s[t + h]` from
there on. So no `meet` is needed between the two (meeting.py).

In general, access P covers w bytes at U + k·T, access Q covers v bytes at D after that, and

1. U, D and F are uniform (uniformity.py): the same for all threads;
2. at P, T ≤ F holds for T as an unsigned number, because of the branches that dominate P;
3. D = k·F + r with a constant r ≥ w. So P's bytes are within U + [0, D), and Q's after U + D;
4. at Q, T is at most M, and k·M + D + v ≤ 2^32 for the greatest possible D, so no 32-bit address
   wraps around to those of P;
5. if U, D or F change in a loop, all threads wait for each other at a barrier in each iteration,
   and only accesses in the same iteration are compared. Otherwise threads could be in different
   iterations.

T may be any value that differs between threads, and several threads may have the same value.
Everything is computed modulo 2^32.

Accesses at the addresses of two variables, each plus any number, do not overlap either: PTX does
not specify where variables are, so a program must not reach one from another. Only variables whose
size the launch decides share one address.

All other accesses may overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rankfold.proxy.ptx.bounds import bytes_of
from rankfold.proxy.ptx.facts import Fact, facts_of
from rankfold.proxy.ptx.model import TYPE_BYTES, Mem, Sym, Variable
from rankfold.proxy.ptx.parameters import Flat
from rankfold.proxy.ptx.steps import Op, Sign
from rankfold.proxy.ptx.values import Kind, MemoryInstr, Value, Values

from .uniformity import Uniformity

INSTRS_MAX = 20_000
PAIRS_MAX = 4096
DEPTH_MAX = 30  # of nested computations
VISITS_MAX = 20_000  # of values, to bound them
_WORD = 1 << 32
_HALF = 1 << 31
_THREADS_MAX = {"x": 1024, "y": 1024, "z": 64}  # per block, in each dimension
_ONE = None  # in a Form: the constant

# A sum of values, and of addresses of variables by name, each times a number, modulo 2^32.
Form = dict[Value | str | None, int]


class Disjointness:
    """The analysis of one kernel. `params`: offsets of its parameters; `variables`: those that
    it may name. Raises NoLabel."""

    def __init__(self, flat: Flat, params: dict[str, int], variables: Mapping[str, Variable]):
        self.variables = variables
        self.values = Values(flat, params)
        self.uniformity = Uniformity(self.values)
        self.seen = {each.at: each for each in self.values.memory_instrs}
        self.pairs = self.visits = 0
        self._forms: dict[Value, Form] = {}
        self._upper_bounds: dict[Value, int] = {}

    def are_disjoint(self, one: int, other: int, same_iteration: bool) -> bool:
        """Returns True if two instructions, loads or stores of shared memory given by their
        numbers, never access the same bytes. `same_iteration`: only while no loop has begun a new
        iteration between them."""
        self.pairs += 1
        if self.pairs > PAIRS_MAX or one not in self.seen or other not in self.seen:
            return False
        a, b = self.seen[one], self.seen[other]
        return (
            self._in_two_variables(a, b)
            or self._below(a, b, same_iteration)
            or self._below(b, a, same_iteration)
        )

    def _in_two_variables(self, a: MemoryInstr, b: MemoryInstr) -> bool:
        """Returns True if each is at the address of one variable plus a number, of two different
        variables."""
        names = set[str]()
        for access in (a, b):
            terms = self._address(access) or {}
            variables = [each for each in terms if isinstance(each, str)]
            if len(variables) != 1 or terms[variables[0]] != 1:
                return False
            names.add(variables[0])
        known = [self.variables[name] for name in names if name in self.variables]
        return len(known) == 2 and not all(variable.extern for variable in known)

    def _below(self, p: MemoryInstr, q: MemoryInstr, same_iteration: bool) -> bool:
        first, second = self._address(p), self._address(q)
        if first is None or second is None:
            return False
        return any(
            self._is_below(fact, first, second, (p, q), same_iteration)
            for fact in self._facts_at(p)
            if fact.bits == 32 and fact.op in (Op.BELOW, Op.AT_MOST, Op.EQUAL)
        )

    def _is_below(
        self,
        fact: Fact,
        p: Form,
        q: Form,
        accesses: tuple[MemoryInstr, MemoryInstr],
        same_iteration: bool,
    ) -> bool:
        """Checks the conditions of the module's docstring, with its names."""
        if not self._holds_unsigned(fact):
            return False
        t, f = self._form(fact.value), self._form(fact.other)
        f = _sum(f, {_ONE: 1}, -1) if fact.op is Op.BELOW else f
        k = next((p.get(each, 0) for each, by in t.items() if by == 1 and each), 0)
        d = _sum(q, p, -1)
        u, rest = _sum(p, t, -k), _sum(d, f, -k)
        w, v = (bytes_of(each.instr) for each in accesses)
        if not (0 < k < _HALF and w and v and set(rest) <= {_ONE}):
            return False
        r = _signed(rest.get(_ONE, 0))
        f_max = self.upper_bound(fact.other)
        t_max = self._upper_bound_at(fact.value, accesses[1])
        if r < w or k * (t_max + f_max) + r + v > _WORD:
            return False
        shared = {each for part in (u, d, f) for each in part if isinstance(each, Value)}
        return all(map(self.uniformity.is_uniform, shared)) and self._are_invariant(
            shared, same_iteration
        )

    def _are_invariant(self, values: set[Value], same_iteration: bool) -> bool:
        """Returns True if these values do not change between the accesses of two threads, one at
        each of them."""
        phi_blocks = {
            number
            for number in _phi_blocks(values)
            if number
            in self.uniformity.reached_from([*self.values.blocks[number].successors], frozenset())
        }
        return not phi_blocks or (
            same_iteration and all(map(self.uniformity.joins_each_iteration, phi_blocks))
        )

    # ---- facts about an access

    def _address(self, access: MemoryInstr) -> Form | None:
        (base,) = access.bases if len(access.bases) == 1 else (None,)
        where = next((each for each in access.instr.args if isinstance(each, Mem)), None)
        if base is None or where is None or (base.bits > 32 and base.kind is not Kind.PLACE):
            return None
        return _sum(self._form(base), {_ONE: where.offset}, 1)

    def _facts_at(self, access: MemoryInstr) -> Iterator[Fact]:
        """Yields the facts given by the branches that dominate an access."""
        blocks = self.values.blocks
        number = access.block
        while blocks[number].dominator != number:
            edges_in = blocks[number].edges_in
            predicate = self.values.predicate(edges_in[0]) if len(edges_in) == 1 else None
            yield from facts_of(*predicate) if predicate else ()
            number = blocks[number].dominator

    def _holds_unsigned(self, fact: Fact) -> bool:
        """Returns True if the fact is true for unsigned numbers."""
        if fact.sign is Sign.UNSIGNED or fact.op is Op.EQUAL:
            return True
        return self.upper_bound(fact.value) < _HALF and self.upper_bound(fact.other) < _HALF

    def _upper_bound_at(self, value: Value, access: MemoryInstr) -> int:
        """Returns an upper bound of the value at an access."""
        bounds = [
            self.upper_bound(fact.other)
            for fact in self._facts_at(access)
            if fact.value is value
            and fact.bits == 32
            and fact.op in (Op.BELOW, Op.AT_MOST, Op.EQUAL)
            and self._holds_unsigned(fact)
        ]
        return min([self.upper_bound(value), *bounds])

    # ---- upper bounds of values

    def upper_bound(self, value: Value) -> int:
        """Returns an upper bound of a 32-bit value, as an unsigned number."""
        if value not in self._upper_bounds:
            self._upper_bounds[value] = self._compute_bound(value, {}, 0)
        return self._upper_bounds[value]

    def _compute_bound(self, value: Value, assumed: dict[Value, int], depth: int) -> int:
        anything = _WORD - 1
        if value in assumed:
            return assumed[value]
        self.visits += 1
        if depth > DEPTH_MAX or self.visits > VISITS_MAX:
            return anything
        match value.kind:
            case Kind.NUMBER:
                assert isinstance(value.about, int)
                return value.about % _WORD
            case Kind.SPECIAL:
                return _special_bound(str(value.about))
            case Kind.PHI:
                # If it is bounded by its initial value: does the bound persist in each iteration?
                initially = assumed | {value: 0}
                guess = max(self._compute_bound(each, initially, depth + 10) for each in value.args)
                later = assumed | {value: guess}
                holds = all(
                    self._compute_bound(each, later, depth + 10) <= guess for each in value.args
                )
                return guess if holds else anything
            case Kind.COMPUTED:
                if set(terms := self._form(value)) <= {_ONE}:
                    return terms.get(_ONE, 0)
                bounds = [self._compute_bound(each, assumed, depth + 1) for each in value.args]
                return min(_computed_bound(value, bounds), anything)
        return anything

    # ---- values as sums

    def _form(self, value: Value, depth: int = 0) -> Form:
        """Returns a 32-bit value as a sum."""
        if value not in self._forms:
            self._forms[value] = self._terms(value, depth + 1) or {value: 1}
        return self._forms[value]

    def _terms(self, value: Value, depth: int) -> Form | None:
        if value.kind is Kind.NUMBER:
            assert isinstance(value.about, int)
            return {_ONE: value.about % _WORD}
        if value.kind is Kind.PLACE:
            assert isinstance(value.about, Sym)
            return _sum({value.about.name: 1}, {_ONE: value.about.offset}, 1)
        if value.kind is not Kind.COMPUTED or depth > DEPTH_MAX:
            return None
        args, number = value.args, _number(value)
        match value.op:
            case ("add" | "sub" as how, "s32" | "u32"):
                first, second = (self._form(each, depth) for each in args)
                return _sum(first, second, 1 if how == "add" else -1)
            case ("shl", "b32") if 0 <= number < 32:
                return _sum({}, self._form(args[0], depth), 1 << number)
            case ("mul" | "mad", "lo", "s32" | "u32") if number >= 0:
                more = self._form(args[2], depth) if len(args) > 2 else {}
                return _sum(more, self._form(args[0], depth), number)
        return None


def _number(value: Value) -> int:
    """Returns an operation's second argument if it is a constant that is not negative, else -1."""
    about = value.args[1].about if len(value.args) > 1 else None
    return about if isinstance(about, int) and value.args[1].kind is Kind.NUMBER else -1


def _sum(a: Form, b: Form, times: int) -> Form:
    """Returns a + b · times."""
    return _reduced({each: a.get(each, 0) + times * b.get(each, 0) for each in (a | b)})


def _reduced(form: Form) -> Form:
    return {each: by % _WORD for each, by in form.items() if by % _WORD}


def _signed(number: int) -> int:
    return (number + _HALF) % _WORD - _HALF


def _special_bound(name: str) -> int:
    kind, _, dimension = name.partition(".")
    if kind == "ntid" and dimension in _THREADS_MAX:
        return _THREADS_MAX[dimension]
    if kind == "tid" and dimension in _THREADS_MAX:
        return _THREADS_MAX[dimension] - 1
    return 31 if name == "laneid" else _WORD - 1


def _computed_bound(value: Value, bounds: list[int]) -> int:
    """Returns an upper bound of a computed value; `bounds`: those of its arguments. It may exceed
    32 bits."""
    number, kind = _number(value), value.op[-1]
    if value.bits != 32 or TYPE_BYTES[kind] != 4 or (kind[0] == "s" and max(bounds) >= _HALF):
        return _WORD - 1
    match value.op:
        case ("add", _):
            return bounds[0] + bounds[1]
        case ("mul", "lo", _):
            return bounds[0] * bounds[1]
        case ("mad", "lo", _):
            return bounds[0] * bounds[1] + bounds[2]
        case ("shl", _) if 0 <= number < 32:
            return bounds[0] << number
        case ("shr", _) if 0 <= number < 32:
            return bounds[0] >> number
        case ("div", _) if number > 0:
            return bounds[0] // number
        case ("and", _):
            return min(bounds)
        case ("min", _):
            return min(bounds)
        case ("max", _):
            return max(bounds)
    return _WORD - 1


def _phi_blocks(values: set[Value]) -> set[int]:
    """Returns the blocks of the phis from which these values are computed."""
    numbers, seen, todo = set[int](), set[Value](), list(values)
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.kind is Kind.PHI:
            assert isinstance(value.about, tuple)
            numbers.add(value.about[0])
        else:
            todo += value.args
    return numbers

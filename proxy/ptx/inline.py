"""Makes one list of instructions from a kernel and the device functions that it calls.

Functions are inlined; recursion.py handles those that can call themselves. Parameters of calls
become registers, or local memory if they are not used like registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import recursion
from .calls import Bodies
from .errors import INVALID_PTX, ModuleError, unsupported
from .model import (
    TYPE_BYTES,
    Function,
    Instr,
    Int,
    Mem,
    Module,
    Not,
    Operand,
    Pair,
    Param,
    Part,
    Reg,
    Sink,
    Sym,
    Variable,
    Vec,
)
from .parameters import Flat, promote

INLINED_INSTRS_MAX = 200_000


class _Inliner:
    def __init__(self, module: Module, kernel: str):
        self.module, self.kernel = module, kernel
        self.flat = Flat()
        self.bodies = Bodies(module)
        self.count = 0
        self.chosen = False  # inside a choice by address: a function in it may never be called
        self.stack = recursion.Stack(self.flat)
        self.shared: dict[str, recursion.Shared] = {}  # the functions that are shared, not inlined
        self._calls: dict[str, set[str]] = {}  # which functions a function calls
        self._reach: dict[str, set[str]] = {}

    def kernel_body(self) -> None:
        """Write the kernel, followed by the functions to which it branches."""
        self.expand(self.module.functions[self.kernel], "", {}, self.kernel)
        self.flat.instrs.append(Instr(("exit",)))
        bodies: list[str] = []
        while pending := [name for name in self.shared if name not in bodies]:
            for name in pending:
                bodies.append(name)
                self._stand_once(self.module.functions[name], self.shared[name])
        for name in bodies:
            self.stack.leave(self.shared[name])
        self.stack.begin()

    def expand(
        self,
        function: Function,
        prefix: str,
        formals: dict[str, str],
        within: str,
        frame: recursion.Shared | None = None,
    ) -> None:
        """Append the instructions of a function.

        `within`: the function's name if this is its shared copy (or the kernel), "" if it is
        inlined.
        """
        body = self.bodies.body(function.name)
        for name, kind in body.registers.items():
            self.flat.registers[prefix + name] = kind
        for name, variable in body.variables.items():
            if not frame or name not in frame.frame:
                renamed = dataclasses.replace(variable, name=prefix + name)
                self.flat.variables[prefix + name] = renamed
        names = {name: prefix + name for name in body.variables} | formals
        for instr in body.instrs:
            self._instr(instr, prefix, names, within, frame)
        if len(self.flat.instrs) > INLINED_INSTRS_MAX:
            raise unsupported(f"a body of more than {INLINED_INSTRS_MAX} instructions", self.kernel)

    def _instr(
        self,
        instr: Instr,
        prefix: str,
        names: dict[str, str],
        within: str,
        frame: recursion.Shared | None,
    ) -> None:
        if prefix or any(isinstance(a, Sym | Mem | Vec) for a in instr.args):
            instr = dataclasses.replace(
                instr,
                args=tuple(_rename(a, prefix, names) for a in instr.args),
                pred=Reg(prefix + instr.pred.name) if instr.pred else None,
                target=instr.target if instr.op[0] == "call" else prefix + instr.target,
                targets=tuple(prefix + t for t in instr.targets),
            )
        if frame and instr.op[0] != "call":
            instr = self._in_frame(instr, frame)
        if instr.op[0] == "call":
            self._call(instr, within)
        elif instr.op[0] == "ret" and prefix:
            self.flat.instrs.append(
                Instr(("bra",), pred=instr.pred, negated=instr.negated, target=prefix + "return")
            )
        elif instr.op[0] in ("alloca", "stacksave", "stackrestore"):
            self._predicated(instr, self.stack.alloca)
        else:
            self.flat.instrs.append(instr)

    def _predicated(self, instr: Instr, write: Callable[[Instr], None]) -> None:
        """Write several instructions for one, under the predicate of that one."""
        over = f"{self.count}:guard {len(self.flat.instrs)}"
        if instr.pred:
            self.flat.instrs.append(
                Instr(("bra",), pred=instr.pred, negated=not instr.negated, target=over)
            )
        write(instr)
        self.flat.instrs.append(Instr(("label",), target=over))

    def _call(self, instr: Instr, within: str) -> None:
        name = instr.target
        if name == "vprintf":
            self._predicated(instr, self._print)
            return
        if any(not isinstance(a, Sym) for a in _passed(instr)):
            self._predicated(instr, lambda call: self._call_with_registers(call, within))
            return
        if len(instr.args) > 2:
            self._call_indirect(instr, within)
            return
        if name == "__assertfail":
            self._predicated(instr, self._assert)
            return
        callee = self.module.functions.get(name)
        if callee is None or not callee.defined:
            if name in ("malloc", "free"):
                self._predicated(instr, self._allocation)
                return
            if not self.chosen:
                raise unsupported(f"the device function {name}", self.kernel)
            refused = Instr(("trap", "refused"), text=instr.text)
            self._predicated(instr, lambda _: self.flat.instrs.append(refused))
            return
        if name in self.reach(name):
            self._predicated(instr, lambda call: self._call_shared(call, callee, within))
            return
        self.count += 1
        prefix = f"{self.count}:"
        over = f"{prefix}return"
        if instr.pred:
            self.flat.instrs.append(
                Instr(("bra",), pred=instr.pred, negated=not instr.negated, target=over)
            )
        bound = {formal.name: actual.name for formal, actual in self._bound(instr, callee)}
        takes = any(i.op[0] == "alloca" for i in self.bodies.body(name).instrs)
        saved = Reg(prefix + "top")
        if takes:
            self.flat.registers[saved.name] = "u64"
            self.flat.instrs.append(recursion.instr("mov.u64", saved, self.stack.top()))
        self.expand(callee, prefix, bound, "")
        if takes:
            self.flat.instrs.append(Instr(("label",), target=over))
            self.flat.instrs.append(recursion.instr("mov.u64", self.stack.top(), saved))
        else:
            self.flat.instrs.append(Instr(("label",), target=over))

    def _call_with_registers(self, instr: Instr, within: str) -> None:
        """Pass registers and constants as all else, through .param variables."""
        callee = self.module.functions.get(instr.target)
        formals = [*callee.returns, *callee.params] if callee else []
        self.count += 1
        places: list[Operand] = []
        before, after = [], []
        for index, actual in enumerate(_passed(instr)):
            if isinstance(actual, Sym):
                places.append(actual)
                continue
            if isinstance(actual, Reg):
                kind = self.flat.registers[actual.name]
            elif index < len(formals):
                kind = formals[index].register or f"b{8 * formals[index].bytes}"
            else:
                raise unsupported(f"the constant in {instr.text!r}", self.kernel)
            place = Sym(f"{self.count}:passed {index}")
            self.flat.variables[place.name] = Variable(place.name, "param", 8, TYPE_BYTES[kind])
            places.append(place)
            before.append(Instr(("st", "param", kind), (Mem(place), actual), text=instr.text))
            after.append(Instr(("ld", "param", kind), (actual, Mem(place)), text=instr.text))
        assert isinstance(instr.args[0], Vec)
        results = len(instr.args[0].items)
        args = (Vec(tuple(places[:results])), Vec(tuple(places[results:])), *instr.args[2:])
        in_registers = sum(not isinstance(a, Sym) for a in instr.args[0].items)
        self.flat.instrs += before[in_registers:]
        self._call(dataclasses.replace(instr, args=args, pred=None), within)
        self.flat.instrs += after[:in_registers]

    def _bound(self, instr: Instr, callee: Function) -> list[tuple[Param, Sym]]:
        """The callee's results and parameters, with their variables at this call."""
        returned, params = instr.args[:2]
        assert isinstance(returned, Vec) and isinstance(params, Vec)
        actuals = [a for a in (*returned.items, *params.items) if isinstance(a, Sym)]
        formals = [*callee.returns, *callee.params]
        if len(returned.items) + len(params.items) != len(actuals) or len(formals) != len(actuals):
            raise ModuleError(INVALID_PTX, f"kernel {self.kernel}: bad call of {callee.name}")
        return list(zip(formals, actuals, strict=True))

    # ---- shared functions: recursion.py

    def reach(self, name: str) -> set[str]:
        """The functions that a call of this one can lead to."""
        if name not in self._reach:
            todo = [name]
            while todo:
                each = todo.pop()
                if each not in self._calls:
                    self._calls[each] = self._callees(each)
                    todo += self._calls[each]
            self._reach[name] = recursion.reachable(self._calls, name)
        return self._reach[name]

    def _callees(self, name: str) -> set[str]:
        body, names = self.bodies.body(name), set()
        for instr in body.instrs:
            if instr.op[0] != "call":
                continue
            if len(instr.args) > 2:
                sizes = {n: v.size for n, v in body.variables.items()}
                sizes |= {n: TYPE_BYTES[kind] for n, kind in body.registers.items()}
                shape = tuple(_shape(a, sizes) for a in instr.args[:2])
                names.update(self._candidates(shape))
            else:
                names.add(instr.target)
        functions = self.module.functions
        return {n for n in names if n in functions and functions[n].defined}

    def _stand_once(self, function: Function, own: recursion.Shared) -> None:
        self.chosen = own.chosen
        for name, variable in self.bodies.body(function.name).variables.items():
            if variable.space == "local":
                align = max(variable.align, 1)
                offset = (own.frame_bytes + align - 1) // align * align
                own.frame[name] = offset
                own.frame_bytes = offset + variable.size
        own.frame_bytes = recursion.rounded(own.frame_bytes)
        self.stack.enter(own)
        formals = {f.name: own.prefix + f.name for f in (*function.returns, *function.params)}
        self.expand(function, own.prefix, formals, function.name, own)
        self.flat.instrs.append(Instr(("bra",), target=own.prefix + "return"))

    def _in_frame(self, instr: Instr, own: recursion.Shared) -> Instr:
        """Replace the function's variables by their places on the stack."""
        args = list(instr.args)
        for index, arg in enumerate(args):
            inner = arg.base if isinstance(arg, Mem) else arg
            if not isinstance(inner, Sym) or not inner.name.startswith(own.prefix):
                continue
            offset = own.frame.get(inner.name.removeprefix(own.prefix))
            if offset is None:
                continue
            if isinstance(arg, Mem):
                args[index] = Mem(own.base, offset + inner.offset + arg.offset)
                continue
            place = Reg(f"{own.prefix}%place {len(self.flat.instrs)}")
            self.flat.registers[place.name] = "u64"
            where = Int(offset + inner.offset)
            self.flat.instrs.append(recursion.instr("add.u64", place, own.base, where))
            args[index] = place
        return dataclasses.replace(instr, args=tuple(args))

    def _call_shared(self, instr: Instr, callee: Function, within: str) -> None:
        """Call a shared function: copies parameters to its own variables, and results from them."""
        bound, name = self._bound(instr, callee), callee.name
        if name not in self.shared:
            self.shared[name] = recursion.Shared(f"{name}:", self.chosen)
            for formal, _ in bound:
                own = self.shared[name].prefix + formal.name
                self.flat.variables[own] = Variable(own, "param", 8, formal.bytes)
        target = self.shared[name]
        self.count += 1
        caller = self.shared.get(within) if within in self.reach(name) else None
        if caller:
            self.stack.save(caller)
        results = len(callee.returns)
        for formal, actual in bound[results:]:
            self._copy(actual, Sym(target.prefix + formal.name), formal.bytes)
        self.stack.jump(target, f"{self.count}:back")
        results_stored = []
        for formal, actual in bound[:results]:
            where = Sym(f"{self.count}:result {actual.name}")
            self.flat.variables[where.name] = Variable(where.name, "param", 8, formal.bytes)
            self._copy(Sym(target.prefix + formal.name), where, formal.bytes)
            results_stored.append((where, actual, formal.bytes))
        if caller:
            self.stack.restore(caller)
        for where, actual, size in results_stored:
            self._copy(where, actual, size)

    def _copy(self, source: Sym, to: Sym, size: int) -> None:
        for (read, kind), (write, _) in zip(
            recursion.pieces(source, size), recursion.pieces(to, size), strict=True
        ):
            word = Reg(f"{self.count}:{kind}")
            self.flat.registers[word.name] = kind
            self.flat.instrs += [
                recursion.instr(f"ld.param.{kind}", word, read),
                recursion.instr(f"st.param.{kind}", write, word),
            ]

    def _load_arguments(self, instr: Instr, *kinds: str) -> list[Reg]:
        """Load the parameters of a call, which must be of exactly these types."""
        returned, params = instr.args[:2]
        assert isinstance(returned, Vec) and isinstance(params, Vec)
        if len(params.items) != len(kinds) or len(returned.items) > 1:
            raise ModuleError(INVALID_PTX, f"kernel {self.kernel}: bad call of {instr.target}")
        self.count += 1
        words = []
        for index, (param, kind) in enumerate(zip(params.items, kinds, strict=True)):
            assert isinstance(param, Sym)
            words.append(Reg(f"{self.count}:given {index}"))
            self.flat.registers[words[-1].name] = kind
            load = Instr(("ld", "param", kind), (words[-1], Mem(param)), text=instr.text)
            self.flat.instrs.append(load)
        return words

    def _print(self, instr: Instr) -> None:
        """vprintf(format, arguments): becomes an internal instruction."""
        words = self._load_arguments(instr, "b64", "b64")
        printed = Reg(f"{self.count}:printed")
        self.flat.registers[printed.name] = "u32"
        self.flat.instrs.append(Instr(("vprintf",), (printed, *words), text=instr.text))
        assert isinstance(instr.args[0], Vec)
        for item in instr.args[0].items:
            assert isinstance(item, Sym)
            stored = Instr(("st", "param", "b32"), (Mem(item), printed), text=instr.text)
            self.flat.instrs.append(stored)

    def _assert(self, instr: Instr) -> None:
        """__assertfail(message, file, line, function, bytes per character)"""
        arguments = self._load_arguments(instr, "b64", "b64", "b32", "b64", "b64")
        self.flat.instrs += [
            Instr(("assertfail",), tuple(arguments[:4]), text=instr.text),
            Instr(("trap",), text=instr.text),
        ]

    def _allocation(self, instr: Instr) -> None:
        """malloc(bytes), free(address): become internal instructions."""
        (word,) = self._load_arguments(instr, "b64")
        if instr.target == "free":
            self.flat.instrs.append(Instr(("free",), (Sink(), word), text=instr.text))
            return
        allocated = Reg(f"{self.count}:allocated")
        self.flat.registers[allocated.name] = "u64"
        self.flat.instrs.append(Instr(("malloc",), (allocated, word), text=instr.text))
        assert isinstance(instr.args[0], Vec)
        for item in instr.args[0].items:
            assert isinstance(item, Sym)
            stored = Instr(("st", "param", "b64"), (Mem(item), allocated), text=instr.text)
            self.flat.instrs.append(stored)

    def _call_indirect(self, instr: Instr, within: str) -> None:
        """Choose among the functions whose address is taken and whose parameter sizes match."""
        returned, params, where = instr.args
        assert isinstance(returned, Vec) and isinstance(params, Vec)
        sizes = {n: v.size for n, v in self.flat.variables.items()}
        shape = _shape(returned, sizes), _shape(params, sizes)
        self.count += 1
        prefix = f"{self.count}:"
        match, over = Reg(prefix + "match"), prefix + "return"
        self.flat.registers[match.name] = "pred"
        flat = self.flat.instrs
        if instr.pred:
            flat.append(Instr(("bra",), pred=instr.pred, negated=not instr.negated, target=over))
        outer, self.chosen = self.chosen, True
        for name in self._candidates(shape):
            test = Instr(("setp", "eq", "u64"), (match, where, Sym(name)), text=instr.text)
            following = f"{prefix}not {name}"
            flat += [test, Instr(("bra",), pred=match, negated=True, target=following)]
            self._call(Instr(("call",), (returned, params), target=name, text=instr.text), within)
            flat += [Instr(("bra",), target=over), Instr(("label",), target=following)]
        self.chosen = outer
        flat += [Instr(("trap",), text=instr.text), Instr(("label",), target=over)]

    def _candidates(self, shape: tuple[tuple[int, ...], ...]) -> list[str]:
        known = self.module.functions

        def shape_of(name: str) -> tuple[tuple[int, ...], ...]:
            return _sizes(known[name].returns), _sizes(known[name].params)

        return [
            name
            for name in sorted(self.bodies.address_taken(self.kernel))
            if shape_of(name) == shape
        ]


def _passed(call: Instr) -> list[Operand]:
    """The results and parameters that a call names."""
    returned, params = call.args[:2]
    assert isinstance(returned, Vec) and isinstance(params, Vec)
    return [*returned.items, *params.items]


def _shape(actuals: Operand, sizes: dict[str, int]) -> tuple[int, ...]:
    assert isinstance(actuals, Vec)
    names = [a.name for a in actuals.items if isinstance(a, Sym | Reg)]
    return tuple(sizes[n] for n in names if n in sizes)


def _sizes(params: tuple[Param, ...]) -> tuple[int, ...]:
    return tuple(param.bytes for param in params)


def _rename(operand: Operand, prefix: str, names: dict[str, str]) -> Operand:
    match operand:
        case Reg(name):
            return Reg(prefix + name)
        case Sym(name, offset):
            return Sym(names.get(name, name), offset)
        case Mem(base, offset):
            renamed = _rename(base, prefix, names)
            assert isinstance(renamed, Reg | Sym | Int)
            return Mem(renamed, offset)
        case Vec(items):
            return Vec(tuple(_rename(item, prefix, names) for item in items))
        case Pair(first, second):
            return Pair(_rename(first, prefix, names), _rename(second, prefix, names))
        case Not(inner):
            return Not(_rename(inner, prefix, names))
        case Part(Reg(name)):
            return dataclasses.replace(operand, register=Reg(prefix + name))
    return operand


def flatten(module: Module, kernel: Function) -> Flat:
    """Inline every call of a kernel; parameters of calls become registers or local memory."""
    inliner = _Inliner(module, kernel.name)
    inliner.kernel_body()
    in_memory = promote(inliner.flat)
    inliner.stack.expand(in_memory)
    return inliner.flat

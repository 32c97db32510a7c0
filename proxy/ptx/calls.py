"""Determines which functions a kernel may call."""

from __future__ import annotations

from .body import parse_body
from .model import Body, Module, symbols_of


class Bodies:
    """The bodies of a module's functions; each is read when it is first needed."""

    def __init__(self, module: Module):
        self.module = module
        self._bodies: dict[str, Body] = {}
        self._address_taken: dict[str, set[str]] = {}

    def body(self, name: str) -> Body:
        """A function's body. Raises ModuleError."""
        if name not in self._bodies:
            elements = {v.name: v.element for v in self.module.variables.values()}
            self._bodies[name] = parse_body(self.module.functions[name], elements)
        return self._bodies[name]

    def address_taken(self, kernel: str) -> set[str]:
        """Functions whose address a variable, a function or this kernel contains."""
        if kernel not in self._address_taken:
            known = {f.name for f in self.module.functions.values() if f.defined and not f.entry}
            addresses = {p[1] for v in self.module.variables.values() for p in v.pointers}
            for name in [*known, kernel]:
                for instr in self.body(name).instrs:
                    if instr.op[0] != "call":
                        addresses.update(n for a in instr.args for n in symbols_of(a))
            self._address_taken[kernel] = known & addresses
        return self._address_taken[kernel]


def called(module: Module, kernel: str, by_address: bool) -> set[str]:
    """The functions that a kernel may call, including those without a body.

    `by_address`: assume that indirect calls reach every function whose address is taken. Otherwise
    indirect calls are ignored.
    """
    bodies, found, todo = Bodies(module), set[str](), [kernel]
    addresses = (
        bodies.address_taken(kernel) | set(module.address_taken_in_kernels) if by_address else set()
    )
    while todo:
        for instr in bodies.body(todo.pop()).instrs:
            if instr.op[0] != "call":
                continue
            names = addresses if len(instr.args) > 2 else {instr.target}
            for name in names - found:
                found.add(name)
                callee = module.functions.get(name)
                todo += [name] if callee and callee.defined else []
    return found

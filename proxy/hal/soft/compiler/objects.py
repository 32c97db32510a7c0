"""Compiled kernels: their content, their cache key, and their target machine.

A proxy needs only this module; it imports nothing of the compiler, which is a separate process. The
CPU is fixed so that objects can move between machines.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from rankfold.proxy import ptx
from rankfold.proxy.ptx.model import Module
from rankfold.proxy.ptx.module import find
from rankfold.proxy.ptx.sets import Sets

CPU = "x86-64-v3"
TRIPLE = "x86_64-unknown-linux-gnu"
ABI = 11  # SOFT_KERNEL_ABI


@dataclass(frozen=True)
class Compiled:
    """The objects of a kernel (parts.py), and its properties that callers need. Sizes in bytes.

    `exported`: for each object, the functions that later ones refer to.
    """

    symbol: str
    static_shared: int
    local_bytes: int
    registers: int
    sets: Sets
    exported: tuple[tuple[str, ...], ...]
    objects: tuple[bytes, ...]

    def header(self) -> dict[str, object]:
        """Returns everything but the code, for JSON."""
        fields = {name: value for name, value in vars(self).items() if name != "objects"}
        return fields | {"sets": self.sets.plain(), "sizes": [len(each) for each in self.objects]}

    @classmethod
    def of(cls, header: dict[str, Any], code: bytes) -> Compiled:
        """Creates it from `header` and its objects, one after another. Raises KeyError, TypeError,
        ValueError."""
        sizes = header.pop("sizes")
        ends = [*itertools.accumulate(sizes, initial=0)]
        if ends[-1] != len(code):
            raise ValueError("the objects have another size")
        objects = tuple(code[begin:end] for begin, end in itertools.pairwise(ends))
        exported = tuple(map(tuple, header.pop("exported")))
        if len(exported) != len(objects):
            raise ValueError("the objects are more or fewer")
        sets = Sets.of_plain(header.pop("sets"))
        return cls(**header, sets=sets, exported=exported, objects=objects)


@functools.cache
def version() -> str:
    """Returns a digest of everything that can change an object: these sources, LLVM, the CPU."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for folder, pattern in (
        (Path(ptx.__file__).parent, "*.py"),
        (here, "*.py"),
        (here.parent, "kernel.h"),
    ):
        for path in sorted(folder.glob(pattern)):
            digest.update(f"{folder.name}/{path.name}\n".encode() + path.read_bytes())
    build = (llvmlite.__version__, llvm.llvm_version_info, CPU, ABI)
    digest.update(json.dumps(build).encode())
    return digest.hexdigest()


def kernel_source(module: Module, name: str) -> str:
    """Returns the part of a module that one kernel can depend on, as PTX."""
    kernel = find(module, name)
    parts = [f".version {module.version}", f".target sm_{module.target}", ".address_size 64"]
    parts.append(module.declarations)
    for function in module.functions.values():
        if function is not kernel and not function.entry:
            parts.append(function.text)
    if (
        held := module.address_taken_in_kernels
    ):  # after the others: their order decides their addresses
        moves = "".join(f" mov.u64 %held, {other};" for other in held)
        parts.append(f".func __rankfold_held() {{ .reg .b64 %held;{moves} ret; }}")
    return "\n".join([*parts, kernel.text])


def key_of(source: str, name: str) -> str:
    """Returns the key under which this kernel's object is stored."""
    return hashlib.sha256(f"{version()}\n{name}\n{source}".encode()).hexdigest()


def target_machine() -> llvm.TargetMachine:
    """Returns a new target machine, which the caller owns."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # mathlib.py's directed roundings
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=CPU, features="", opt=3, reloc="pic", codemodel="small")

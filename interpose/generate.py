"""Generates the client's stubs from the annotated API description in ``interpose/api/*.yaml``.

For each library it writes, into the folder given by ``--out``:

``api.h``            prototypes of every described function of all libraries
``api_LIB.c``        bodies of the functions that need no hand-written one, stubs for what is not
                     covered, per-thread-stream variants, and the table that look-ups use
``shim_LIB.S``       what the library of NVIDIA's name exports: a jump through that table
``shim_LIB.map``     its version nodes, where the real library has them
``coverage.txt``     what is generated, hand-written, refused

and into ``--include`` the headers that descriptions have a ``header`` for (``macros``, ``enums``,
``counted`` enumerations, ``types``, then every described function), for machines without those
libraries. The file of its ``names``, if it has one, includes it and names functions as source does.

A function of the description has ``params`` and one of

``record: STRUCT OPCODE``  with ``set: {field: expression}`` for every field of that record of
                     ``channel.h``; ``reply: true`` waits for the answer. ``stream(x)`` and
                     ``event(x)`` as an expression check a handle, ``idle_stream(x)`` and
                     ``idle_event(x)`` also that no capture stands in the way.
``local: EXPRESSION``  a C expression that gives the result
``hand: FILE``       the body is in ``interpose/client/``, in FILE of whichever folder
``refuse: REASON``   a stub that names itself once on stderr and fails

Further keys: ``returns`` (default: the library's result type, through its ``finish``), ``ignore``
(parameters that need no attention), ``per_thread: ptsz | ptds``, ``also`` (further names with the
same ABI), ``since`` (first API version that means this one; for names that never meant another,
``first_version`` lists them by version), ``in_stream: EXPRESSION`` (the stream it works in, if no
parameter is one). ``typed_functions`` explains entries of ``typed``. What only has its name in
``names`` (``name@since``) is refused.

A library's ``contexts`` say what the calling thread needs before a function's body is reached:
``usual`` is ``current`` (a context, or a stream, whose context will do) or ``runtime`` (the
primary context, which is made current). The functions in ``driver`` need cuInit only, which the
runtime calls itself; those in ``nothing`` nothing at all. ``failure`` is what those without it get,
if not the CUDA error. What programs call is then an entry of its own; the client itself calls
bodies, unchecked.

An annotation that does not match its prototype is an error: a forgotten parameter must not pass in
silence.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pycparser import c_parser

from rankfold import records
from rankfold.interpose import headers
from rankfold.interpose.headers import Declared

API = Path(__file__).resolve().parent / "api"
WHEELS = Path(__file__).resolve().parents[1] / "build/cuda"  # where tools/nvcc puts them
LIBRARIES = ("cudart", "cuda", "nccl", "nvml", "cublas", "cublasLt")
KINDS = ("record", "local", "hand", "refuse")
KEYS = {*KINDS, "params", "set", "reply", "returns", "ignore", "per_thread", "also", "since",
        "in_stream"}  # fmt: skip
CHECKS = {
    "stream": "stream_number", "event": "event_number",
    "idle_stream": "stream_idle_number", "idle_event": "event_idle_number",
}  # fmt: skip
WORD = re.compile(r"[A-Za-z_]\w*")


class Mismatch(Exception):
    """A description that contradicts its prototype or the channel."""


@dataclass(frozen=True)
class Parameter:
    text: str
    name: str


@dataclass(frozen=True)
class Function:
    name: str
    kind: str  # one of KINDS
    body: str  # the value of that key
    parameters: tuple[Parameter, ...] | None  # None: unknown (a stub)
    returns: str
    plain: bool  # returns the library's result type
    set: dict[str, str] = field(default_factory=dict)
    reply: bool = False
    ignore: tuple[str, ...] = ()
    per_thread: str = ""
    also: tuple[str, ...] = ()
    since: int = 0
    in_stream: str = ""
    check: str = ""  # C: the error that keeps the calling thread from the body

    def since_of(self, name: str) -> int:
        return 0 if name in self.also else self.since

    @property
    def signature(self) -> str:
        assert self.parameters is not None
        return ", ".join(p.text for p in self.parameters) or "void"

    @property
    def names(self) -> tuple[str, ...]:
        variant = (f"{self.name}_{self.per_thread}",) if self.per_thread else ()
        return (self.name, *self.also, *variant)


@dataclass(frozen=True)
class Library:
    name: str
    soname: str
    version_node: str
    result: str
    finish: str
    refused_result: str
    failure: str  # of a check of the context; "": its error
    prefix: str  # every function has an alias with it (NCCL: pncclAllReduce)
    functions: tuple[Function, ...]
    enums: dict[str, dict[str, Any]]


def split_parameters(text: str) -> tuple[Parameter, ...]:
    """``"int *a, size_t b"`` → names and declarations. Raises Mismatch for one without a name."""
    text = " ".join(text.split())
    if text == "void":
        return ()
    parameters = []
    for part in text.split(","):
        words = WORD.findall(part)
        if len(words) < 2:
            raise Mismatch(f"parameter {part.strip()!r} has no name")
        parameters.append(Parameter(part.strip(), words[-1]))
    return tuple(parameters)


def check_record(function: Function, channel: records.Contract) -> None:
    words = function.body.split()
    if len(words) != 2 or words[0] not in channel.structs:
        raise Mismatch(f"record needs a struct and an opcode of channel.h, not {function.body!r}")
    if words[1] not in channel.opcodes:
        raise Mismatch(f"opcodes.def has no opcode RF_OP_{words[1]}")
    opcode = channel.opcodes[words[1]]
    if words[0] != opcode.record.name:
        raise Mismatch(f"the record of {opcode.name} is {opcode.record.name}, not {words[0]}")
    if opcode.kind in ("CALL", "SYNC", "QUERY") and not function.reply:
        raise Mismatch(f"{opcode.name} is answered: it needs reply: true")
    fields = {f.name for f in opcode.record.arguments}
    missing, unknown = fields - set(function.set), set(function.set) - fields
    if missing or unknown:
        raise Mismatch(
            f"{words[0]}: fields not set: {sorted(missing)}, not there: {sorted(unknown)}"
        )


def check_parameters(function: Function) -> None:
    """Every parameter is used or ignored on purpose; nothing else is named as if it were one."""
    if function.parameters is None or function.kind == "hand":
        return
    names = {p.name for p in function.parameters}
    if len(names) != len(function.parameters):
        raise Mismatch("two parameters have one name")
    if unknown := set(function.ignore) - names:
        raise Mismatch(f"ignores {sorted(unknown)}, which are no parameters")
    if function.kind == "refuse":
        return
    text = " ".join([function.body, *map(str, function.set.values())])
    used = set(WORD.findall(text))
    for expression in map(str, function.set.values()):
        check = re.fullmatch(r"(\w+)\((\w+)\)", expression)
        if check and check[1] in CHECKS and check[2] not in {*names, "NULL"}:
            raise Mismatch(f"{expression}: {check[2]} is no parameter")
    if forgotten := names - used - set(function.ignore):
        raise Mismatch(f"parameters neither used nor ignored: {sorted(forgotten)}")
    if both := used & set(function.ignore):
        raise Mismatch(f"parameters both used and ignored: {sorted(both)}")


def load_function(name: str, entry: Any, result: str, prefix: str = "") -> Function:
    if not isinstance(entry, dict):
        raise Mismatch("an entry is a mapping")
    if unknown := set(entry) - KEYS:
        raise Mismatch(f"unknown keys {sorted(unknown)}")
    kinds = [k for k in KINDS if k in entry]
    if len(kinds) != 1:
        raise Mismatch(f"needs exactly one of {', '.join(KINDS)}")
    if "params" not in entry and kinds[0] != "refuse":
        raise Mismatch("has no params")
    if entry.get("per_thread", "ptsz") not in ("ptsz", "ptds"):
        raise Mismatch("per_thread is ptsz or ptds")
    return Function(
        name=name,
        kind=kinds[0],
        body=str(entry[kinds[0]]),
        parameters=split_parameters(entry["params"]) if "params" in entry else None,
        returns=entry.get("returns", result),
        plain="returns" not in entry,
        set={k: str(v) for k, v in entry.get("set", {}).items()},
        reply=bool(entry.get("reply", False)),
        ignore=tuple(entry.get("ignore", ())),
        per_thread=entry.get("per_thread", ""),
        also=(*entry.get("also", ()), *([prefix + name] if prefix else [])),
        since=int(entry.get("since", 0)),
        in_stream=entry.get("in_stream", ""),
    )


def streams_of(function: Function) -> list[str]:
    parameters = function.parameters or ()
    named = [p.name for p in parameters if re.fullmatch(r"CUstream \w+", p.text)]
    return [function.in_stream] if function.in_stream else named


def check_of(function: Function, contexts: dict[str, str]) -> str:
    """What its entry asks before it calls the body; nothing: it has none."""
    usual = contexts.get("usual", "")
    if not usual or function.kind == "refuse" or not function.plain:
        return ""
    if function.name in contexts.get("nothing", "").split():
        return ""
    if function.name in contexts.get("driver", "").split():
        return "context_begin_driver()" if usual == "runtime" else "context_needs_driver()"
    if usual == "runtime":
        return "context_of_runtime()"
    streams = streams_of(function)
    if len(streams) > 1:  # default streams have the smallest numbers
        return "context_needed_for({0} < {1} ? {0} : {1})".format(*streams)
    return f"context_needed_for({streams[0]})" if streams else "context_needed()"


def check_contexts(contexts: dict[str, str], functions: dict[str, Function]) -> None:
    """What is listed is there, and once."""
    if unknown := set(contexts) - {"usual", "driver", "nothing", "failure"}:
        raise Mismatch(f"contexts: unknown keys {sorted(unknown)}")
    listed = [n for key in ("driver", "nothing") for n in contexts.get(key, "").split()]
    if strange := {n for n in listed if n not in functions or listed.count(n) > 1}:
        raise Mismatch(f"contexts: not described, or listed twice: {sorted(strange)}")


def enums_of(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those with a number each, and those that are counted: ``PREFIX_ FIRST SECOND FIFTH@4``."""
    enums = dict(data.get("enums", {}))
    for enum, text in data.get("counted", {}).items():
        prefix, *names = text.split()
        number, enums[enum] = 0, {}
        for name, _, at in (n.partition("@") for n in names):
            number = int(at) if at else number
            enums[enum][prefix + name] = number
            number += 1
    return enums


TYPED = {"S": ("float", "float", "CUDA_R_32F"), "D": ("double", "double", "CUDA_R_64F"),
         "C": ("cuComplex", "float", "CUDA_C_32F"),
         "Z": ("cuDoubleComplex", "double", "CUDA_C_64F")}  # fmt: skip


def spelled(text: str, letter: str, wide: bool) -> str:
    element, real, kind = TYPED[letter]
    words = {"T": element, "R": real, "KIND": kind, "INT": "int64_t" if wide else "int"}
    return WORD.sub(lambda word: words.get(word[0], word[0]), text)


def typed_functions(data: dict[str, Any]) -> dict[str, Any]:
    """``typed``: a function for each type and, if it takes an ``INT``, once more for 64 bits.

    In the name ``?`` is the type's letter, or what ``letters`` has for it. ``T`` is the type, ``R``
    its real one, ``KIND`` its cudaDataType. A name without ``?`` has no type of its own. Two
    entries for one name differ in ``letters``, and say it in ``function``.
    """
    functions: dict[str, Any] = {}
    for name, entry in data.get("typed", {}).items():
        rest = {k: v for k, v in entry.items() if k not in ("types", "letters", "function")}
        pattern = entry.get("function", name)
        for letter in entry.get("types", "SDCZ") if "?" in pattern else "S":
            for wide in (False, True) if "INT" in WORD.findall(entry["params"]) else (False,):
                made = pattern.replace("?", entry.get("letters", {}).get(letter, letter))
                functions[made + "_64" * wide] = {
                    **rest, "params": spelled(entry["params"], letter, wide),
                    "local": spelled(entry["local"], letter, wide),
                }  # fmt: skip
    return functions


def load_library(
    text: str, channel: records.Contract, extra_names: set[str] | None = None
) -> Library:
    """Parse and check one description. Raises Mismatch, naming the function."""
    data = yaml.safe_load(text)
    prefix = data.get("prefix", "")
    functions: dict[str, Function] = {}
    for name, entry in {**data["functions"], **typed_functions(data)}.items():
        try:
            function = load_function(name, entry, data["result"], prefix)
            check_parameters(function)
            if function.kind == "record":
                check_record(function, channel)
        except Mismatch as error:
            raise Mismatch(f"{data['library']}.yaml: {name}: {error}") from None
        functions[name] = function
    covered = {n for f in functions.values() for n in f.names}
    versions = {n: v for n, _, v in (t.partition("@") for t in data.get("names", "").split())}
    for name in sorted((set(versions) | (extra_names or set())) - covered):
        also = (prefix + name,) if prefix else ()
        functions[name] = Function(name, "refuse", "", None, "int", True, also=also,
                                   since=int(versions.get(name) or 0))  # fmt: skip
    for version, names in data.get("first_version", {}).items():
        for name in names.split():
            if name not in functions or functions[name].since:
                raise Mismatch(f"{data['library']}.yaml: first_version: {name} is not described, "
                               "or has a since of its own")  # fmt: skip
            functions[name] = replace(functions[name], since=int(version))
    contexts = data.get("contexts", {})
    check_contexts(contexts, functions)
    for name, function in functions.items():
        functions[name] = replace(function, check=check_of(function, contexts))
    return Library(
        name=data["library"],
        soname=data["soname"],
        version_node=data.get("version_node", ""),
        result=data["result"],
        finish=data.get("finish", ""),
        refused_result=str(data["refused_result"]),
        failure=contexts.get("failure", ""),
        prefix=prefix,
        functions=tuple(functions.values()),
        enums=enums_of(data),
    )


# ---- names in NVIDIA's headers, where there are any ----


def header_folders(library: str = "cudart") -> list[Path]:
    """Where that library's header is: in the toolkit, or in a wheel."""
    folders = [Path("/usr/local/cuda/include")]
    folders += sorted(Path("/usr/local").glob("cuda-13*/include"))
    folders += [site / "nvidia/cu13/include" for site in (WHEELS, *map(Path, sys.path))]
    return [f for f in folders if (f / headers.FILES[library]).exists()]


def read_header(library: str) -> dict[str, Declared]:
    return headers.read(library, header_folders(library))


def check_header(library: Library, header: dict[str, Declared]) -> None:
    """As many parameters as the header's function has. (Their types: tests/interpose.)"""
    for function in library.functions:
        if function.parameters is None:
            continue
        for name in set(function.names) - set(function.also):
            if name in header and header[name].parameters != len(function.parameters):
                raise Mismatch(
                    f"{library.name}.yaml: {name}: {len(function.parameters)} parameters, "
                    f"but the header says: {header[name].text}"
                )


# ---- C ----

NOTICE = "/* Generated by interpose/generate.py. Not to be edited. */\n"


def prototype(function: Function, name: str) -> str:
    return f"{function.returns} {name}({function.signature})"


def call_arguments(function: Function) -> str:
    return ", ".join(p.name for p in function.parameters or ())


def record_body(function: Function, finish: str) -> list[str]:
    struct, opcode = function.body.split()
    checks, plain = [], []
    for name, expression in function.set.items():
        check = re.fullmatch(r"(\w+)\((\w+)\)", expression)
        if check and check[1] in CHECKS:
            checks.append(f"error = {CHECKS[check[1]]}({check[2]}, &m.{name});")
        else:
            plain.append(f"m.{name} = {expression};")
    record = "(struct rf_record *)&m"
    lines = [f"struct {struct} m;", "memset(&m, 0, sizeof m);", "int error = channel_enter();"]
    for check_line in checks:
        lines += ["if (!error)", f"\t{check_line}"]
    lines += plain
    lines.append("if (!error)")
    arguments = f"{record}, RF_OP_{opcode}, sizeof m, NULL, 0"
    if function.reply:
        lines.append(f"\terror = channel_call({arguments}, NULL, 0);")
    else:
        lines.append(f"\tchannel_post({arguments});")
    return [*lines, f"return {finish}(error);"]


def stub(name: str, result: str, why: str) -> str:
    reason = f'"{why}"' if why else "NULL"
    return (
        f"RF_API int {name}(void);\nint {name}(void)\n{{\n\tstatic _Atomic bool done;\n"
        f'\treturn refuse(&done, "{name}", {reason}, {result});\n}}\n'
    )


def body(function: Function, library: Library) -> str:
    finish = library.finish if function.plain else ""
    ignored = [f"(void){name};" for name in function.ignore]
    if function.kind == "record":
        lines = record_body(function, finish)
    elif function.returns == "void":
        lines = [f"{function.body};"]
    else:
        lines = [f"return {finish}({function.body});"]
    text = "\n".join(f"\t{line}" for line in [*ignored, *lines])
    return f"{prototype(function, function.name)}\n{{\n{text}\n}}\n"


def checked(function: Function, finish: str, failure: str) -> list[str]:
    if not function.check:
        return []
    if failure:
        return [f"if ({function.check})", f"\treturn {failure};"]
    return [f"int error = {function.check};", "if (error)", f"\treturn {finish}(error);"]


def entry(function: Function, finish: str, failure: str) -> str:
    """What programs know by the function's name, if the body is behind a check."""
    name, call = f"entry_{function.name}", f"{function.name}({call_arguments(function)})"
    lines = [*checked(function, finish, failure), f"return {call};"]
    text = "\n".join(f"\t{line}" for line in lines)
    label = f'RF_API {prototype(function, name)} __asm__("{function.name}");'
    return f"{label}\n{prototype(function, name)}\n{{\n{text}\n}}\n"


def variant(function: Function, name: str, library: Library) -> str:
    call = f"{function.name}({call_arguments(function)})"
    lines = checked(function, library.finish if function.plain else "", library.failure)
    per_thread = name not in function.also
    if per_thread:
        lines += [
            "uint64_t kept = default_stream;",
            "default_stream = RF_STREAM_PER_THREAD;",
            f"{function.returns} result = {call};",
            "default_stream = kept;",
            "return result;",
        ]
    else:
        lines += [f"return {call};"]
    text = "\n".join(f"\t{line}" for line in lines)
    return f"{prototype(function, name)}\n{{\n{text}\n}}\n"


def enumerators(members: dict[str, Any]) -> str:
    return ",\n".join(f"\t{key} = {value}" for key, value in members.items())


def api_header(libraries: list[Library]) -> str:
    lines = [NOTICE, "#ifndef RANKFOLD_API_H", "#define RANKFOLD_API_H", '#include "base.h"', ""]
    for library in libraries:
        for name, members in library.enums.items():
            lines.append(f"typedef int {name};\nenum {{\n{enumerators(members)}\n}};")
        for function in library.functions:
            if function.parameters is not None and function.kind != "refuse":
                api = [f"RF_API {prototype(function, name)};" for name in function.names]
                if function.check:
                    api[0] = f"{prototype(function, function.name)} RF_BODY({function.name});"
                lines += api
    return "\n".join([*lines, "", "#endif", ""])


def table_names(library: Library) -> list[tuple[str, Function]]:
    return sorted((name, f) for f in library.functions for name in f.names)


def api_source(library: Library) -> str:
    parts = [NOTICE, "#include <string.h>\n", '#include "bodies.h"\n']
    for function in library.functions:
        if function.kind == "refuse":
            reason = f"{function.body} not supported by rankfold" if function.body else ""
            parts += [stub(n, library.refused_result, reason) for n in function.names]
            continue
        if function.kind != "hand":
            parts.append(body(function, library))
        if function.check:
            parts.append(entry(function, library.finish, library.failure))
        parts += [variant(function, name, library) for name in function.names[1:]]
    rows = [
        f'\t{{"{name}", (void *){"entry_" * (name == f.name and bool(f.check))}{name}, '
        f"{f.since_of(name)}, {int(f.kind == 'refuse')}}},"
        for name, f in table_names(library)
    ]
    parts.append(
        f"const struct api_entry api_{library.name}[] = {{\n" + "\n".join(rows) + "\n};\n"
        f"const size_t api_{library.name}_count = {len(rows)};\n"
    )
    return "\n".join(parts)


def shim_source(library: Library) -> str:
    """A jump per function through the core's table: one source of truth, no prototypes needed."""
    lines = [NOTICE, "\t.text"]
    for index, (name, _function) in enumerate(table_names(library)):
        offset = index * 24 + 8
        lines += [
            f"\t.globl {name}\n\t.type {name}, %function\n{name}:",
            "#if defined(__x86_64__)",
            f"\tmovq api_{library.name}@GOTPCREL(%rip), %r11\n\tjmp *{offset}(%r11)",
            "#else",
            f"\tadrp x16, :got:api_{library.name}\n\tldr x16, [x16, :got_lo12:api_{library.name}]",
            f"\tmov x17, #{offset & 0xFFFF}\n\tmovk x17, #{offset >> 16}, lsl #16",
            "\tldr x16, [x16, x17]\n\tbr x16",
            "#endif",
            f"\t.size {name}, . - {name}",
        ]
    return "\n".join([*lines, '\t.section .note.GNU-stack,"",%progbits', ""])


def shim_map(library: Library) -> str:
    if not library.version_node:
        return "{ global: *; };\n"
    names = "\n".join(f"\t\t{name};" for name, _ in table_names(library))
    return f"{library.version_node} {{\n\tglobal:\n{names}\n\tlocal: *;\n}};\n"


def coverage(library: Library, in_headers: set[str]) -> str:
    counts = {k: sum(1 for f in library.functions if f.kind == k) for k in KINDS}
    covered = {n for f in library.functions if f.kind != "refuse" for n in f.names}
    lines = [
        f"{library.name}: {len(in_headers) or 'no'} functions in the header, "
        f"{counts['record'] + counts['local']} generated, {counts['hand']} hand-written, "
        f"{counts['refuse']} refused"
    ]
    lines += [f"  refused  {f.name}" for f in library.functions if f.kind == "refuse"]
    lines += [f"  covered  {name}" for name in sorted(covered)]
    return "\n".join(lines) + "\n"


# ---- headers for programs ----


def names_in_source(name: str) -> str:
    """A function's name as programs write it, if the header has a macro for that."""
    return re.sub(r"_v2(_64)?$", r"\1", name)


def begin_header(file: str, data: dict[str, Any]) -> list[str]:
    guard = re.sub(r"\W", "_", file).upper() + "_"
    return [
        f"/* {file}: the public interface of {data['soname']}, as far as rankfold has it,\n"
        f"   for machines without the real header: from interpose/api/{data['library']}.yaml. */",
        f"#ifndef {guard}\n#define {guard}\n",
    ]


def names_header(data: dict[str, Any]) -> str:
    header = data["header"]
    parts = begin_header(header["names"], data)
    for name, entry in {**data["functions"], **typed_functions(data)}.items():
        if "params" in entry and names_in_source(name) != name:
            parts.append(f"#define {names_in_source(name)} {name}")
    return "\n".join([*parts, f"\n#include <{header['file']}>\n\n#endif\n"])


def program_header(data: dict[str, Any]) -> str:
    """The library's public API, for programs on machines without its header."""
    file, prefix = data["header"]["file"], data.get("prefix", "")
    parts = [
        *begin_header(file, data),
        "".join(f"#include <{name}>\n" for name in data["header"]["includes"]),
        '#ifdef __cplusplus\nextern "C" {\n#endif\n',
    ]
    parts += [f"#define {name} {value}".rstrip() for name, value in data["macros"].items()]
    for name, members in enums_of(data).items():
        parts.append(f"\ntypedef enum {{\n{enumerators(members)}\n}} {name};")
    parts += [f"\n{text.rstrip()}" for text in data["types"]]
    for name, entry in {**data["functions"], **typed_functions(data)}.items():
        if "params" not in entry:
            continue
        for each in (name, prefix + name) if prefix else (name,):
            params = entry.get("declare", entry)["params"]
            parts.append(f"{entry.get('returns', data['result'])} {each}({params});")
    parts += [f"\n{text.rstrip()}" for text in data.get("inlines", [])]
    parts.append("\n#ifdef __cplusplus\n}\n#endif\n#endif\n")
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Only when it differs: an unchanged file compiles nothing anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="generate the client's stubs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--include", type=Path, required=True)
    arguments = parser.parse_args()
    channel = records.channel()
    libraries, report = [], []
    try:
        for name in LIBRARIES:
            header = read_header(name)
            library = load_library((API / f"{name}.yaml").read_text(), channel, set(header))
            check_header(library, header)
            libraries.append(library)
            report.append(coverage(library, set(header)))
    except (
        Mismatch, OSError, records.Unreadable, yaml.YAMLError, c_parser.ParseError
    ) as error:  # fmt: skip
        print(f"generate.py: {error}", file=sys.stderr)
        return 1
    for library in libraries:
        write(arguments.out / f"api_{library.name}.c", api_source(library))
        write(arguments.out / f"shim_{library.name}.S", shim_source(library))
        write(arguments.out / f"shim_{library.name}.map", shim_map(library))
        data = yaml.safe_load((API / f"{library.name}.yaml").read_text())
        if "header" in data:
            write(arguments.include / data["header"]["file"], program_header(data))
        if names := data.get("header", {}).get("names"):
            write(arguments.include / names, names_header(data))
    write(arguments.out / "api.h", api_header(libraries))
    write(arguments.out / "coverage.txt", "\n".join(report))
    print("\n".join(text.splitlines()[0] for text in report), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

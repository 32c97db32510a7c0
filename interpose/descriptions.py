"""Reads the annotated API description in ``interpose/api/*.yaml``, and checks it.

A function of the description has ``params`` and one of

``local: EXPRESSION``  a C expression that gives the result
``hand: FILE``       the body is in FILE, in any folder of ``interpose/client/``
``remote: NAMES``    NVIDIA's own function is called in the proxy, on devices of type nvidia (see
                     `kinds_of`); on others it is refused, or with ``local`` that gives the result.
                     ``unless: EXPRESSION`` among them: where that is true, ``local`` does, too
``refuse: REASON``   a stub that reports its name once on stderr and fails

Further keys: ``returns`` (default: the library's result type, through its ``finish``), ``ignore``
(parameters that need no handling), ``per_thread: ptsz | ptds``, ``also`` (further names with the
same ABI), ``since`` (first API version in which the name means this function; for names whose
meaning never changed, ``first_version`` lists them by version), ``in_stream: EXPRESSION`` (the
stream in which the function works, if no parameter is a stream). ``typed_functions`` explains
entries of ``typed``. A function with only an entry in ``names`` (``name@since``) is refused.

A description ``NAME-CUDA.yaml`` has only what differs in an older major version of CUDA
(`load_older`).

A library's ``contexts`` define what the calling thread needs before a function's body is called:
``usual`` is ``current`` (a current context, or a stream, whose context is used) or ``runtime`` (the
primary context, which is made current). The functions in ``driver`` need only cuInit, which the
runtime calls itself; those in ``nothing`` need nothing. ``failure`` is the result if the need is
not met; default: the CUDA error. Programs then call a separate entry; the client itself calls
bodies, unchecked.

``refused_reason`` is what a refused function without a reason of its own says on stderr.
``checking`` is a variable: while it is true, each ``local`` checks its parameters and does nothing
else. A remote call is checked by it first, and waits for NVIDIA's status if it cannot be.

An annotation that does not match its prototype is an error, so that no parameter is forgotten
silently.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rankfold.interpose import headers, libraries
from rankfold.interpose.headers import Declared
from rankfold.interpose.libraries import API, Soname

WHEELS = Path(__file__).resolve().parents[1] / "build/cuda"  # tools/nvcc installs them there
LIBRARIES = tuple(libraries.table())
KINDS = ("local", "hand", "remote", "refuse")
KEYS = {
    *KINDS,
    "params",
    "returns",
    "ignore",
    "per_thread",
    "also",
    "since",
    "in_stream",
}
WORD = re.compile(r"[A-Za-z_]\w*")


class Mismatch(Exception):
    """A description contradicts its prototype."""


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
    ignore: tuple[str, ...] = ()
    per_thread: str = ""
    also: tuple[str, ...] = ()
    since: int = 0
    in_stream: str = ""
    check: str = ""  # C: an error that prevents the call of the body
    older: str = ""  # the major version of CUDA for which this is; "": the newest one
    kinds: str = ""  # of the parameters of a remote function (`kinds_of`)
    sizes: tuple[str, ...] = ()  # C: their bytes, of those that are numbers in memory
    unless: str = ""  # C: a remote function is local nevertheless

    def symbol(self, name: str) -> str:
        """The C function for one of its names. Older forms have names of their own."""
        return f"{name}_of_{self.older}" if self.older else name

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
    result: str
    finish: str
    refused_result: str
    refused_reason: str  # of functions that have none of their own; "": the usual text
    failure: str  # result if the check of the context fails; "": the CUDA error
    checking: str  # C: while it is true, `local` only checks; "": there is no such variable
    prefix: str  # every function has an alias with this prefix (NCCL: pncclAllReduce)
    functions: tuple[Function, ...]
    enums: dict[str, dict[str, Any]]
    contexts: dict[str, str]


def split_parameters(text: str) -> tuple[Parameter, ...]:
    """Split ``"int *a, size_t b"`` into parameters. Raises Mismatch if a name is missing."""
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


def check_parameters(function: Function) -> None:
    """Check that every parameter is used or explicitly ignored, and that no other name is one."""
    if function.parameters is None or function.kind == "hand":
        return
    if function.kind == "remote" and not function.body:
        return
    names = {p.name for p in function.parameters}
    if len(names) != len(function.parameters):
        raise Mismatch("two parameters have one name")
    if unknown := set(function.ignore) - names:
        raise Mismatch(f"ignores {sorted(unknown)}, which are not parameters")
    if function.kind == "refuse":
        return
    used = set(WORD.findall(function.body))
    if forgotten := names - used - set(function.ignore):
        raise Mismatch(f"parameters neither used nor ignored: {sorted(forgotten)}")
    if both := used & set(function.ignore):
        raise Mismatch(f"parameters both used and ignored: {sorted(both)}")


_DESCRIPTORS = {
    "gesvdjInfo_t": "j",
    "syevjInfo_t": "e",
    "cusolverDnParams_t": "d",
    "cudnnTensorDescriptor_t": "t",
    "cudnnActivationDescriptor_t": "a",
    "cudnnRNNDescriptor_t": "r",
    "cudnnRNNDataDescriptor_t": "q",
    "cudnnSpatialTransformerDescriptor_t": "g",
    "cublasHandle_t": "b",
    "cudnnDropoutDescriptor_t": "o",
    "cudnnFilterDescriptor_t": "1",  # RF_ROW_… of library_call.h
    "cudnnConvolutionDescriptor_t": "2",
    "cudnnPoolingDescriptor_t": "3",
    "cudnnOpTensorDescriptor_t": "4",
    "cudnnReduceTensorDescriptor_t": "5",
    "cudnnLRNDescriptor_t": "6",
    "cudnnCTCLossDescriptor_t": "7",
}
_NAMED = {
    "out": "",
    "optional": "m",
    "host": "w",
    "scalar": "s",
    "element": "E",
    "most": "N",
    "results": "R",
    "absent": "n",
    "known": "x",
    "constant": "c",
    "updated": "u",
    "result": "y",
}
_OUTPUTS = {"int": "i", "int64_t": "l", "size_t": "l"}


def kinds_of(parameters: tuple[Parameter, ...], named: Any) -> str:
    """One letter per parameter of a remote function. Raises Mismatch.

    ``h`` the library's handle, ``v`` a number of up to 64 bits, ``f`` a double, ``p`` memory of the
    device; the letters of `_DESCRIPTORS` descriptors. `named` has lists of pointers to something
    else: ``out`` (``i``: an int that the caller gets, ``l``: one of 64 bits), ``optional`` (``m``:
    one of 64 bits, unless it is NULL), ``host`` (``w``: working memory of the host, whose size is
    the next parameter), ``scalar`` (``s``: a float in memory of the host, or a double if the first
    tensor has doubles), ``element`` (``E``: one in memory of the host, of the first tensor's type),
    ``results`` (``R``: algorithms that the caller gets; the first ``out`` says how many, at most
    the number that is in ``most``, ``N``), ``absent`` (``n``: anything but NULL is refused),
    ``known`` (``x``: an int of the host that ``local`` has set).

    Numbers in the memory that a handle's pointer mode selects: ``constant`` (``c``, or ``C`` for
    five), ``updated`` (``u``, ``U``: read and written), ``result`` (``y``). A mapping says how many
    bytes they have; otherwise that is the size of what is pointed to.
    """
    if not isinstance(named, dict) or set(named) - {*_NAMED, "unless"}:
        raise Mismatch(f"remote is a mapping with {', '.join(_NAMED)} or unless")
    use = {name: key for key, names in named.items() if key in _NAMED for name in names}
    kinds = ""
    for parameter in parameters:
        words = [w for w in WORD.findall(parameter.text)[:-1] if w != "const"]
        key = use.pop(parameter.name, "")
        if key and parameter.text.count("*") != (key != "most"):
            raise Mismatch(f"{parameter.name} is {'a' if key == 'most' else 'no'} pointer")
        if key == "out":
            kinds += _OUTPUTS[words[-1]]
        elif key:
            five = isinstance(named[key], dict) and named[key][parameter.name].startswith("5 * ")
            kinds += _NAMED[key].upper() if five else _NAMED[key]
        elif "*" in parameter.text:
            kinds += "p"
        elif words[-1].endswith("Handle_t"):
            kinds += _DESCRIPTORS.get(words[-1], "h")
        elif words[-1] == "float":
            raise Mismatch(f"{parameter.name}: a float by value cannot be passed on")
        elif words[-1] == "double":
            kinds += "f"
        else:
            kinds += _DESCRIPTORS.get(words[-1], "v")
    if use:
        raise Mismatch(f"remote: {sorted(use)} are not parameters")
    return kinds


def sizes_of(parameters: tuple[Parameter, ...], named: dict[str, Any]) -> tuple[str, ...]:
    """C for the bytes of each parameter that is a number in memory, otherwise 0; empty: none is."""
    sizes: dict[str, str] = {}
    for key in ("constant", "updated", "result"):
        given = named.get(key, ())
        sizes |= given if isinstance(given, dict) else {name: f"sizeof *{name}" for name in given}
    return tuple(sizes.get(p.name, "0") for p in parameters) if sizes else ()


def load_function(name: str, entry: Any, result: str, prefix: str = "") -> Function:
    if not isinstance(entry, dict):
        raise Mismatch("an entry is a mapping")
    if unknown := set(entry) - KEYS:
        raise Mismatch(f"unknown keys {sorted(unknown)}")
    kinds = [k for k in KINDS if k in entry]
    if kinds == ["local", "remote"]:  # local where the library is not there
        kinds = ["remote"]
    if len(kinds) != 1:
        raise Mismatch(f"needs exactly one of {', '.join(KINDS)}")
    if "params" not in entry and kinds[0] != "refuse":
        raise Mismatch("has no params")
    if entry.get("per_thread", "ptsz") not in ("ptsz", "ptds"):
        raise Mismatch("per_thread is ptsz or ptds")
    parameters = split_parameters(entry["params"]) if "params" in entry else None
    return Function(
        name=name,
        kind=kinds[0],
        body=str(entry.get("local", "") if kinds[0] == "remote" else entry[kinds[0]]),
        parameters=parameters,
        kinds=kinds_of(parameters or (), entry["remote"]) if kinds[0] == "remote" else "",
        sizes=sizes_of(parameters or (), entry["remote"]) if kinds[0] == "remote" else (),
        unless=entry["remote"].get("unless", "") if kinds[0] == "remote" else "",
        returns=entry.get("returns", result),
        plain="returns" not in entry,
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
    """The check in the function's entry, before its body is called; empty: it has no entry."""
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
    """Check that every listed function is described, and listed only once."""
    if unknown := set(contexts) - {"usual", "driver", "nothing", "failure"}:
        raise Mismatch(f"contexts: unknown keys {sorted(unknown)}")
    listed = [n for key in ("driver", "nothing") for n in contexts.get(key, "").split()]
    if strange := {n for n in listed if n not in functions or listed.count(n) > 1}:
        raise Mismatch(f"contexts: not described, or listed twice: {sorted(strange)}")


def enums_of(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The enums with explicit numbers, and the counted ones: ``PREFIX_ FIRST SECOND FIFTH@4``."""
    enums = dict(data.get("enums", {}))
    for enum, text in data.get("counted", {}).items():
        prefix, *names = text.split()
        number, enums[enum] = 0, {}
        for name, _, at in (n.partition("@") for n in names):
            number = int(at) if at else number
            enums[enum][prefix + name] = number
            number += 1
    return enums


TYPED = {
    "S": ("float", "float", "CUDA_R_32F"),
    "D": ("double", "double", "CUDA_R_64F"),
    "C": ("cuComplex", "float", "CUDA_C_32F"),
    "Z": ("cuDoubleComplex", "double", "CUDA_C_64F"),
}


def spelled(text: str, letter: str, wide: bool) -> str:
    element, real, kind = TYPED[letter]
    words = {"T": element, "R": real, "KIND": kind, "INT": "int64_t" if wide else "int"}
    return WORD.sub(lambda word: words.get(word[0], word[0]), text)


def typed_functions(data: dict[str, Any]) -> dict[str, Any]:
    """Expand ``typed``: one function per type and, for an ``INT``, one more with 64 bits.

    In the name, ``?`` is replaced by the type's letter, or by its entry in ``letters``. ``T`` is
    the type, ``R`` its real type, ``KIND`` its cudaDataType. A name without ``?`` has no type. Two
    entries for one name differ in ``letters``, and have that name in ``function``.
    """
    functions: dict[str, Any] = {}
    for name, entry in data.get("typed", {}).items():
        rest = {k: v for k, v in entry.items() if k not in ("types", "letters", "function")}
        pattern = entry.get("function", name)
        for letter in entry.get("types", "SDCZ") if "?" in pattern else "S":
            for wide in (False, True) if "INT" in WORD.findall(entry["params"]) else (False,):
                made = pattern.replace("?", entry.get("letters", {}).get(letter, letter))
                spelt = {
                    k: spelled(entry[k], letter, wide) for k in ("params", "local") if k in entry
                }
                functions[made + "_64" * wide] = {**rest, **spelt}
    return functions


def load_library(text: str, extra_names: set[str] | None = None) -> Library:
    """Parse and check one description. Raises Mismatch with the function's name."""
    return _library(yaml.safe_load(text), extra_names)


def _library(data: dict[str, Any], extra_names: set[str] | None = None) -> Library:
    prefix = data.get("prefix", "")
    functions: dict[str, Function] = {}
    for name, entry in {**data["functions"], **typed_functions(data)}.items():
        try:
            function = load_function(name, entry, data["result"], prefix)
            check_parameters(function)
        except Mismatch as error:
            raise Mismatch(f"{data['library']}.yaml: {name}: {error}") from None
        functions[name] = function
    covered = {n for f in functions.values() for n in f.names}
    versions = {n: v for n, _, v in (t.partition("@") for t in data.get("names", "").split())}
    for name in sorted((set(versions) | (extra_names or set())) - covered):
        also = (prefix + name,) if prefix else ()
        functions[name] = Function(
            name, "refuse", "", None, "int", True, also=also, since=int(versions.get(name) or 0)
        )
    for version, names in data.get("first_version", {}).items():
        for name in names.split():
            if name not in functions or functions[name].since:
                raise Mismatch(
                    f"{data['library']}.yaml: first_version: {name} is not described, "
                    "or has a since of its own"
                )
            functions[name] = replace(functions[name], since=int(version))
    contexts = data.get("contexts", {})
    check_contexts(contexts, functions)
    for name, function in functions.items():
        functions[name] = replace(function, check=check_of(function, contexts))
    return Library(
        name=data["library"],
        result=data["result"],
        finish=data.get("finish", ""),
        refused_result=str(data["refused_result"]),
        refused_reason=data.get("refused_reason", ""),
        failure=contexts.get("failure", ""),
        checking=data.get("checking", ""),
        prefix=prefix,
        functions=tuple(functions.values()),
        enums=enums_of(data),
        contexts=contexts,
    )


def load_older(newer: Library, version: Soname) -> Library:
    """The library as an older major version of CUDA has it. Raises Mismatch, OSError.

    Its description has ``functions`` that differ from those of `newer`, ``names`` that `newer`
    lacks, and ``contexts`` of these functions.
    """
    data = yaml.safe_load(version.overlay.read_text())
    about = {"library": newer.name, "result": newer.result, "refused_result": ""}
    described = {**about, **data, "contexts": {}}
    functions = {f.name: f for f in newer.functions}
    contexts = {**newer.contexts}
    for key, names in data.get("contexts", {}).items():
        contexts[key] = f"{contexts.get(key, '')} {names}"
    for function in _library(described).functions:
        if function.kind == "hand":
            raise Mismatch(f"{version.overlay.name}: {function.name}: is not one expression")
        fits = replace(function, check=check_of(function, contexts), older=version.cuda)
        functions[function.name] = fits
    check_contexts(contexts, functions)
    return replace(newer, functions=tuple(functions.values()), contexts=contexts)


def load_versions(name: str) -> dict[Soname, Library]:
    """A library by its versions, newest first. Raises Mismatch, OSError."""
    header = read_header(name)
    library = load_library((API / f"{name}.yaml").read_text(), set(header))
    check_header(library, header)
    found: dict[Soname, Library] = {}
    for version in libraries.table()[name].sonames:
        if version.overlay.exists():
            library = load_older(library, version)
        found[version] = library
    return found


# ---- names in NVIDIA's headers, if they are installed ----


def header_folders(library: str = "cudart") -> list[Path]:
    """The folders with that library's header: in the toolkit, or in a wheel."""
    if library not in headers.FILES:
        return []
    folders = [Path("/usr/local/cuda/include")]
    folders += sorted(Path("/usr/local").glob("cuda-13*/include"))
    folders += [site / "nvidia/cu13/include" for site in (WHEELS, *map(Path, sys.path))]
    return [f for f in folders if (f / headers.FILES[library]).exists()]


def read_header(library: str) -> dict[str, Declared]:
    return headers.read(library, header_folders(library))


def check_header(library: Library, header: dict[str, Declared]) -> None:
    """Check the number of parameters of each function. (tests/interpose checks their types.)"""
    for function in library.functions:
        if function.parameters is None:
            continue
        for name in set(function.names) - set(function.also):
            if name in header and header[name].parameters != len(function.parameters):
                raise Mismatch(
                    f"{library.name}.yaml: {name}: {len(function.parameters)} parameters, "
                    f"but the header says: {header[name].text}"
                )

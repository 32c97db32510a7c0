"""Prints, as JSON, what a device of type nvidia would find here. `rankfold doctor` starts
it as a process of its own.

    {"trouble": why there is no GPU}
    {"cuda": [13, 0], "gpus": [{"name", "model", "cc", "memory"}, …],
     "libraries": {"cublas": {"path": …}, "cudnn": {"trouble": …}, …}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cffi

from rankfold import nvidia_packages, paths
from rankfold.proxy import gpus

LIBRARIES = ("cublas", "cudnn", "cufft", "cusolver")  # that a device calls (hal/nvidia/calls.c)
_TEXT_BYTES = 1024


def _mapped() -> set[str]:
    """The files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    return {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}


def _libraries() -> dict[str, dict[str, str]]:
    ffi = cffi.FFI()
    ffi.cdef("int rankfold_nvidia_library(const char *name, char *text, uint32_t text_bytes);")
    core = ffi.dlopen(str(paths.native("lib/librankfold-proxy.so")))
    text, found = ffi.new("char[]", _TEXT_BYTES), {}
    for name in LIBRARIES:
        if core.rankfold_nvidia_library(name.encode(), text, _TEXT_BYTES):
            found[name] = {"trouble": ffi.string(text).decode(errors="replace")}
        else:
            named = (path for path in _mapped() if Path(path).name.startswith(f"lib{name}.so"))
            found[name] = {"path": next(named, "loaded")}
    return found


def examine() -> dict[str, Any]:
    try:
        cuda, found = gpus.all_gpus()
    except gpus.NoGpu as error:
        return {"trouble": str(error)}
    nvidia_packages.use_own()
    return {
        "cuda": cuda,
        "gpus": [gpu._asdict() for gpu in found],
        "libraries": _libraries(),
    }


if __name__ == "__main__":
    print(json.dumps(examine()))

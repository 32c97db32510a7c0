"""Programs with the client preloaded: how tests of the client alone build and run them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from rankfold import paths
from support.native import REPOSITORY

Run = Callable[..., subprocess.CompletedProcess[str]]
Build = Callable[..., Path]
LIB = paths.native("lib/librankfold.so").parent
CLIENT = REPOSITORY / "interpose/client"
FLOORS = [CLIENT / floor for floor in ("base", "issue", "graph", "api")]


def environment(launcher: Path | None) -> dict[str, str]:
    sanitizers = os.environ.get("LD_PRELOAD", "").split()
    preload = " ".join([*sanitizers, "librankfold.so"])  # a path may have spaces
    env = {**os.environ, "LD_PRELOAD": preload, "LD_LIBRARY_PATH": str(LIB)}
    env.pop("RANKFOLD_LAUNCHER", None)
    if launcher is not None:
        env["RANKFOLD_LAUNCHER"] = str(launcher)
    return env


PRELUDE = """
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bodies.h"
#define OK(call) do { int e_ = (call); if (e_) { \\
	fprintf(stderr, "line %d: %s: %d\\n", __LINE__, #call, e_); exit(1); } } while (0)
#define IS(call, expected) do { long e_ = (long)(call); if (e_ != (long)(expected)) { \\
	fprintf(stderr, "line %d: %s: %ld\\n", __LINE__, #call, e_); exit(1); } } while (0)
"""

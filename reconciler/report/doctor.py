"""`rankfold doctor`: what is missing on this machine, and what works without it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rankfold import criu, fanotify, paths


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    detail: str
    needed: bool = True  # False: everything else works without it


def examine(state: Path) -> list[Finding]:
    return [
        _kernel(),
        _memfd(),
        _library(),
        _state(state),
        _sockets(state),
        _git(),
        _namespaces(),
        _criu(),
        _nft(),
        _files(),
        *_nvidia(),
    ]


def _kernel() -> Finding:
    numbers = [
        int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit()
    ]
    ok = tuple(numbers) >= (5, 16)
    hint = "" if ok else ": proxies need futex_waitv, which came with 5.16"
    return Finding("kernel", ok, f"Linux {platform.release()}{hint}")


def _memfd() -> Finding:
    try:
        os.close(os.memfd_create("rankfold-doctor", os.MFD_ALLOW_SEALING))
    except OSError as error:
        return Finding("memfd", False, f"sealed memfds cannot be created: {error}")
    return Finding("memfd", True, "sealed memfds can be created")


def _library() -> Finding:
    try:
        return Finding("interposer", True, str(paths.native("lib/librankfold.so")))
    except FileNotFoundError as error:
        return Finding("interposer", False, str(error))


def _state(state: Path) -> Finding:
    folder = state
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Finding("state directory", False, f"{folder} cannot be written: use --state")
    free = shutil.disk_usage(folder).free
    return Finding("state directory", free > 1 << 30, f"{state}, {free >> 30} GiB free")


def _sockets(state: Path) -> Finding:
    try:
        folder = paths.sockets(state)
    except OSError as error:
        return Finding("socket folder", False, str(error))
    path = folder / f"doctor-{os.getpid()}.sock"
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    except OSError as error:
        return Finding(
            "socket folder", False, f"{folder}: {error}; set RANKFOLD_RUNTIME to a short path"
        )
    finally:
        path.unlink(missing_ok=True)
    return Finding("socket folder", True, str(folder))


def _git() -> Finding:
    path = shutil.which("git")
    return Finding("git", bool(path), path or "not found: `watch --git` needs it", needed=False)


# For namespaces of pids and of mounts: root may lack the capability.
_UNSHARE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x2002_0000) != 0)"


def _namespaces() -> Finding:
    made = subprocess.run([sys.executable, "-I", "-c", _UNSHARE], check=False)
    ok = made.returncode == 0
    detail = (
        "ranks get their own pid namespaces"
        if ok
        else (
            "they cannot be created, which takes root (CAP_SYS_ADMIN): ranks run without; only "
            "checkpoints of processes need them"
        )
    )
    return Finding("pid namespaces", ok, detail, needed=False)


def _criu() -> Finding:
    """Without CRIU ranks cannot be saved; jobs are still moved, and suspended in memory."""
    without = (
        "; jobs run, fold and are suspended in memory, and cannot be checkpointed, except those of "
        "the elastic runtime"
    )
    if os.geteuid() != 0:
        return Finding("CRIU", False, f"not root, which CRIU needs{without}", needed=False)
    try:
        path, trouble = criu.command(), criu.trouble()
    except criu.Missing as error:
        return Finding("CRIU", False, f"{error}{without}", needed=False)
    if trouble:
        return Finding("CRIU", False, f"{path}: {trouble}{without}", needed=False)
    return Finding("CRIU", True, path, needed=False)


def _nft() -> Finding:
    try:
        return Finding("nft", True, criu.nft(), needed=False)
    except criu.Missing as error:
        without = "; connections between a checkpointed job's ranks may be reset"
        return Finding("nft", False, f"{error}{without}", needed=False)


def _files() -> Finding:
    """Without fanotify checkpoints are made, too."""
    if trouble := fanotify.trouble():
        without = "; a checkpoint does not contain them, and the files must be unchanged"
        return Finding("fanotify", False, f"{trouble}{without}", needed=False)
    return Finding("fanotify", True, "files that ranks write are tracked", needed=False)


EXAMINE_S = 120.0  # the libraries are large, and may be on a slow disk
MIB = 1 << 20
# How a device runs without one of NVIDIA's libraries:
_WITHOUT = {
    "cublas": "products are computed without the program's workspace, with other bits than CUDA's",
    "cudnn": "convolutions and batch normalisation are rankfold's kernels, and the rest is refused",
    "cufft": "transforms (torch.fft) are refused",
    "cusolver": "factorisations and solvers (torch.linalg) are refused",
}


def _nvidia() -> list[Finding]:
    """The GPUs and libraries that a device of type nvidia would find."""
    what = "NVIDIA GPUs"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "rankfold.proxy.examine"],
            capture_output=True,
            text=True,
            timeout=EXAMINE_S,
        )
    except subprocess.TimeoutExpired:
        return [Finding(what, False, f"no answer within {EXAMINE_S:.0f} s", needed=False)]
    if done.returncode:
        how = signal.strsignal(-done.returncode) if done.returncode < 0 else done.returncode
        last = (done.stderr.strip().splitlines() or [f"the examining process ended: {how}"])[-1]
        return [Finding(what, False, f"they cannot be examined: {last}", needed=False)]
    found = json.loads(done.stdout.splitlines()[-1])
    if trouble := found.get("trouble") or ("" if found["gpus"] else "the driver shows no GPU"):
        return [
            Finding(what, False, f"{trouble}; devices of type soft need none", needed=False),
        ]
    each = (f"{g['model']} ({g['cc']}, {g['memory'] // MIB} MiB)" for g in found["gpus"])
    major, minor = found["cuda"]
    findings = [Finding(what, True, f"driver for CUDA {major}.{minor}; {', '.join(each)}")]
    for name, library in found["libraries"].items():
        trouble = library.get("trouble", "")
        detail = f"{trouble}; {_WITHOUT[name]}" if trouble else library["path"]
        findings.append(Finding(f"NVIDIA {name}", not trouble, detail, needed=False))
    return findings

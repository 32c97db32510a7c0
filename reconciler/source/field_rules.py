"""Rules of single fields that their schemas do not express: sizes, names, commands that
start ranks of their own. `rankfold run` applies them to its options, too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from rankfold.messages import chunk_bytes
from rankfold.reconciler.source.schemas import load_schema, validator

DEVICE_MEMORY_MIN = 4 << 20
DEVICE_MEMORY_MAX = 1 << 39  # RF_HEAP_BYTES: what a rank can address
DEVICE_MEMORY_WORDS = "a size such as 512MiB or 1GiB, from 4MiB to 512GiB"
OURS_IN_ENV = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}


def parse_size(text: str | int) -> int | None:
    """Bytes of ``1GiB``, ``1.5 GiB``, ``500MB`` or a plain number; None if it is not a size."""
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]{0,3})\s*", str(text))
    if isinstance(text, bool) or not match or match[2] not in _UNITS:
        return None
    return (
        int(float(match[1]) * _UNITS[match[2]])
        if "." in match[1]
        else int(match[1]) * _UNITS[match[2]]
    )


def device_memory(text: str | int) -> int | None:
    """Bytes of a device's memory, in whole chunks, as written; None if it is not a size that a
    device can have."""
    size = parse_size(text)
    if size is None or not DEVICE_MEMORY_MIN <= size <= DEVICE_MEMORY_MAX:
        return None
    return size - size % chunk_bytes()


_STARTERS = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "srun",
    "horovodrun",
    "colossalai",
)
_STARTER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "accelerate.commands.launch",
    "accelerate",
    "deepspeed.launcher.runner",
    "deepspeed",
)
_PREFIXES = ("env", "nice", "nohup", "time", "stdbuf", "taskset", "setsid", "exec")


def command_faults(command: list[str]) -> list[str]:
    """Faults of a command that starts ranks itself: rankfold starts one process per rank."""
    if not command[0].strip():
        return ["must begin with a program"]
    words = list(command)
    while words and (
        Path(words[0]).name in _PREFIXES or (words is not command and "=" in words[0])
    ):
        words = words[1:]
    program = Path(words[0]).name if words else ""
    python = re.fullmatch(r"python[0-9.]*", program) is not None
    module = words[words.index("-m") + 1] if python and "-m" in words[:-1] else ""
    starter = program if program in _STARTERS else module if module in _STARTER_MODULES else ""
    if not starter:
        return []
    script = next((i for i, word in enumerate(words[1:], 1) if word.endswith(".py")), None)
    if script is not None:
        give = json.dumps(["python", *words[script:]])
    else:
        give = "the program itself with its arguments"
    return [f"{starter} starts ranks of its own; rankfold starts them: give {give}, and worldSize"]


def bad_name(name: str) -> str:
    """Why this cannot be an object's name; empty if it can."""
    rule = load_schema("Job")["properties"]["metadata"]["properties"]["name"]
    return "" if validator(rule).is_valid(name) else str(rule["description"])


def is_capability(capability: str) -> bool:
    """Whether this can be a device's compute capability."""
    devices = load_schema("Pool")["properties"]["spec"]["properties"]["devices"]
    rule = devices["items"]["properties"]["computeCapability"]
    return bool(validator(rule).is_valid(capability))


def env_faults(env: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in env:
        if name in OURS_IN_ENV or name.startswith("RANKFOLD_"):
            yield name, "is set by rankfold for each rank; leave it out"


def url_fault(url: str) -> str:
    """Why a URL cannot be one of a load; empty: it can."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if not host:
        return "is no URL: it has no host"
    if "@" in parts.netloc:
        return "must have no user name or password: reports show it"
    if "#" in url:
        return "must have no fragment (#…)"
    return ""

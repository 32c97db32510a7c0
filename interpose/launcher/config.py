"""The config of a launcher, and the environment that it gives its rank.

The config is a JSON object; paths are absolute.

``job`` str, ``rank`` int, ``world_size`` int
``local_rank``, ``local_world_size`` int; default: ``rank``, ``world_size`` (one node)
``command`` [str, …]: looked up in the rank's PATH, or relative to ``workdir``
``workdir`` path; ``env`` {str: str}; ``inherit`` bool, default true: ``env`` is added to the
    launcher's own environment, without ``RANKFOLD_…``, which is not for ranks
``master_addr`` str, ``master_port`` int: for the rank's rendezvous
``device`` {str: str | int}: fields of ``struct rf_device`` (interpose/channel/channel.h), as the
    rank sees its device for its whole life; ``name`` and ``memory_bytes`` are required, the others
    default to the software GPU's
``socket`` path of the control socket; ``client_socket`` path of the socket for the rank's
    library. At most 107 bytes each, in a private folder
``logs`` folder, made if missing: ``rank-<r>.out``, ``.err`` (appended to), ``.launcher.log``,
    ``.cut`` ({kind: bytes}: the sizes to which the last restore shortened those logs)
``copies`` folder, default: ``interposer`` next to the exit file: copies of the libraries that
    ranks preload; all ranks that started with the same libraries share one copy
``exit_file`` path: written once, atomically, when the rank has ended: {"exit_status": int
    (negative: killed by that signal), "signal": int | null, "error": str | null, "killed": [str,
    …]: processes that were still running and were killed, "time": seconds since the epoch}. 127:
    no such command, 126: cannot be executed; ``error`` and the last line of ``rank-<r>.err`` give
    the reason in words
``image_bytes`` int, default RF_WINDOW_BYTES: size of the sparse image that a proxy swaps to
``namespaces`` "auto" (default) | "require" | "none"
``preload`` [path, …]: default: the built library and its shims
``hidden`` [path, …], default none: folders that hold the fleet's files and sockets. Where
    namespaces can be made, the rank sees them empty except for its client socket and ``workdir``
``empty`` bool, default false: start no command, and wait for a rank to restore
``state_folder`` path, default none: the rank's program keeps its state in files there, and needs no
    CRIU to be saved: see state_folder.py
``incarnation`` int, default 1: of the job; each start from the beginning or restore begins one
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from rankfold import paths, settings
from rankfold.interpose.launcher import handshake, interposer

NAMESPACES = ("auto", "require", "none")


class ConfigError(Exception):
    """The config cannot be used; the message names the field and what would be right."""


@dataclass(frozen=True)
class Config:
    """The config file, checked. The module's docstring describes the fields."""

    job: str
    rank: int
    world_size: int
    command: tuple[str, ...]
    workdir: str
    device: bytes
    socket: str
    client_socket: str
    logs: str
    exit_file: str
    master_addr: str
    master_port: int
    local_rank: int
    local_world_size: int
    env: dict[str, str] = field(default_factory=dict)
    inherit: bool = True
    image_bytes: int = handshake.WINDOW_BYTES
    namespaces: str = "auto"
    preload: tuple[str, ...] | None = None
    hidden: tuple[str, ...] = ()
    empty: bool = False
    incarnation: int = 1
    copies: str = ""
    state_folder: str = ""

    def log(self, kind: str) -> str:
        return os.path.join(self.logs, f"rank-{self.rank}.{kind}")


_TYPES: dict[str, type] = {
    **dict.fromkeys(("job", "workdir", "socket", "client_socket", "logs", "exit_file"), str),
    **dict.fromkeys(("master_addr", "namespaces", "copies", "state_folder"), str),
    **dict.fromkeys(("rank", "world_size", "master_port", "image_bytes"), int),
    **dict.fromkeys(("local_rank", "local_world_size", "incarnation"), int),
    **dict.fromkeys(("command", "preload", "hidden"), list),
    **dict.fromkeys(("env", "device"), dict),
    **dict.fromkeys(("inherit", "empty"), bool),
}
_OPTIONAL = (
    "env",
    "inherit",
    "image_bytes",
    "namespaces",
    "preload",
    "local_rank",
    "local_world_size",
    "hidden",
    "empty",
    "incarnation",
    "copies",
    "state_folder",
)
_PATHS = ("workdir", "socket", "client_socket", "logs", "exit_file")


def parse_config(data: object) -> Config:
    """Check the content of the file. Raises ConfigError."""
    if not isinstance(data, dict):
        raise ConfigError("the config must be a JSON object")
    for name in sorted(set(_TYPES) - set(_OPTIONAL) - set(data)):
        raise ConfigError(f"{name} is missing")
    for name, value in data.items():
        kind = _TYPES.get(name)
        if kind is None:
            raise ConfigError(f"there is no field {name}")
        if type(value) is not kind:
            got = type(value).__name__  # not the value: an environment may contain secrets
            raise ConfigError(f"{name} must be a {kind.__name__}, not a {got}")
    _check_values(data)
    try:
        device = handshake.pack_device(data["device"])
    except ValueError as error:
        raise ConfigError(str(error)) from error
    preload = data.get("preload")
    return Config(
        **{
            "local_rank": data["rank"],
            "local_world_size": data["world_size"],
            "copies": os.path.join(os.path.dirname(data["exit_file"]), "interposer"),
            **data,
            "device": device,
            "command": tuple(data["command"]),
            "preload": None if preload is None else tuple(preload),
            "hidden": tuple(data.get("hidden", ())),
        }
    )


def _check_values(data: dict[str, Any]) -> None:
    for name in (*_PATHS, *({"copies", "state_folder"} & set(data))):
        if not os.path.isabs(data[name]):
            raise ConfigError(f"{name} must be an absolute path, not {data[name]!r}")
    for name in ("socket", "client_socket"):
        if len(os.fsencode(data[name])) > 107:
            raise ConfigError(f"{name} is longer than 107 bytes: {data[name]}")
    hidden = data.get("hidden", [])
    strings = [*data["command"], *data.get("preload", []), *data.get("env", {}).values(), *hidden]
    if not data["command"] or not all(type(s) is str and "\0" not in s for s in strings):
        raise ConfigError("command, preload, env and hidden hold strings; command at least one")
    if not all(os.path.isabs(folder) for folder in hidden):
        raise ConfigError(f"hidden holds absolute paths, not {hidden!r}")
    if not 0 <= data["rank"] < data["world_size"]:
        raise ConfigError(f"rank {data['rank']} is not below world_size {data['world_size']}")
    if data.get("namespaces", "auto") not in NAMESPACES:
        raise ConfigError(f"namespaces must be one of {', '.join(NAMESPACES)}")
    for name in ("image_bytes", "incarnation"):
        if data.get(name, 1) <= 0:
            raise ConfigError(f"{name} must be positive")


def rank_environment(
    config: Config, base: dict[str, str], socket: str = "", libraries: str = ""
) -> dict[str, str]:
    """The rank's environment: `base` if it inherits, the job's own variables, and those that make
    it a rank. Variables that steer rankfold or lead to its sockets are left out. `socket`,
    `libraries`: the client socket and the folder with the preloaded libraries, if the rank sees
    them at other paths.

    The settings of frameworks apply only where the user has set nothing.

    Libraries that the user preloads come before ours: a wrapper that counts or changes calls finds
    ours with RTLD_NEXT. Only NVIDIA's own libraries come after ours, which replace them.
    """
    inherited = base if config.inherit else {}
    env = {k: v for k, v in inherited.items() if not k.startswith("RANKFOLD_")} | config.env
    preload = preloads(config)
    if libraries:
        preload = tuple(os.path.join(libraries, os.path.basename(path)) for path in preload)
    env |= settings.not_in(env)
    env.update(
        RANK=str(config.rank),
        WORLD_SIZE=str(config.world_size),
        LOCAL_RANK=str(config.local_rank),
        LOCAL_WORLD_SIZE=str(config.local_world_size),
        MASTER_ADDR=config.master_addr,
        MASTER_PORT=str(config.master_port),
        RANKFOLD_LAUNCHER=socket or config.client_socket,
    )
    if preload:
        users = env.get("LD_PRELOAD", "").replace(":", " ").split()
        ours = {interposer.unversioned(path) for path in preload}
        replaced = [path for path in users if interposer.unversioned(path) in ours]
        wrappers = [path for path in users if path not in replaced]
        env["LD_PRELOAD"] = ":".join([*wrappers, *map(_preloaded, preload), *replaced])
        env["ASAN_OPTIONS"] = _asan_options(env.get("ASAN_OPTIONS", ""))
        folders = list(dict.fromkeys(os.path.dirname(path) for path in preload))
        users = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
        env["LD_LIBRARY_PATH"] = ":".join([*folders, *users])
    return env


def _asan_options(users: str) -> str:
    """Switch off the address sanitizer's link-order check: it ends a program that loads our
    libraries before its runtime. A setting of the user is kept."""
    if "verify_asan_link_order" in users:
        return users
    return ":".join([*filter(None, [users]), "verify_asan_link_order=0"])


def _preloaded(path: str) -> str:
    """The form that LD_PRELOAD accepts: spaces separate its entries, but not those of
    LD_LIBRARY_PATH."""
    return os.path.basename(path) if re.search(r"\s", path) else path


def preloads(config: Config) -> tuple[str, ...]:
    """The libraries that the rank preloads. Raises FileNotFoundError."""
    return config.preload if config.preload is not None else built_libraries()


def built_libraries() -> tuple[str, ...]:
    """The library and one shim per SONAME, as built. Raises FileNotFoundError."""
    library = paths.native("lib/librankfold.so")
    shims = interposer.newest_first(map(str, library.parent.glob("lib*.so.*")))
    return (str(library), *shims)

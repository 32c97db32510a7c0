"""The config file: what is refused, and the environment that follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankfold.interpose.launcher.config import ConfigError, parse_config, rank_environment

from .conftest import Rig

GOOD = Rig(Path("/somewhere"), "auto").config("true")
DEVICE = {"name": "d", "memory_bytes": 1}


def test_defaults() -> None:
    config = parse_config({k: v for k, v in GOOD.items() if k != "preload"})
    assert (config.local_rank, config.local_world_size) == (0, 4)
    assert config.image_bytes == 1 << 40
    assert config.preload is None


@pytest.mark.parametrize("name", [n for n in GOOD if n not in ("preload", "namespaces")])
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is missing"):
        parse_config({k: v for k, v in GOOD.items() if k != name})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": "0"}, "rank must be a int"),
        ({"rank": True}, "rank must be a int"),
        ({"rank": 4}, "not below world_size"),
        ({"rank": -1}, "not below world_size"),
        ({"surprise": 1}, "no field surprise"),
        ({"workdir": "relative"}, "absolute"),
        ({"socket": "/" + "x" * 107}, "107 bytes"),
        ({"command": []}, "at least one"),
        ({"command": ["a", 1]}, "strings"),
        ({"command": ["a\0b"]}, "strings"),
        ({"env": {"A": 1}}, "strings"),
        ({"namespaces": "maybe"}, "auto, require, none"),
        ({"image_bytes": 0}, "positive"),
        ({"device": {"name": "d"}}, "memory_bytes"),
        ({"device": {**DEVICE, "cores": 3}}, "no field cores"),
        ({"device": {**DEVICE, "sm_count": -1}}, "out of range"),
    ],
)
def test_a_wrong_field_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({**GOOD, **change})


def test_a_bad_config_leaves_nothing(plain_rig: Rig) -> None:
    done = plain_rig.run({**plain_rig.config("true"), "rank": 9})
    assert done.returncode == 1 and "not below world_size" in done.stderr
    assert not (plain_rig.folder / "logs").exists()


def environment(env: dict[str, str], preload: list[str]) -> dict[str, str]:
    config = parse_config({**GOOD, "env": env, "preload": preload})
    return rank_environment(config, {"INHERITED": "1"})


def test_user_preloads_come_before_ours_and_nvidia_s_libraries_after() -> None:
    users = {"LD_PRELOAD": "/u/libnccl.so.2 /u/wrap.so:/u/libncclwrap.so", "LD_LIBRARY_PATH": "/u"}
    env = environment(users, ["/r/librankfold.so", "/r/libcudart.so.13", "/r/libnccl.so.2"])
    ours = "/r/librankfold.so:/r/libcudart.so.13:/r/libnccl.so.2"
    assert env["LD_PRELOAD"] == f"/u/wrap.so:/u/libncclwrap.so:{ours}:/u/libnccl.so.2"
    assert env["LD_LIBRARY_PATH"] == "/r:/u"
    assert env["INHERITED"] == "1"


@pytest.mark.parametrize(
    ("users", "ours"),
    [
        ("", "verify_asan_link_order=0"),
        ("a=1", "a=1:verify_asan_link_order=0"),
        ("verify_asan_link_order=1:a=1", "verify_asan_link_order=1:a=1"),
    ],
)
def test_the_address_sanitizer_accepts_libraries_before_its_own(users: str, ours: str) -> None:
    env = environment({"ASAN_OPTIONS": users} if users else {}, ["/r/librankfold.so"])
    assert env["ASAN_OPTIONS"] == ours


def test_the_users_settings_hold() -> None:
    users = {
        "PYTORCH_CUDA_ALLOC_CONF": "mine",
        "USE_LIBUV": "1",
        "CUPY_COMPILE_WITH_PTX": "0",
    }
    env = environment(users, [])
    assert {name: env[name] for name in users} == users
    assert "LD_PRELOAD" not in env

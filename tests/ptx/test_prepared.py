"""Modules that are prepared once for all proxies and fleets: found again, verified, and bounded."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from ptx.test_outline import text

from rankfold.proxy.hal.soft.compiler.objects import kernel_source
from rankfold.proxy.ptx import prepared, stored
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.info import ModuleInfo, module_info

pytestmark = pytest.mark.unit

CC = (12, 0)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are prepared."""
    found: list[str] = []
    pack = prepared._pack

    def counted(text: str) -> bytes:
        found.append(text)
        return pack(text)

    monkeypatch.setattr(prepared, "_pack", counted)
    return found


def module(folder: Path, source: str) -> ModuleInfo:
    info, not_stored = prepared.Prepared(folder).module(source.encode(), CC)
    assert not_stored == ""
    return info


def test_a_prepared_module_is_the_module(tmp_path: Path, packed: list[str]) -> None:
    source = text(20).replace(".global", ".visible .global")
    whole = module_info(source)
    for _ in range(3):
        found = module(tmp_path, source)
        assert (found.functions, found.globals) == (whole.functions, whole.globals)
        assert found.globals_image == whole.globals_image
        for name in ("k0", "k19"):
            assert kernel_source(found.ptx, name) == kernel_source(whole.ptx, name)
    assert packed == [source]
    other, _ = prepared.Prepared(tmp_path).module(source.encode(), (7, 5))
    assert other.hash == found.hash and len(packed) == 2  # a fatbin may have other PTX for it


def test_processes_that_need_a_module_at_once_prepare_it_once(
    tmp_path: Path, packed: list[str]
) -> None:
    source, hashes = text(50), []
    threads = [
        threading.Thread(target=lambda: hashes.append(module(tmp_path, source).hash))
        for _ in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(hashes) == 8 and len(set(hashes)) == 1 and len(packed) == 1


def test_a_prepared_module_is_not_parsed_again(
    tmp_path: Path, packed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text(5) + ".global .align 4 .b8 table[4] = {0, 255, -1, 7};\n"
    first = module(tmp_path, source)
    monkeypatch.setattr(prepared, "parse_module", None)
    again = module(tmp_path, source)
    assert again == first and again.ptx.variables == first.ptx.variables and len(packed) == 1
    assert again.ptx.variables["table"].initial == bytes((0, 255, 255, 7))


def test_a_damaged_body_fails_only_its_kernel(tmp_path: Path) -> None:
    module(tmp_path, text(5))
    (path,) = tmp_path.rglob("*.rfmod")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])  # the last body's checksum
    found = module(tmp_path, text(5)).ptx
    assert kernel_source(found, "k3")
    with pytest.raises(ModuleError, match="damaged"):
        kernel_source(found, "k4")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "short"])
def test_a_damaged_file_is_made_again(tmp_path: Path, packed: list[str], damage: str) -> None:
    source = text(5)
    found = module(tmp_path, source)
    (path,) = tmp_path.rglob("*.rfmod")
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    spoilt = {"flip": flipped, "cut": data[:-7], "empty": b"", "short": data[:20]}[damage]
    path.unlink()  # a proxy that has the good file mapped keeps it
    path.write_bytes(spoilt)
    assert module(tmp_path, source).hash == found.hash
    assert len(packed) == 2 and path.read_bytes() == data
    assert "ret" in kernel_source(found.ptx, "k3")


def test_where_nothing_can_be_stored_the_module_is_still_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    info, why = prepared.Prepared(tmp_path / "file").module(text(2).encode(), CC)
    assert "cannot be stored" in why and kernel_source(info.ptx, "k1")


def test_a_broken_module_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(ModuleError):
        module(tmp_path, text(2) + ".global .u32;")
    assert list(tmp_path.rglob("*.rfmod")) == []


def test_a_full_cache_loses_what_was_not_used_for_longest(tmp_path: Path) -> None:
    sources = [text(n) for n in range(10, 20)]
    for age, source in enumerate(sources):
        known = set(tmp_path.rglob("*.rfmod"))
        module(tmp_path, source)
        (new,) = set(tmp_path.rglob("*.rfmod")) - known
        os.utime(new, (1000 + age, 1000 + age))
    module(tmp_path, sources[0])  # used again
    total = sum(path.stat().st_size for path in tmp_path.rglob("*.rfmod"))
    assert stored.shrink(tmp_path, total) == 0
    half = total // 2
    assert stored.shrink(tmp_path, half) > 0
    left = list(tmp_path.rglob("*.rfmod"))
    assert sum(path.stat().st_size for path in left) <= half
    dates = sorted(path.stat().st_mtime for path in left)
    assert dates[0] > 1001 and dates[-1] > 1e9  # the oldest went, and not the one used again

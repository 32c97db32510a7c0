"""`rankfold.records` reads the headers as the compiler does, and refuses what it cannot."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rankfold import job_limits, paths, records


def compiled(folder: Path, header: str, expressions: list[str]) -> list[int]:
    """The values of C expressions over a header of the repository, by the compiler."""
    lines = "".join(f'\tprintf("%lld\\n", (long long)({e}));\n' for e in expressions)
    source, program = folder / "values.c", folder / "values"
    include = f'#include <stddef.h>\n#include <stdio.h>\n#include "{paths.REPOSITORY / header}"\n'
    source.write_text(f"{include}int main(void)\n{{\n{lines}}}\n")
    room = paths.REPOSITORY / "interpose/channel"
    subprocess.run(["gcc", "-std=c11", f"-I{room}", source, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


CONTRACTS = {"channel": records.channel(), "saved": records.saved()}


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_offset_and_number_is_the_compilers(tmp_path: Path, name: str) -> None:
    contract, (header, *_) = CONTRACTS[name], records.SOURCES[name][0]
    expected: dict[str, int] = {}
    for shape in contract.structs.values():
        expected[f"sizeof(struct {shape.name})"] = shape.size
        for field in shape.fields:
            expected[f"offsetof(struct {shape.name}, {field.name})"] = field.offset
            if field.count != 0:
                size = field.size * (1 if field.count is None else field.count)
                expected[f"sizeof(((struct {shape.name} *)0)->{field.name})"] = size
    expected |= contract.constants
    prefix = "RF_OP_" if name == "channel" else "STATE_"
    expected |= {f"{prefix}{o.name}": o.number for o in contract.opcodes.values()}
    assert len(expected) > 300
    found = dict(zip(expected, compiled(tmp_path, header, list(expected)), strict=True))
    signed = {key: value - (value >> 63 << 64) for key, value in expected.items()}
    assert found == signed


def test_offsets_of_what_a_process_records_are_the_compilers(tmp_path: Path) -> None:
    contract = records.host_state()
    expected = {
        f"offsetof(struct {shape.name}, {field.name})": field.offset
        for shape in contract.structs.values()
        for field in shape.fields
    }
    expected |= contract.constants
    assert {"RF_HOST_KEY", "offsetof(struct rf_host_object, value)"} <= expected.keys()
    assert compiled(tmp_path, records.SOURCES["host_state"][0][0], list(expected)) == list(
        expected.values()
    )


def test_the_limits_of_a_job_are_the_compilers(tmp_path: Path) -> None:
    header = "proxy/core/job_limits.h"
    found = compiled(tmp_path, header, ["RANKS_MAX", "DEVICES_MAX"])
    assert found == [job_limits.RANKS_MAX, job_limits.DEVICES_MAX]


def test_all_structs_of_the_headers_are_read() -> None:
    for name, contract in CONTRACTS.items():
        text = (paths.REPOSITORY / records.SOURCES[name][0][0]).read_text()
        assert set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE)) <= set(contract.structs)


def test_the_generated_module_has_the_same_contracts() -> None:
    generated: dict[str, Any] = {}
    exec(records.source(), generated)
    assert generated["CONTRACTS"] == {
        **CONTRACTS,
        "image_hold": records.image_hold(),
        "host_state": records.host_state(),
    }


def test_fields_are_separated_from_what_follows_them() -> None:
    channel = records.channel()
    launch = channel.opcodes["LAUNCH"]
    assert [f.name for f in launch.record.arguments][:3] == ["stream", "function", "grid"]
    assert launch.record["params"].count == 0
    assert channel.opcodes["DEVICE_SYNC"].record.arguments == ()
    assert channel.opcodes["GRANT"].reply == channel.structs["rf_grant_reply"]


def test_bytes_become_fields() -> None:
    channel = records.channel()
    matrix = b"".join(n.to_bytes(8, "little") for n in (1, 2, 3, 4))
    assert channel.unpack(channel.structs["rf_matrix"], matrix) == {
        "addr": 1,
        "row": 2,
        "col": 3,
        "batch": 4,
    }
    device = b"a name".ljust(64, b"\0") + bytes(104)
    assert channel.unpack(channel.structs["rf_device"], device)["name"] == "a name"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("struct rf_a {\n\tuint64_t x[N];\n};", "x[N] has a length that is not known"),
        ("struct rf_a {\n\tvoid *x;\n};", "void is not a type"),
        ("enum rf_e { A = B };", "A: B is not a number"),
    ],
)
def test_unknown_lines_are_refused(text: str, words: str) -> None:
    with pytest.raises(records.Unreadable) as caught:
        records.parse(text)
    assert words in str(caught.value)

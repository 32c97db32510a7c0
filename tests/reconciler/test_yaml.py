"""Desired state is YAML 1.2, every number of it has bounds, and no bytes make `validate` fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankfold import paths
from rankfold.reconciler.model.desired import Job, Pool
from rankfold.reconciler.source import field_rules, spec, yamldoc

pytestmark = pytest.mark.unit

JOB = """\
apiVersion: rankfold/v1alpha1
kind: Job
metadata:
  name: gpt
spec:
  command: [./train, --steps, "200"]
  worldSize: 4
"""
POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec:
  devices: [{type: soft, count: 4}]
"""
POLICY = """\
apiVersion: rankfold/v1alpha1
kind: Policy
metadata: {name: default}
spec: {}
"""
SERVICE = """\
apiVersion: rankfold/v1alpha1
kind: Service
metadata: {name: web}
spec:
  command: [./serve]
"""
DOCUMENTS = {"Job": JOB, "Pool": POOL, "Policy": POLICY, "Service": SERVICE}


def load(text: str) -> spec.Loaded:
    return spec.load_texts({"0.yaml": text}, {"0.yaml": "/work"})


def faults(text: str) -> list[str]:
    return [str(fault) for fault in load(text).faults]


def value(text: str) -> Any:
    (document,), problems = yamldoc.parse(text)
    assert problems == []
    return document.value


# ---- YAML 1.2 ----------------------------------------------------------------------------------

CORE = {
    "yes": "yes",
    "on": "on",
    "Off": "Off",
    "n": "n",
    "true": True,
    "FALSE": False,
    "~": None,
    "": None,
    "Null": None,
    "010": 10,
    "0o10": 8,
    "0x1F": 31,
    "0b1": "0b1",
    "-12": -12,
    "+4": 4,
    "1_000": "1_000",
    "1:30": "1:30",
    "2026-01-01": "2026-01-01",
    "1e3": 1000.0,
    ".5": 0.5,
    "1.": 1.0,
    "-.5E-2": -0.005,
    "=": "=",
    "<<x": "<<x",
    "!!str 4": "4",
    "!!int '4'": 4,
    "!!float 4": 4.0,
    "! 4": "4",
    "!!null ''": None,
    "'4'": "4",
}


@pytest.mark.parametrize("text", CORE)
def test_scalars_are_those_of_the_core_schema(text: str) -> None:
    got = value(f"a: {text}\n")["a"]
    assert (got, type(got)) == (CORE[text], type(CORE[text]))


MERGES = {
    "{<<: *a, A: z}": {"A": "z", "B": "1"},
    "{A: z, <<: *a}": {"A": "z", "B": "1"},
    "{<<: [*a, *b]}": {"A": "x", "B": "1", "C": "2"},
    "{<<: [*b, *a], B: q}": {"A": "y", "B": "q", "C": "2"},
    "{<<: {<<: *b, C: z}}": {"A": "y", "C": "z"},
    '{"<<": x}': {"<<": "x"},
}


@pytest.mark.parametrize("text", MERGES)
def test_a_mappings_own_keys_win_over_those_that_it_merges(text: str) -> None:
    given_ = "a: &a {A: x, B: '1'}\nb: &b {A: y, C: '2'}\n"
    assert value(f"{given_}c: {text}\n")["c"] == MERGES[text]


def test_a_job_overrides_what_it_merges() -> None:
    assert load(JOB + "  env: {<<: {A: x, B: y}, A: z}\n").check().desired.jobs["gpt"].env == (
        ("A", "z"),
        ("B", "y"),
    )


REFUSED = {
    "command: !!python/object/apply:os.system [id]": "0.yaml:8: spec.command: the tag "
    "!!python/object/apply:os.system is not known for a list",
    "env: !vault {A: b}": "0.yaml:8: spec.env: the tag is not known for a mapping; leave it out",
    "env: {A: !secret b}": "0.yaml:8: spec.env.A: the tag is not known for a text; leave it out",
    "checkpoint: {!key keep: 1}": "0.yaml:8: spec.checkpoint: the tag !key is not known for a key",
    "checkpoint: !!seq {keep: 1}": "0.yaml:8: spec.checkpoint: the tag !!seq is not "
    "known for a mapping",
    "gpus: !!binary aGk=": "0.yaml:8: spec.gpus: the tag !!binary is not known for a text",
    "gpus: !%1bc 4": r"0.yaml:8: spec.gpus: the tag !\x1bc is not known for a text",
    "gpus: !!int four": "0.yaml:8: spec.gpus: is not a valid int: put it in quotes if it is a text",
    "env: {<<: A}": "0.yaml:8: spec.env.<<: must name a mapping, or a list of mappings, to merge",
    "env: {<<: {A: b}, <<: {B: c}}": "0.yaml:8: spec.env.<<: appears twice",
    "env: {<<: {A: b, A: c}}": "0.yaml:8: spec.env.A: appears twice",
    "env: *none": "0.yaml:8: -: not YAML: an alias (*) names an anchor (&) that is not defined",
    "env: &a {<<: *a}": "0.yaml:8: -: not YAML: an alias (*) is inside the value that it names",
    "suspend: yes": '0.yaml:8: spec.suspend: must be true or false, not "yes"',
}


@pytest.mark.parametrize("addition", REFUSED)
def test_refused_yaml_is_named_with_its_line(addition: str) -> None:
    job = JOB.replace("  command", "  # command") if "command" in addition else JOB
    found = faults(f"{job}  {addition}\n---\n{POOL}")
    assert len(found) == 1 and found[0].startswith(REFUSED[addition]), found


def test_an_anchor_may_be_given_again_and_ends_with_its_document() -> None:
    assert value("a: &x 1\nb: *x\nc: &x 2\nd: *x\n") == {"a": 1, "b": 1, "c": 2, "d": 2}
    _, problems = yamldoc.parse("a: &x 1\n---\nb: *x\n")
    assert problems[0].line == 3


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_and_byte_order_marks_change_no_line(end: str) -> None:
    text = "\ufeff" + (JOB + "---\n" + POOL).replace("\n", end)
    loaded = load(text)
    assert loaded.faults == [] and loaded.files["0.yaml"].ended
    assert loaded.files["0.yaml"].lines == len((JOB + POOL).splitlines()) + 1
    assert str(loaded.origins["Pool", "local"]) == "0.yaml:11"
    assert faults(text + f"x: 1{end}")[0].startswith("0.yaml:14: x: there is no such field")


@pytest.mark.parametrize("character", ["\0", "\x07", "\x1b", "\ufffe"])
def test_a_character_that_no_text_holds_is_found_by_its_line(character: str) -> None:
    (found,) = faults(f"# é\r\n# ü\r# \n{JOB}  env: {{A: {character}}}\n")
    assert found.startswith("0.yaml:11: -: not a text file")


# ---- too much ----------------------------------------------------------------------------------


def bomb(line: str) -> str:
    """Ten aliases of ten aliases of …"""
    rows = [line.format(at=at, ten=", ".join([f"*a{at - 1}"] * 10)) for at in range(1, 12)]
    return "\n".join(["a0: &a0 {k: v}", *rows])


TOO_LARGE = {
    "aliases": bomb("a{at}: &a{at} [{ten}]"),
    "merges": bomb("a{at}: &a{at} {{<<: [{ten}]}}"),
    "chain of merges": "\n".join(
        ["a0: &a0 {k: v}", *(f"a{at}: &a{at} {{<<: *a{at - 1}}}" for at in range(1, 5000))]
    ),
    "lists": "[" * 1_000_000,
    "mappings": "{a: " * 500_000,
    "block lists": "- " * 500_000,
    "keys": "? " * 500_000,
    "items": "[" + "a, " * 300_000 + "]",
    "text": "# " + "x" * yamldoc.TEXT_MAX,
}


@pytest.mark.parametrize("text", TOO_LARGE)
def test_documents_that_are_too_large_are_refused(text: str) -> None:
    (found,) = faults(TOO_LARGE[text])
    assert "too large" in found


@pytest.mark.parametrize(
    "addition",
    [
        "env: {A: '%s'}",
        "command: ['%s']",
        "workdir: '%s'",
        "%s: 1",
        "kind: '%s'",
        "gpus: '%s'",
        "env: {%s: 1}",
        "deviceTypes: ['%s']",
        "deviceTypes: ['%s', {}]",
    ],
)
def test_a_fault_quotes_little_of_a_long_text(addition: str) -> None:
    found = faults(JOB + "  " + addition.replace("%s", "x" * 1_000_000) + "\n")
    assert found and all(len(each) < 1000 for each in found)


def test_a_long_list_of_things_that_have_no_order_is_compared_once() -> None:
    things = ", ".join(f"{{a: {at}}}" for at in range(20_000))
    found = faults(f"{JOB}  deviceTypes: [{things}]\n")
    assert len(found) == spec.FAULTS_MAX + 1
    assert "0.yaml:8: -: has more faults, which are not listed" in found


# ---- numbers -----------------------------------------------------------------------------------


def numbers(schema: Any, path: str = "") -> Any:
    """(field, rule) of every number that a schema has."""
    types = schema.get("type", ())
    if {"integer", "number"} & set([types] if isinstance(types, str) else types):
        yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from numbers(each, f"{path}.{name}" if path else name)
    if isinstance(schema.get("items"), dict):
        yield from numbers(schema["items"], f"{path}.0")


NUMBERS = {
    f"{kind}.{field}": rule
    for kind in spec.KINDS
    for field, rule in numbers(json.loads(paths.schema(kind).read_text()))
}
HUGE = [
    "1.0e+30",
    "1e308",
    "1e400",
    "99999999999999999999",
    "9" * 5000,
    "0x" + "f" * 5000,
    "-1.0e+30",
    "-" + "9" * 5000,
    "0o" + "7" * 5000,
    "1" * 400 + ".5",
    ".inf",
    "-.inf",
    ".nan",
    "5e-324",
]


def test_there_are_as_many_numbers_as_there_should_be() -> None:
    assert len(NUMBERS) >= 14 and "Job.spec.checkpoint.everySteps" in NUMBERS


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("number", HUGE, ids=lambda number: number[:12])
def test_every_number_has_bounds_on_both_sides(field: str, number: str) -> None:
    assert {"minimum", "maximum"} <= NUMBERS[field].keys()
    kind, *path = field.split(".")
    document = yaml.safe_load(DOCUMENTS[kind])
    within = document
    for part in path[:-1]:
        within = within[0] if part == "0" else within.setdefault(part, {})
        within = {} if isinstance(within, int) else within
    if path[:2] in (["spec", "gpus"], ["spec", "replicas"]) and len(path) > 2:
        within = document["spec"][path[1]] = {}
    within[path[-1]] = "HERE"
    found = faults(yaml.safe_dump(document).replace("HERE", number))
    shown = ".".join(path).replace(".0.", "[0].")
    assert any(f" {shown}: " in each or f" {shown.rpartition('.')[0]}: " in each for each in found)
    assert all(len(each) < 400 for each in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("checkpoint: {interval: 99999999h}", "with at most 7 digits"),
        (f"checkpoint: {{interval: {'9' * 5000}s}}", "spec.checkpoint.interval"),
        (f"workdir: {'a/' * 10_000}", "spec.workdir: must have at most 4095 bytes, not 20000"),
        (f"command: [{'a' * 131_072}]", "spec.command[0]: must have at most 131071 bytes"),
        (f"env: {{A: {'a' * 131_070}}}", "spec.env.A: must have at most 131071 bytes"),
    ],
    ids=lambda text: text[:24],
)
def test_texts_that_no_program_or_clock_takes(text: str, expected: str) -> None:
    (found,) = faults(
        f"{JOB}  {text}\n"
        if "command" not in text
        else JOB.replace('command: [./train, --steps, "200"]', text)
    )
    assert expected in found


@pytest.mark.parametrize("memory", ["9" * 400 + "GiB", "1" * 400 + ".5GiB", "١GiB", "1e30"])
def test_sizes_that_are_none(memory: str) -> None:
    assert field_rules.parse_size(memory) is None
    (found,) = faults(POOL.replace("count: 4", f"count: 4, memory: '{memory}'"))
    assert "spec.devices[0].memory: must be a size such as" in found


def test_a_fleet_has_so_many_devices_and_no_more() -> None:
    text = POOL.replace("[{type: soft, count: 4}]", "[&g {type: soft, count: 1024}")
    assert faults(text + ", *g" * 63 + "]\n") == []
    (found,) = faults(text + ", *g" * 64 + "]\n")
    assert found == "0.yaml:5: spec.devices: 66560 devices with those before: at most 65536"


def test_a_loop_of_links_is_a_workdir_like_another(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    (tmp_path / "job.yaml").write_text(JOB + "  workdir: a\n")
    assert spec.load_dir(tmp_path).faults == []


# ---- any bytes ---------------------------------------------------------------------------------

WORDS = [
    "apiVersion: rankfold/v1alpha1",
    "kind: Job",
    "kind: Pool",
    "kind: Policy",
    "metadata:",
    "spec:",
    "name: a",
    "command: [a]",
    "worldSize: 4",
    "gpus:",
    "devices:",
    "type: soft",
    "count:",
    "memory:",
    "env:",
    "workdir:",
    "checkpoint:",
    "restart:",
    "interval:",
    "keep:",
    "speed:",
    "1GiB",
    "10m",
    "1.0e+30",
    ".nan",
    "0x" + "f" * 30,
    "9" * 60,
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "!x ",
    "- ",
    "? ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "|",
    ">",
    "'",
    '"',
    "\\",
    "%YAML 1.2",
    "---",
    "...",
    "#",
    "\n",
    "\n  ",
    "\n    ",
    "\r",
    "\t",
    "\0",
    "\x1b",
    "\ufeff",
    "é",
    "\x85",
    " ",
]
MIXED = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=40).map("".join)


def edited(draw: Any) -> str:
    """A right file with a piece taken out and another one put in."""
    text = JOB + "---\n" + POOL
    at = draw(st.integers(0, len(text)))
    return text[:at] + str(draw(MIXED)) + text[at + draw(st.integers(0, 40)) :]


BYTES = (
    st.binary(max_size=200)
    | MIXED.map(lambda text: text.encode(errors="surrogatepass"))
    | st.composite(edited)().map(lambda text: text.encode(errors="surrogatepass"))
)


@settings(max_examples=400, deadline=None)
@given(data=BYTES)
@example(data=b"\xff\xfe\x00")
@example(data=f"{JOB}  gpus: 0x{'f' * 5000}\n".encode())
@example(data=f"{JOB}  restart: {{maxRestarts: {'9' * 5000}}}\n".encode())
def test_no_bytes_make_validate_raise(data: bytes, tmp_path_factory: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(data)
    loaded = spec.load_dir(file)
    for fault in loaded.faults:
        assert fault.line >= 1 and fault.field and fault.reason
        assert str(fault).isprintable() and json.dumps(str(fault)).isascii()
    if not loaded.faults:
        for kind, found in ((Job, loaded.desired.jobs), (Pool, loaded.desired.pools)):
            for each in found.values():
                assert msgspec.json.decode(msgspec.json.encode(each), type=kind) == each

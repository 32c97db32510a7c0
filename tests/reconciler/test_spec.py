"""All faults in specs are reported, with file, line, field and what would be right."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from msgspec.structs import replace

from rankfold import paths
from rankfold.reconciler.model.desired import Defragmentation, Desired, Job, QuotaRule, TierRule
from rankfold.reconciler.model.fields import fields_of
from rankfold.reconciler.model.recorded import Checkpoint, Record
from rankfold.reconciler.source import field_rules, spec, yamldoc
from rankfold.reconciler.source.revision import save_faults, store_faults

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
  devices:
    - type: soft
      count: 4
      memory: 1GiB
"""
POLICY = """\
apiVersion: rankfold/v1alpha1
kind: Policy
metadata: {name: default}
spec: {}
"""


def load(*texts: str) -> spec.Loaded:
    files = {f"{number}.yaml": text for number, text in enumerate(texts)}
    return spec.load_texts(files, dict.fromkeys(files, "/work"))


def faults(*texts: str) -> list[str]:
    return [str(fault) for fault in load(*texts).faults]


# ---- what is right ---------------------------------------------------------------------------


def test_defaults_are_filled_in() -> None:
    loaded = load(JOB, POOL, POLICY)
    assert loaded.faults == []
    job = loaded.desired.jobs["gpt"]
    assert (job.gpus, job.determinism, job.suspend, job.workdir) == (4, "D1", False, "/work")
    names = list(loaded.desired.devices())
    assert names == [f"local/soft-{index}" for index in range(4)]
    assert loaded.desired.devices()["local/soft-3"].memory == 1 << 30


def test_several_documents_in_a_file_and_groups_of_one_kind_count_on() -> None:
    more = POOL + "    - {type: soft, count: 1, memory: 512MiB, speed: 0.5}\n"
    loaded = load(JOB + "---\n" + more + "---\n---\n")
    assert loaded.faults == []
    assert loaded.desired.devices()["local/soft-4"].speed == 0.5


def test_devices_of_type_cpu_have_cores_of_their_own() -> None:
    """One each where the file says nothing. Others have none."""
    more = "    - {type: cpu, count: 2, cores: 3}\n    - {type: cpu, count: 2}\n"
    devices = load(POOL + more).check().desired.devices()
    found = {name: (each.first_core, each.core_count) for name, each in devices.items()}
    cores = {"local/cpu-0": (0, 3), "local/cpu-1": (3, 3), "local/cpu-2": (6, 1)}
    assert found.items() >= {**cores, "local/cpu-3": (7, 1), "local/soft-0": (0, 0)}.items()


def test_a_relative_workdir_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/job.yaml").write_text(JOB + "  workdir: ../data\n")
    loaded = spec.load_dir(tmp_path)
    assert loaded.desired.jobs["gpt"].workdir == str(tmp_path / "data")


def test_a_repository_without_a_work_tree_needs_an_absolute_workdir() -> None:
    loaded = spec.load_texts({"job.yaml": JOB}, {})
    assert "must be an absolute path" in str(loaded.faults[0])
    assert spec.load_texts({"job.yaml": JOB + "  workdir: /data\n"}, {}).faults == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GiB", 1 << 30),
        ("1.5 GiB", 3 << 29),
        ("500MB", 500_000_000),
        ("4096", 4096),
        (4096, 4096),
        ("1 gib", None),
        ("-1GiB", None),
        ("lots", None),
        ("", None),
        ("1Gi", None),
    ],
)
def test_sizes(text: str | int, size: int | None) -> None:
    assert field_rules.parse_size(text) == size


def test_a_device_has_whole_chunks_of_memory() -> None:
    sizes = {"5MiB": 4 << 20, "4MiB": 4 << 20, "3MiB": None, "512GiB": 512 << 30, "513GiB": None}
    assert {text: field_rules.device_memory(text) for text in sizes} == sizes


# ---- what is wrong: change one line of the job, and expect this --------------------------------

WRONG_JOBS = {
    "apiVersion: rankfold/v2": "0.yaml:1: apiVersion: must be rankfold/v1alpha1",
    "kind: Jub": "0.yaml:2: kind: must be one of Pool, Job, Service, Policy",
    "  name: Gpt_1": '0.yaml:4: metadata.name: "Gpt_1" is invalid. Name of the job. At most 63',
    "  name: " + "a" * 64: "0.yaml:4: metadata.name:",
    "  command: ./train": '0.yaml:6: spec.command: must be a list, not "./train"',
    "  command: []": "0.yaml:6: spec.command: must not be empty.",
    "  command: [./train, 200]": 'spec.command[1]: must be a text, not 200: write "200", in quotes',
    "  command: [./train, true]": "spec.command[1]: must be a text, not true: YAML reads this as",
    "  worldSize: 0": "0.yaml:7: spec.worldSize: must be at least 1, not 0. Number of ranks",
    "  worldSize: 257": "0.yaml:7: spec.worldSize: must be at most 256, not 257",
    "  worldSize: 4.5": "0.yaml:7: spec.worldSize: must be a whole number, not 4.5",
    "  worldSize: true": "0.yaml:7: spec.worldSize: must be a whole number, not true",
    "  worldSize: four": '0.yaml:7: spec.worldSize: must be a whole number, not "four"',
}


@pytest.mark.parametrize("line", WRONG_JOBS)
def test_a_wrong_line_of_a_job(line: str) -> None:
    field = line.split(":")[0]
    text = "\n".join(line if each.split(":")[0] == field else each for each in JOB.splitlines())
    found = faults(text)
    assert len(found) == 1 and WRONG_JOBS[line] in found[0], found


# A line that is added to a valid job as line 8, and the expected message.
WRONG_ADDITIONS = {
    "gpus: -1": "0.yaml:8: spec.gpus: must be at least 0, not -1. Number of devices now",
    "gpus: 65": "0.yaml:8: spec.gpus: must be at most 64, not 65",
    "gpus: 5": "0.yaml:8: spec.gpus: must be at most worldSize (4)",
    "gpus: {max: 5}": "0.yaml:8: spec.gpus.max: must be at most worldSize (4)",
    "gpus: {min: 3, max: 2}": "0.yaml:8: spec.gpus.min: must be at most max (2), not 3",
    "gpus: {min: -1}": "0.yaml:8: spec.gpus.min: must be at least 0, not -1",
    "gpus: {min: 2, demand: 1}": "0.yaml:8: spec.gpus.demand: must be from min (2) to max (4)",
    "gpus: {max: 2, demand: 3}": "0.yaml:8: spec.gpus.demand: must be from min (1) to max (2)",
    "gpus: {demand: 0}": "0.yaml:8: spec.gpus.demand: must be at least 1, not 0",
    "gpus: {max: 2.5}": "0.yaml:8: spec.gpus.max: ",
    "gpus: {least: 1}": "0.yaml:8: spec.gpus.least: there is no such field; known fields: min",
    "deviceTypes: []": "0.yaml:8: spec.deviceTypes: must not be empty.",
    "deviceTypes: [sofd]": 'must be one of soft, nvidia, cpu, not "sofd"; did you mean soft?',
    "deviceTypes: [soft, soft]": "0.yaml:8: spec.deviceTypes:",
    "env: {A: 1}": "0.yaml:8: spec.env.A: must be a text, not a number: put it in quotes",
    "env: {1A: b}": "0.yaml:8: spec.env:",
    "env: {RANK: '0'}": "0.yaml:8: spec.env.RANK: is set by rankfold for each rank; leave it out",
    "env: {RANKFOLD_X: '0'}": "0.yaml:8: spec.env.RANKFOLD_X: is set by rankfold",
    "workdir: ''": "0.yaml:8: spec.workdir:",
    "suspend: later": '0.yaml:8: spec.suspend: must be true or false, not "later"',
    "determinism: D3": '0.yaml:8: spec.determinism: must be one of D0, D1, D2, not "D3"',
    "worldsize: 4": "0.yaml:8: spec.worldsize: there is no such field; did you mean worldSize?",
    "worldSize: 8": "0.yaml:8: spec.worldSize: appears twice",
    "tier: gold": '0.yaml:8: spec.tier: must be one of premium, standard, basic, not "gold"',
    "priority: 1001": "0.yaml:8: spec.priority: must be at most 1000, not 1001. Order among jobs",
    "priority: -1001": "0.yaml:8: spec.priority: must be at least -1000, not -1001",
    "priority: 0.5": "0.yaml:8: spec.priority: ",
    "priority: high": "0.yaml:8: spec.priority: ",
    "minRuntime: 30": "0.yaml:8: spec.minRuntime: ",
    "minRuntime: -1s": '0.yaml:8: spec.minRuntime: "-1s" is invalid. How long the job keeps',
    "timeLimit: 2": "0.yaml:8: spec.timeLimit: ",
    "timeLimit: -2h": '0.yaml:8: spec.timeLimit: "-2h" is invalid. How long the job may run',
    "checkpoint: {keep: 0}": "0.yaml:8: spec.checkpoint.keep: must be at least 1, not 0. How many",
    "checkpoint: {interval: often}": 'spec.checkpoint.interval: "often" is invalid. Time between',
    "determinism: D2": "0.yaml:8: spec.determinism: D2 needs runtime elastic; use D0 or D1",
    # not implemented yet: refused by name unless it is the default
    "parallelism: {data: 2}": "0.yaml:8: spec.parallelism.data: is not implemented yet; only its",
    "parallelism: {tensor: 2}": "0.yaml:8: spec.parallelism.tensor: is not implemented yet",
    "parallelism: {pipeline: 2}": "0.yaml:8: spec.parallelism.pipeline: is not implemented yet",
    "parallelism: {zeroShards: 2}": "0.yaml:8: spec.parallelism.zeroShards: is not implemented yet",
    "topology: [{rank: 0}]": "0.yaml:8: spec.topology: is not implemented yet; leave it out",
}


@pytest.mark.parametrize("addition", WRONG_ADDITIONS)
def test_a_wrong_addition_to_a_job(addition: str) -> None:
    found = faults(JOB + f"  {addition}\n")
    assert any(WRONG_ADDITIONS[addition] in fault for fault in found), found


WRONG_POOLS = {
    "type: gpu": '0.yaml:6: spec.devices[0].type: must be one of soft, nvidia, cpu, not "gpu"',
    "count: 0": "0.yaml:7: spec.devices[0].count: must be at least 1, not 0. How many devices",
    "memory: 1MiB": "0.yaml:8: spec.devices[0].memory: must be a size such as",
    "memory: 513GiB": "0.yaml:8: spec.devices[0].memory: must be a size such as",
    "memory: plenty": "0.yaml:8: spec.devices[0].memory: must be a size such as",
    "memory: [1]": "0.yaml:8: spec.devices[0].memory: must be a text or a whole number, not [1]",
}


@pytest.mark.parametrize("line", WRONG_POOLS)
def test_a_wrong_line_of_a_pool(line: str) -> None:
    old = next(each for each in POOL.splitlines() if f"{line.split(':')[0]}:" in each)
    found = faults(POOL.replace(old.strip().removeprefix("- "), line))
    assert found and WRONG_POOLS[line] in found[0], found


WRONG_POOL_ADDITIONS = {
    "      computeCapability: 8.0": 'must be a text, not 8.0: write "8.0", in quotes',
    "      computeCapability: new": '"new" is invalid. CUDA compute capability in quotes',
    "      speed: 0": "must be at least 0.001, not 0. Relative speed",
    "      speed: 2": "must be at most 1, not 2. Relative speed",
    "      cores: 0": "must be at least 1, not 0. How many cores",
    "      cores: 2": "spec.devices[0].cores: devices of type soft have none: remove it",
    "      node: Rack 1": '"Rack 1" is invalid. Node in which the devices are',
    "      domain: 7": "spec.devices[0].domain: must be a text",
    "      colour: red": "spec.devices[0].colour: there is no such field",
    "  drain: [local/soft-4]": "0.yaml:9: spec.drain[0]: pool local has no device or node "
    "local/soft-4; did you mean local/soft-",
    "  drain:\n    - local/soft-0\n    - rack": "0.yaml:11: spec.drain[1]: pool local has no "
    "device or node rack",
    "  drain:\n    - local/soft-0\n    - local/soft-0": "0.yaml:11: spec.drain[1]: local/soft-0 is "
    "given twice; remove one",
    '  drain: [""]': "0.yaml:9: spec.drain[0]: must not be empty",
    "  drain: local/soft-0": "spec.drain: must be a list",
}


def test_windows_of_defragmentation() -> None:
    given = '{defragmentation: {windows: ["22:00-06:00", "12:30-24:00"], exempt: [gpt]}}'
    found = load(POLICY.replace("{}", given)).check().desired.defragmentation
    assert found == Defragmentation(((1320, 360), (750, 1440)), ("gpt",))
    assert str(found) == "22:00-06:00, 12:30-24:00; exempt: gpt"
    late = Defragmentation(((1320, 360),))
    assert [late.is_open(at) for at in (-1, 0, 359, 360, 1319, 1320)] == [
        False, True, True, False, False, True,
    ]  # fmt: skip
    (empty,) = faults(POLICY.replace("{}", '{defragmentation: {windows: ["06:00-06:00"]}}'))
    assert "begins when it ends, at 06:00; all day is" in empty
    (wrong,) = faults(POLICY.replace("{}", '{defragmentation: {windows: ["25:00-06:00"]}}'))
    assert "spec.defragmentation.windows[0]" in wrong
    other = POLICY.replace("{}", "{defragmentation: {exempt: [a]}}").replace("default", "other")
    (found_fault,) = faults(POLICY.replace("{}", given), other)
    assert "another Policy has 22:00-06:00" in found_fault


def test_a_node_is_in_one_domain() -> None:
    pool = POOL.replace("count: 4", "count: 2\n      domain: d1\n      node: a")
    assert faults(pool, pool.replace("local", "other").replace("node: a", "node: b")) == []
    (found,) = faults(pool, pool.replace("local", "other").replace("d1", "d2"))
    reason = "node a is in domain d2 here, in d1 before"
    assert found == f"1.yaml:9: spec.devices[0].node: {reason}"
    devices = load(pool).check().desired.devices()
    assert (devices["local/soft-1"].domain, devices["local/soft-1"].node) == ("d1", "a")


def test_devices_and_nodes_that_are_drained() -> None:
    pool = POOL.replace("count: 4", "count: 2\n      node: a") + "    - {type: soft, count: 3}\n"

    def drained(text: str) -> list[str]:
        return [n for n, d in load(text).check().desired.devices().items() if d.drained]

    assert drained(pool) == drained(pool + "  drain: []\n") == []
    found = drained(pool + "  drain: [local/soft-4, a]\n")
    assert found == ["local/soft-0", "local/soft-1", "local/soft-4"]
    assert drained(pool + "  drain: [a, local/soft-4, local/soft-0]\n") == found


def test_a_job_that_fits_no_node_or_domain() -> None:
    pool = (
        POOL.replace("count: 4", "count: 2\n      domain: d1\n      node: a")
        + "    - {type: soft, domain: d1, node: b}\n    - {type: soft, domain: d2, node: c}\n"
    )
    assert faults(JOB + "  gpus: 2\n  locality: node\n", pool) == []
    assert faults(JOB + "  gpus: 3\n  locality: domain\n", pool) == []
    (node,) = faults(JOB + "  gpus: 3\n  locality: node\n", pool)
    assert node == (
        "0.yaml:8: spec.gpus: requests 3 devices; the pools have 2 of any kind in one node"
    )
    (domain,) = faults(JOB + "  gpus: {min: 4}\n  locality: domain\n", pool)
    assert domain.endswith("requests 4 devices; the pools have 3 of any kind in one domain")
    assert faults(JOB + "  locality: node\n") == [], "all devices are of one node"
    (wrong,) = faults(JOB + "  locality: rack\n")
    assert "spec.locality: must be one of" in wrong


@pytest.mark.parametrize("addition", WRONG_POOL_ADDITIONS)
def test_a_wrong_addition_to_a_pool(addition: str) -> None:
    found = faults(POOL + addition + "\n")
    assert len(found) == 1 and WRONG_POOL_ADDITIONS[addition] in found[0], found


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("spec: {prune: true}", "spec.prune: is not implemented yet; only its default false is"),
        (
            "spec: {checkpointStore: checkpoints}",
            'spec.checkpointStore: "checkpoints" is invalid',
        ),
        ("spec: {prune: maybe}", "spec.prune: must be true or false"),
        (
            "spec: {tiers: {standard: {fraction: 0.7, period: 59s}}}",
            "spec.tiers.standard.period: must be at least 60s, not 59s",
        ),
        ("spec: {tiers: {basic: {fraction: 0.7}}}", "spec.tiers.basic: there is no such field"),
        ("spec: {tiers: {premium: {}}}", "spec.tiers.premium.fraction: is missing"),
        ("spec: {tiers: {premium: {fraction: 1}}}", "spec.tiers.premium.fraction: must be at most"),
        (
            "spec: {tiers: {premium: {fraction: .nan}}}",
            "spec.tiers.premium.fraction: must be a finite number",
        ),
        ("spec: {disturbances: {basic: 1001}}", "spec.disturbances.basic: must be at most 1000"),
        ("spec: {disturbances: {gold: 1}}", "spec.disturbances.gold: there is no such field"),
        ("spec: {quotas: {a: {}}}", "spec.quotas.a.devices: is missing"),
        ("spec: {quotas: {a: {devices: 1, weight: 0}}}", "spec.quotas.a.weight: must be at least"),
        ("spec: {quotas: {a: {devices: -1}}}", "spec.quotas.a.devices: must be at least 0, not -1"),
        ("spec: {quotas: {a: {devices: 1.5}}}", "spec.quotas.a.devices: must be a whole number"),
        (
            "spec: {quotas: {a: {devices: 1, lend: 2}}}",
            "spec.quotas.a.lend: must be at most devices (1), not 2",
        ),
        ("spec: {quotas: {A: {devices: 1}}}", "Name of a quota"),
        ("spec: {purge: true}", "spec.purge: there is no such field; did you mean prune?"),
    ],
)
def test_a_wrong_policy(policy: str, expected: str) -> None:
    found = faults(POLICY.replace("spec: {}", policy))
    assert any(expected in fault for fault in found), found


@pytest.mark.parametrize("field", ["apiVersion", "metadata", "spec"])
@pytest.mark.parametrize("text", [JOB, POOL])
def test_missing_fields_are_named(text: str, field: str) -> None:
    data = yaml.safe_load(text)
    del data[field]
    assert any(f" {field}: is missing." in fault for fault in faults(yaml.safe_dump(data)))


@pytest.mark.parametrize("field", ["command", "worldSize"])
def test_missing_fields_of_a_job_are_named(field: str) -> None:
    data = yaml.safe_load(JOB)
    del data["spec"][field]
    assert f"spec.{field}: is missing. " in faults(yaml.safe_dump(data))[0]


# ---- across documents --------------------------------------------------------------------------


def test_two_objects_of_a_name_are_refused_and_both_places_named() -> None:
    found = faults(JOB, "\n" + JOB)
    assert found == [
        "1.yaml:5: metadata.name: there is a Job 'gpt' already, in 0.yaml:4; rename one"
    ]
    assert faults(JOB, POOL.replace("local", "gpt")) == [], "a Pool and a Job may share a name"


def test_more_devices_than_the_pools_have() -> None:
    found = faults(JOB, POOL.replace("count: 4", "count: 3"))
    assert found == ["0.yaml:5: spec.gpus: requests 4 devices; the pools have 3 of any kind"]
    only = JOB + "  deviceTypes: [nvidia]\n"
    assert "the pools have 0 of nvidia" in faults(only, POOL)[0]
    assert faults(JOB) == [], "without a pool in the files nothing is known"


RANGES = {
    "{}": (4, 1, None),
    "{min: 0, max: 3}": (3, 0, None),
    "{min: 2, demand: 3}": (4, 2, 3),
    "{min: 4}": (4, None, None),  # the same as 4
    "{max: 1}": (1, None, None),
}


@pytest.mark.parametrize("gpus", RANGES)
def test_a_range_of_devices(gpus: str) -> None:
    job = load(f"{JOB}  gpus: {gpus}\n").check().desired.jobs["gpt"]
    assert (job.gpus, job.gpus_min, job.demand) == RANGES[gpus]


def test_the_tier_of_a_job() -> None:
    given = "  tier: premium\n  priority: -3\n  minRuntime: 2m\n"
    job = load(JOB + given).check().desired.jobs["gpt"]
    assert (job.tier, job.priority, job.min_runtime_s) == ("premium", -3, 120)
    job = load(JOB).check().desired.jobs["gpt"]
    assert (job.tier, job.priority, job.min_runtime_s) == ("standard", 0, 0)


def test_ranges_that_the_pools_or_the_determinism_exclude() -> None:
    pool = POOL.replace("count: 4", "count: 2")
    assert faults(JOB + "  gpus: {min: 2, max: 4}\n", pool) == []
    (few,) = faults(JOB + "  gpus: {min: 3, max: 4}\n", pool)
    assert few == "0.yaml:8: spec.gpus.min: requests 3 devices; the pools have 2 of any kind"
    (demand,) = faults(JOB + "  gpus: {min: 1, demand: 3}\n", pool)
    assert demand == "0.yaml:8: spec.gpus.demand: requests 3 devices; the pools have 2 of any kind"
    (d0,) = faults(JOB + "  gpus: {min: 1, max: 4}\n  determinism: D0\n")
    assert (
        d0 == "0.yaml:8: spec.gpus: must be one number: with determinism D0 the bits depend on it"
    )
    assert faults(JOB + "  gpus: {min: 2, max: 2}\n  determinism: D0\n") == []


def test_two_policies_with_different_delays() -> None:
    delay = POLICY.replace("spec: {}", "spec: {growthDelay: 2m}")
    assert load(delay).check().desired.growth_delay_s == 120.0
    assert load(POLICY).check().desired.growth_delay_s == 30.0
    other = POLICY.replace("spec: {}", "spec: {growthDelay: 1s}").replace("default", "other")
    (found,) = faults(delay, other)
    assert found == "1.yaml:4: spec.growthDelay: another Policy has 120 s: a fleet has one"
    wait = POLICY.replace("spec: {}", "spec: {preemptionDelay: 1m}")
    assert load(wait, other).check().desired.preemption_delay_s == 60.0
    assert load(POLICY).check().desired.preemption_delay_s == 0.0


def test_two_policies_with_different_tiers() -> None:
    tiers = POLICY.replace("spec: {}", "spec: {tiers: {standard: {fraction: 0.7, period: 10m}}}")
    assert load(tiers).check().desired.tiers == {"standard": TierRule(0.7, 600.0)}
    assert load(tiers, POLICY.replace("default", "other")).check().desired.tiers
    other = tiers.replace("0.7", "0.8").replace("default", "other")
    (found,) = faults(tiers, other)
    assert found == "1.yaml:4: spec.tiers: another Policy has other tiers: a fleet has one list"


QUOTAS = POLICY.replace(
    "spec: {}",
    """spec:
  quotas:
    a: {devices: 3, borrow: 0}
    b: {devices: 1, weight: 2, lend: 1}""",
)


def test_quotas_are_read() -> None:
    found = load(QUOTAS).check().desired
    assert found.quotas == {"a": QuotaRule(3, borrow=0), "b": QuotaRule(1, 2.0, lend=1)}
    assert load(POLICY).check().desired.quotas == {}
    (other,) = faults(QUOTAS, POLICY.replace("spec: {}", "spec: {quotas: {}}").replace("def", "x"))
    assert other == "1.yaml:4: spec.quotas: another Policy has other quotas: a fleet has one list"
    wait = POLICY.replace("spec: {}", "spec: {maxWait: 24h}")
    assert load(wait).check().desired.max_wait_s == 86400.0


def test_quotas_above_the_fleet_are_refused() -> None:
    assert load(QUOTAS, POOL).check()
    (found,) = faults(QUOTAS.replace("devices: 1,", "devices: 2,"), POOL)
    assert found == "0.yaml:7: spec.quotas.b.devices: 5 devices with those before; the pools have 4"


def test_a_job_of_a_quota_that_does_not_exist_is_refused() -> None:
    job = JOB.rstrip("\n") + "\n  quota: c\n"
    line = len(job.splitlines())
    (found,) = faults(job, QUOTAS)
    assert found == f"0.yaml:{line}: spec.quota: there is no quota 'c'; the Policy has a, b"
    (found,) = faults(job)
    assert found == f"0.yaml:{line}: spec.quota: there is no quota 'c'; no Policy has quotas"
    assert len(faults(job, QUOTAS.replace("borrow: 0", "borrow: -1"))) == 1, "the Policy's fault"


def test_a_job_that_is_larger_than_its_quota_may_get_is_refused() -> None:
    job = JOB.rstrip("\n") + "\n  quota: a\n"
    assert load(job, QUOTAS.replace("borrow: 0", "borrow: 1")).check()
    text = QUOTAS.replace("devices: 3", "devices: 1")
    (found,) = faults(job, text)
    assert "requests" in found and "its quota a has 1 and borrows 0 at most" in found


# ---- commands ----------------------------------------------------------------------------------

STARTERS = {
    "[torchrun, --nproc-per-node, '4', train.py, --lr, '1']": '["python", "train.py", "--lr", "1"]',
    "[/opt/bin/torchrun, train.py]": '["python", "train.py"]',
    "[python, -m, torch.distributed.run, train.py]": '["python", "train.py"]',
    "[python3.11, -u, -m, torch.distributed.launch, train.py]": '["python", "train.py"]',
    "[accelerate, launch, train.py]": '["python", "train.py"]',
    "[python, -m, accelerate.commands.launch, train.py]": '["python", "train.py"]',
    "[deepspeed, train.py]": '["python", "train.py"]',
    "[mpirun, -np, '4', ./train]": "the program itself",
    "[env, A=b, torchrun, train.py]": '["python", "train.py"]',
}


@pytest.mark.parametrize("command", STARTERS)
def test_a_command_that_starts_ranks_of_its_own_is_refused(command: str) -> None:
    found = faults(JOB.replace('[./train, --steps, "200"]', command))
    assert "starts ranks of its own" in found[0] and STARTERS[command] in found[0]


@pytest.mark.parametrize(
    "command",
    ["[python, train.py]", "[./torchrun.sh]", "[python, -m, mytrain]", "[python, -m]", "[env]"],
)
def test_other_commands_pass(command: str) -> None:
    assert faults(JOB.replace('[./train, --steps, "200"]', command)) == []


# ---- YAML itself -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1,", "not YAML"),
        ("a: b: c", "0.yaml:1: -: not YAML"),
        ("\ta: 1", "not YAML"),
        ("- 1", "kind: must be one of"),
        ("just text", "kind: must be one of"),
        ("a: &x [*x]", "inside the value that it names"),
        ("\x00", "not a text file"),
    ],
)
def test_invalid_yaml_is_a_fault_and_no_crash(text: str, expected: str) -> None:
    assert expected in faults(text)[0]


UNUSABLE = {
    r'workdir: "a\0b"': "0.yaml:8: spec.workdir: must not contain a zero byte",
    r'workdir: "\ud800"': "0.yaml:8: -: not YAML: found invalid Unicode character escape code",
    r'env: {A: "\0"}': "0.yaml:8: spec.env.A: must not contain a zero byte",
    r'env: {"A\0": b}': "0.yaml:8: spec.env: a key must not contain a zero byte",
    r'"\ud800": 1': "0.yaml:8: -: not YAML: found invalid Unicode character escape code",
    "gpus: .nan": "0.yaml:8: spec.gpus: must be a finite number",
    "gpus: -.inf": "0.yaml:8: spec.gpus: must be a finite number",
}


@pytest.mark.parametrize("addition", UNUSABLE)
def test_values_that_no_program_or_file_name_can_hold_are_faults(addition: str) -> None:
    found = faults(JOB + f"  {addition}\n", POOL)
    assert len(found) == 1 and UNUSABLE[addition] in found[0], found


def test_other_faults_of_a_document_with_a_value_that_cannot_be_used_are_reported() -> None:
    """Faults of that value itself, and of what contains it, are not: it is reported once."""
    found = faults(JOB + "  gpus: .nan\n  tier: gold\n  env: {A: 1}\n  deviceTypes: [.inf]\n", POOL)
    assert [each.split(": ")[1] for each in found] == [
        "spec.gpus",
        "spec.tier",
        "spec.env.A",
        "spec.deviceTypes[0]",
    ]


def test_a_file_that_explodes_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 6)]
    assert "too large" in faults("\n".join(lines))[0]


def test_a_place_without_files_is_a_fault(tmp_path: Path) -> None:
    assert "holds no *.yaml" in str(spec.load_dir(tmp_path).faults[0])
    assert "does not exist" in str(spec.load_dir(tmp_path / "nowhere").faults[0])


def test_unreadable_bytes_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00bad")
    assert "cannot be read" in str(spec.load_dir(tmp_path).faults[0])


def test_lines_survive_nesting_and_lists() -> None:
    documents, _ = yamldoc.parse("a:\n  b:\n    - c: 1\n      d: 2\n")
    assert documents[0].line(("a", "b", 0, "d")) == 4
    assert documents[0].line(("a", "b")) == 2, "of the key: its value is further down"
    assert documents[0].line(("a", "b", 0, "missing")) == 3


# ---- schemas -------------------------------------------------------------------------------------

# A document of each kind with every field that may be given; what is not built has its default.
FULL: dict[str, Any] = {
    "Job": {
        "apiVersion": "rankfold/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "gpt"},
        "spec": {
            "command": ["./train"],
            "workdir": ".",
            "env": {"A": "b"},
            "worldSize": 4,
            "quota": "research",
            "locality": "node",
            "gpus": {"min": 1, "max": 4, "demand": 2},
            "deviceTypes": ["soft"],
            "tier": "standard",
            "priority": 0,
            "minRuntime": "30s",
            "timeLimit": "2h",
            "runtime": "proxy",
            "determinism": "D1",
            "suspend": False,
            "checkOrder": "certain",
            "parallelism": {"data": 4, "tensor": 1, "pipeline": 1, "zeroShards": 1},
            "checkpoint": {"interval": "10m", "everySteps": 0, "keep": 3},
            "restart": {"maxRestarts": 3},
        },
    },
    "Pool": {
        "apiVersion": "rankfold/v1alpha1",
        "kind": "Pool",
        "metadata": {"name": "local"},
        "spec": {
            "devices": [
                {
                    "type": "cpu",
                    "count": 4,
                    "memory": "1GiB",
                    "computeCapability": "12.0",
                    "speed": 1.0,
                    "cores": 1,
                    "runtime": "elastic",
                    "domain": "rack-1",
                    "node": "a",
                }
            ],
            "drain": ["local/cpu-0", "a"],
        },
    },
    "Service": {
        "apiVersion": "rankfold/v1alpha1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {
            "command": ["./serve"],
            "workdir": ".",
            "env": {"A": "b"},
            "deviceTypes": ["soft"],
            "replicas": {"min": 1, "max": 4},
            "load": {"url": "http://h/m", "metric": "a", "perReplica": 1.5, "fallDelay": "30s"},
            "quota": "research",
            "tier": "premium",
            "priority": 0,
        },
    },
    "Policy": {
        "apiVersion": "rankfold/v1alpha1",
        "kind": "Policy",
        "metadata": {"name": "default"},
        "spec": {
            "prune": False,
            "checkpointStore": "s3://bucket/prefix",
            "growthDelay": "30s",
            "preemptionDelay": "10s",
            "maxWait": "24h",
            "disturbances": {"premium": 0, "standard": 4, "basic": 12},
            "quotas": {"research": {"devices": 8, "weight": 2.5, "borrow": 4, "lend": 0}},
            "defragmentation": {"windows": ["22:00-06:00"], "exempt": ["gpt"]},
            "tiers": {
                "premium": {"fraction": 0.95, "period": "1h"},
                "standard": {"fraction": 0.7, "period": "10m"},
            },
        },
    },
}


# Refused whatever they hold, so that none of their rules can show.
NOT_IN_FULL = {
    "Job": {"spec.topology"},
    "Service": {"spec.load.file"},  # it has a url
}


def wrong_values(rule: Any) -> Any:
    """(keyword, a value that this keyword of the rule forbids) for each keyword there is."""
    types = [rule["type"]] if isinstance(rule.get("type"), str) else rule.get("type", ())
    examples = {
        "string": "x",
        "integer": 1,
        "number": 1.5,
        "boolean": True,
        "array": [],
        "object": {},
    }
    for name, example in examples.items():
        if types and name not in types and not (name == "integer" and "number" in types):
            yield "type", example
    forbidden: dict[str, Any] = {
        "const": lambda _: ["other"],
        "enum": lambda _: ["other", 7, None],
        "minimum": lambda bound: [bound - 1],
        "maximum": lambda bound: [bound + 1],
        "minLength": lambda _: [""],
        "maxLength": lambda bound: ["a" * (bound + 1)],
        "pattern": lambda _: ["-", "", "8.0\n", "10m\n", "gpt\n", "gpt "],
        "minItems": lambda _: [[]],
        "uniqueItems": lambda _: [["soft", "soft"]],
        "additionalProperties": lambda more: [{"noSuch": 1}] if more is False else [],
        "propertyNames": lambda _: [{"1A": "b"}, {"A=": "b"}, {"": "b"}, {"A\n": "b"}],
    }
    for keyword in forbidden.keys() & rule.keys():
        yield from ((keyword, value) for value in forbidden[keyword](rule[keyword]))


def rules(schema: Any, value: Any, path: tuple[Any, ...] = ()) -> Any:
    """(path of a value, its rule) for all that FULL has, and for what an object may hold."""
    yield path, schema
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from rules(schema["items"], each, (*path, at))
    elif isinstance(value, dict):
        for key, each in value.items():
            inner = schema.get("properties", {}).get(key) or schema["additionalProperties"]
            yield from rules(inner, each, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the document with another value at the path; ... takes it out."""
    if not path:
        return value
    copy = document.copy()
    if len(path) == 1 and value is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(document[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("kind", spec.KINDS)
def test_every_rule_of_a_schema_refuses_what_it_forbids_and_names_the_field(kind: str) -> None:
    schema, full = json.loads(paths.schema(kind).read_text()), FULL[kind]
    more = [yaml.safe_dump(FULL["Policy"])] if kind in ("Job", "Service") else []  # quotas
    assert faults(yaml.safe_dump(full), *more) == []
    tested = {re.sub(r"\[\d+\]", "[]", yamldoc.dotted(path)) for path, _ in rules(schema, full)}
    tested = {re.sub(r"quotas\.\w+", "quotas.NAME", path) for path in tested}
    assert set(written(schema)) - tested == NOT_IN_FULL.get(kind, set())
    tried = set()
    for path, rule in rules(schema, full):
        attempts = [(keyword, path, value) for keyword, value in wrong_values(rule)]
        attempts += [("required", (*path, name), ...) for name in rule.get("required", ())]
        for keyword, at, value in attempts:
            tried.add(keyword)
            text = yaml.safe_dump(changed(full, at, value), sort_keys=False)
            field = yamldoc.dotted(path)
            found = [each for each in faults(text, *more) if f": {field}" in each]
            assert found or (not at and "kind" in faults(text, *more)[0]), (
                f"{keyword} of {at}: {value!r}"
            )
            assert all(re.match(r"0\.yaml:\d+: \S+: .+", each) for each in found)
    used = {
        word
        for _, rule in rules(schema, full)
        for word in rule
        if word not in ("$schema", "title", "description", "properties", "items", "default")
        and not word.startswith("x-")
    }
    assert used - tried <= {"additionalProperties"}, "a keyword that this test does not know"


def fields(schema: Any, path: str = "") -> Any:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from fields(each, f"{path}.{name}")
    for inner in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(inner), dict):
            yield from fields(schema[inner], f"{path}[{inner}]")


@pytest.mark.parametrize("kind", spec.KINDS)
def test_every_field_of_a_schema_is_described_and_closed(kind: str) -> None:
    schema = json.loads(paths.schema(kind).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for path, each in fields(schema):
        assert each.get("description", "").endswith("."), f"{kind}{path} has no description"
        if each.get("type") == "object" and "properties" in each:
            assert each.get("additionalProperties") is False, f"{kind}{path} takes anything"


def test_the_example_specs_are_valid() -> None:
    loaded = spec.load_dir(Path(os.fspath(paths.REPOSITORY)) / "specs")
    assert loaded.faults == [] and loaded.desired.jobs and loaded.desired.pools


def documented(kind: str) -> set[str]:
    """Fields in the first column of the table of a kind's section of docs/spec.md."""
    text = (Path(os.fspath(paths.REPOSITORY)) / "docs/spec.md").read_text()
    section = text.split(f"\n## {kind}\n")[1].split("\n### What it does\n")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def written(schema: Any, path: str = "") -> Any:
    """Every field as the reference writes it: ``spec.devices[].type``."""
    for name, each in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here
        yield from written(each, here)
        if isinstance(each.get("items"), dict):
            yield from written(each["items"], f"{here}[]")
        if isinstance(each.get("additionalProperties"), dict):
            yield from written(each["additionalProperties"], f"{here}.NAME")


@pytest.mark.parametrize("kind", spec.KINDS)
def test_the_reference_describes_every_field_and_no_other(kind: str) -> None:
    schema = json.loads(paths.schema(kind).read_text())
    folders = {"apiVersion", "kind", "metadata", "spec"}  # described once, for all kinds
    assert documented(kind) == set(written(schema)) - folders


def test_schema_and_reference_say_of_a_job_what_its_table_says() -> None:
    schema = json.loads(paths.schema("Job").read_text())
    reference = (Path(os.fspath(paths.REPOSITORY)) / "docs/spec.md").read_text()
    assert {"name", "command", "suspend"} < fields_of(Job).keys()
    for field in fields_of(Job).values():
        *where, name = field.path.split(".")
        within = functools.reduce(lambda rule, part: rule["properties"][part], where, schema)
        assert within["properties"][name] == field.rule, (
            f"schemas/job.schema.json must say of {field.path}: {json.dumps(field.rule)}"
        )
        assert f"\n{field.row()}\n" in reference, f"docs/spec.md must have: {field.row()}"


def test_omitted_fields_have_the_job_s_defaults() -> None:
    """The defaults of files and those of the class."""
    text = "apiVersion: rankfold/v1alpha1\nkind: Job\nmetadata: {name: a}\n"
    loaded = spec.load_texts({"a": f"{text}spec: {{command: [x], worldSize: 2}}\n"}, {"a": "/w"})
    assert loaded.check().desired.jobs["a"] == Job("a", ("x",), "/w", 2, 2)


def test_a_job_without_devices_is_suspended() -> None:
    text = "apiVersion: rankfold/v1alpha1\nkind: Job\nmetadata: {name: a}\n"
    for given, suspended in (("gpus: 0", True), ("gpus: 2", False)):
        loaded = spec.load_texts(
            {"a": f"{text}spec: {{command: [x], worldSize: 2, {given}}}\n"}, {"a": "/w"}
        )
        job = loaded.check().desired.jobs["a"]
        assert (job.suspended, job.gpus) == (suspended, 2)


def test_the_examples_of_the_reference_are_valid() -> None:
    text = (Path(os.fspath(paths.REPOSITORY)) / "docs/spec.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= len(spec.KINDS)
    assert faults(*examples) == []


# ---- checkpoints -----------------------------------------------------------------------------


def test_times_between_checkpoints() -> None:
    for text, seconds in (("0s", 0), ("30s", 30), ("10m", 600), ("2h", 7200)):
        (job,) = load(JOB + f"  checkpoint: {{interval: {text}}}\n").desired.jobs.values()
        assert job.save_every_s == seconds
    (job,) = load(JOB).desired.jobs.values()
    assert (job.save_every_s, job.save_every_steps, job.keep, job.max_restarts) == (600, 0, 3, 3)


def test_a_job_that_says_when_to_save_it_is_refused_where_nothing_can_be_saved() -> None:
    def faults_of(checkpoint: str, why: str) -> list[str]:
        return [str(fault) for fault in save_faults(load(JOB + checkpoint), why)]

    why = "there is no CRIU"
    for fields in ("{interval: 10m}", "{keep: 1}", "{interval: 0s, everySteps: 5}"):
        refused = faults_of(f"  checkpoint: {fields}\n", why)
        assert refused == [f"0.yaml:8: spec.checkpoint: cannot be: {why}"]
    assert faults_of("  checkpoint: {interval: 0s}\n", why) == faults_of("", why) == []
    assert faults_of("  checkpoint: {interval: 10m}\n", "") == []
    elastic = JOB.replace("./train", "python, train.py") + "  runtime: elastic\n"
    assert "runtime: elastic" in elastic and "python, train.py" in elastic
    text = elastic + "  checkpoint: {interval: 10m, everySteps: 5}\n"
    assert save_faults(load(text), why) == []


def test_a_fleet_has_one_store_and_keeps_it_while_jobs_need_it() -> None:
    here = POLICY.replace("spec: {}", "spec: {checkpointStore: /here}")
    there = here.replace("default", "other").replace("/here", "s3://there")
    assert load(here).desired.checkpoint_store == "/here"
    (told,) = faults(here, there)
    assert "1.yaml:4: spec.checkpointStore: another Policy has /here" in told
    saved = {"gpt": Record("gpt", "placed", checkpoints=(Checkpoint("1-1", 0.0, 1),))}
    now = Desired(checkpoint_store="s3://there")
    (fault,) = store_faults(load(here), now, saved)
    assert str(fault).startswith("0.yaml:4: spec.checkpointStore: cannot change: gpt has")
    (fault,) = store_faults(load(POLICY), now, saved)
    assert "has checkpoints in s3://there" in fault.reason
    assert store_faults(load(here), replace(now, checkpoint_store="/here"), saved) == []
    over = {"gpt": replace(saved["gpt"], step="ended")}
    assert store_faults(load(here), now, over) == []

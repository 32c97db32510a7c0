"""Values of `env` are secrets: whatever goes wrong with them, nothing reveals them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from rankfold import settings
from rankfold.interpose.launcher import config as of_launcher
from rankfold.reconciler.cli import cli
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.node import environment
from rankfold.reconciler.node.environment import INHERITED
from rankfold.reconciler.source import spec
from support.command import JOB, Rankfold, Specs

# Long enough that no time, number or digest in the output has these digits by chance.
DIGITS = "751926480135"
SECRET = f"hunter2-{DIGITS}"
# Mistakes that a person may make below `spec:` when giving a secret to a job.
SLIPS = {
    "a number": f"env: {{{{TOKEN: {DIGITS}}}}}",
    "a mapping": "env: {{TOKEN: {{value: {secret}}}}}",
    "a list": "env: {{TOKEN: [{secret}]}}",
    "true": "env: {{TOKEN: true, OTHER: {secret}}}",
    "a list of assignments": "env: [TOKEN={secret}]",
    "a list of mappings": "env: [{{name: TOKEN, value: {secret}}}]",
    "one assignment": "env: TOKEN={secret}",
    "an assignment in braces": "env: {{TOKEN={secret}}}",
    "a value without a name": "env: {{TOKEN: a, {secret}}}",
    "a key that is none": "env: {{'{secret} {secret}': a}}",
    "no space": "env: {{TOKEN:{secret}}}",
    "outside": "env: {{}}\n  TOKEN: {secret}",
    "outside, assigned": "env: {{}}\n  TOKEN={secret}: a",
    "twice": "env: {{TOKEN: {secret}, TOKEN: {secret}}}",
    "an alias": "env: {{TOKEN: *{secret}}}",
    "a tag": "env: {{TOKEN: !{secret} a}}",
    "two anchors": "env: {{A: &{secret} a, B: &{secret} b, C: *none}}",
    "no integer": "env: {{TOKEN: !!int {secret}}}",
    "no float": "env: {{TOKEN: !!float {secret}}}",
    "no date": "env: {{TOKEN: !!timestamp 2026-99-99, OTHER: {secret}}}",
    "a tag elsewhere": "workdir: {{env: {{TOKEN: !{secret} a}}}}",
    "not closed": "env: {{TOKEN: {secret}",
    "a quote not closed": "env: {{TOKEN: '{secret}}}",
    "an escape": 'env: {{TOKEN: "{secret}\\q"}}',
    "a zero byte": 'env: {{TOKEN: "{secret}\\0"}}',
    "two colons": "env: TOKEN: {secret}",
    "a bad merge": "env: {{<<: {secret}}}",
    "ours": "env: {{RANK: {secret}}}",
    "the wrong place": "workdir: {{env: {{TOKEN: {secret}}}}}",
    "a text": "env: |\n    TOKEN={secret}",
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_next_to_a_secret_is_refused_without_revealing_it(slip: str) -> None:
    extra = SLIPS[slip].format(secret=SECRET)
    text = JOB.format(name="gpt", command='["true"]', ranks=1, gpus=1, extra=extra)
    told = [str(f) for f in spec.load_texts({"gpt.yaml": text}, {"gpt.yaml": "/"}).faults]
    assert told, "it is refused"
    assert all(re.match(r"gpt\.yaml:\d+: \S+: .+", each) for each in told)
    assert DIGITS not in str(told) and "hunter" not in str(told)


@pytest.mark.parametrize("whole", ["spec: '{}'", "spec: [{}]", "spec: [{{env: {{A: {}}}}}]", "{}"])
def test_a_spec_that_is_none_is_refused_without_telling_it(whole: str) -> None:
    text = "apiVersion: rankfold/v1alpha1\nkind: Job\nmetadata: {name: gpt}\n" + whole.format(
        SECRET
    )
    told = [str(f) for f in spec.load_texts({"gpt.yaml": text}, {}).faults]
    assert told and "hunter" not in str(told)


@pytest.mark.parametrize("env", [{"A": SECRET, "B": 1}, [SECRET], SECRET, {"A": f"{SECRET}\0"}])
def test_the_launcher_refuses_without_telling_it(env: object) -> None:
    fields = dict.fromkeys(of_launcher._TYPES, "/x")
    numbers = dict.fromkeys(("rank", "master_port"), 0)
    config = {**fields, **numbers, "world_size": 1, "command": ["x"], "device": {}, "env": env}
    for name in of_launcher._OPTIONAL:
        config = {k: v for k, v in config.items() if k != name or k == "env"}
    with pytest.raises(of_launcher.ConfigError) as refused:
        of_launcher.parse_config(config)
    assert "hunter" not in str(refused.value)


def test_no_output_log_or_file_has_a_secret(rankfold: Rankfold, specs: Specs) -> None:
    """Through a start, a change that is refused, a start that fails and an end; then in all that
    was said and written. The journal and what a rank starts from hold it, for us only."""
    folder, told = str(specs.folder), []
    rankfold.environment["RANKFOLD_LOG"] = "debug"

    def run_command(*arguments: str) -> None:
        command = ["--state", str(rankfold.state.path), *arguments]
        with contextlib.redirect_stderr(io.StringIO()) as errors:  # what main() says of faults
            done = CliRunner(env=rankfold.environment).invoke(cli, command)
        told.append(f"{arguments}: {done.output}{errors.getvalue()}{done.exception}")

    def looks() -> None:
        for output in ("text", "json"):
            for command in (["status"], ["describe", "gpt"], ["events"]):
                run_command(*command, "-o", output)
        run_command("plan", "-f", folder)
        run_command("plan", "-f", folder, "-o", "json")
        run_command("plan", "-f", folder, "-o", "markdown")

    specs.job(gpus=1, ranks=1, extra=f"env: {{TOKEN: {SECRET}, PATH: '/bin:{SECRET}'}}")
    told.append(rankfold("apply", "-f", folder, "--wait"))
    pids = [rank["pid"] for rank in rankfold.job("gpt")["ranks"]]
    assert SECRET in Path(f"/proc/{pids[0]}/environ").read_text(), "the rank has it"
    listing = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
    told.append(listing.stdout)
    specs.job(gpus=1, ranks=1, extra=f"env: {{TOKEN: {SECRET}-new, MORE: {SECRET}}}")
    looks()
    run_command("apply", "-f", folder)
    assert "TOKEN has another value, MORE is new, PATH is missing" in told[-1].replace("\n", " ")
    specs.job(gpus=1, ranks=1, extra=f"env: {{TOKEN: {DIGITS}, OTHER: [{SECRET}]}}")
    run_command("apply", "-f", folder)
    run_command("validate", folder)
    run_command("validate", folder, "-o", "json")
    specs.job(gpus=1, ranks=1, extra=f"env: {{TOKEN: {SECRET}, PATH: '/bin:{SECRET}'}}")
    extra = f"env: {{PATH: '/nowhere/{SECRET}', TOKEN: '{SECRET}'}}"
    specs.program(["no-such-program"], "failing", extra=extra)
    run_command("apply", "-f", folder, "--wait")
    assert "cannot start no-such-program" in told[-1]
    run_command("logs", "failing")
    run_command("describe", "failing")
    specs.program(["no-such-program"], "failing", extra=extra.replace("'}", "-new'}"))
    looks()
    assert [each for each in told if DIGITS in each or "hunter" in each] == []
    assert any("TOKEN (another value)" in each for each in told), "plan says what changes"
    layout = Layout(rankfold.state.path)
    assert " DEBUG plan: gpt: Start\n" in layout.log.read_text()
    starts = {layout.rank_file(name, 0, ".json") for name in ("gpt", "failing")}
    holding = {
        file
        for file in rankfold.state.path.rglob("*")
        if file.is_file() and SECRET.encode() in file.read_bytes()
    }
    assert starts <= holding
    assert {file.name.partition(".db")[0] for file in holding - starts} == {"rankfold"}
    assert [file for file in holding if file.stat().st_mode & 0o077] == []


# ---- other secrets of ranks --------------------------------------------------------------------

OURS = {
    "LC_TIME": "C",
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "AWS_SECRET_ACCESS_KEY": "no",
    "LD_LIBRARY_PATH": "/no",
    "PYTHONPATH": "",
    "CUDA_VISIBLE_DEVICES": "no",
    "NCCL_DEBUG": "no",
    "http_proxy": "no",
}
RANKS = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED",
    "USE_LIBUV",
    "CUPY_COMPILE_WITH_PTX",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "RANKFOLD_LAUNCHER",
    "ASAN_OPTIONS",
}


def test_variables_chosen_from_an_environment() -> None:
    ours = {**OURS, "PATH": "/bin", "RANKFOLD_STATE": "/s", "RANKFOLD_FAULT": "x", "LANG": "C"}
    job = Job("j", ("x",), "/", 1, 1, env=(("TZ", "here"), ("MINE", "1")))
    chosen = {"PATH": "/bin", "LANG": "C", "LC_TIME": "C", "TMPDIR": "/tmp"}
    assert environment.of_ranks(job, ours) == {**chosen, "TZ": "here", "MINE": "1"}
    whole = structs.replace(job, env_whole=True)
    assert environment.of_ranks(whole, ours) == {"TZ": "here", "MINE": "1"}
    launchers = {"RANKFOLD_STATE": "/s", "LD_LIBRARY_PATH": "/no", "PYTHONPATH": "", "TZ": "UTC"}
    assert environment.of_launcher(ours) == {**chosen, **launchers}


def environment_of(rankfold: Rankfold, job: str) -> dict[str, str]:
    text = (Layout(rankfold.state.path).logs(job) / "rank-0.out").read_bytes()
    pairs = [each.decode().partition("=") for each in text.split(b"\0") if each]
    return {name: value for name, _, value in pairs}


def test_a_job_of_a_file_has_the_documented_environment_and_no_more(
    rankfold: Rankfold, specs: Specs
) -> None:
    rankfold.environment.update(OURS)
    cat = ["cat", "/proc/self/environ"]
    specs.program(cat, "plain", extra="env: {TZ: Europe/Berlin, MINE: '1', USE_LIBUV: '1'}")
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("plain").get("phase") == "Succeeded")
    found = environment_of(rankfold, "plain")
    inherited = {n for n in rankfold.environment if n in INHERITED or n.startswith("LC_")}
    assert set(found) == RANKS | inherited | {"TZ", "MINE"}
    assert found["TZ"] == "Europe/Berlin" and found["LANG"] == "C.UTF-8"
    ours = {name: value for name, value in settings.SETTINGS.items() if name != "USE_LIBUV"}
    assert rankfold.job("plain")["settings"] == ours and ours.items() <= found.items()
    shown = " ".join(f"{name}={value}" for name, value in ours.items())
    assert f"settings:     {shown}\n" in rankfold("describe", "plain")
    assert found["LD_LIBRARY_PATH"] == str(Path(os.environ.get("RANKFOLD_NATIVE", "")) / "lib") or (
        "/no" not in found["LD_LIBRARY_PATH"]
    )


def test_a_job_of_run_has_that_commands_environment(rankfold: Rankfold) -> None:
    program = "import os; print('\\0'.join(f'{k}={v}' for k, v in os.environ.items()), end='')"
    run = ["run", "--name", "all", "--world-size", "1", "--", sys.executable, "-c", program]
    assert rankfold.run(*run, **OURS).returncode == 0
    found = environment_of(rankfold, "all")
    expected = {n for n in {**rankfold.environment, **OURS} if not n.startswith("RANKFOLD_")}
    expected.discard("CUDA_VISIBLE_DEVICES")  # it names the machine's devices, not the job's
    assert expected | RANKS <= set(found)
    assert {n for n in found if n.startswith("RANKFOLD_")} == {"RANKFOLD_LAUNCHER"}
    assert found["AWS_SECRET_ACCESS_KEY"] == "no" and found["LD_LIBRARY_PATH"].endswith(":/no")
    assert set(found) - expected - RANKS <= {"LC_CTYPE"}  # Python's own


def test_the_reference_lists_what_is_inherited() -> None:
    from rankfold.paths import REPOSITORY

    text = (REPOSITORY / "docs/spec.md").read_text().split("### Environment\n")[1].split("\n#")[0]
    named = set(re.findall(r"`([A-Z][A-Z_]*\*?)`", text.split("\n\n")[1]))
    assert named == set(INHERITED)

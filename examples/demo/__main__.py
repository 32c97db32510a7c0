"""Runs the demo: `python -m examples.demo [gpt|torch]` in the repository's root; see `make demo`.

Writes ``report.json``, ``timeline.png`` and the folders ``reference/`` and ``elastic/`` into
``build/demo`` or ``build/demo-torch``. Exit status 0 only if every claim was verified.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .fleet import FleetError
from .proof import Proof, lost_steps, proof
from .run import CHANGES, WORLD_SIZE, Change, Record, Run
from .show import Screen
from .timeline import draw
from .training import TRAININGS, Training
from .verdict import Verdict, verdict


def main() -> int:
    """Run the demo. Exit status: 0 every claim holds, 1 one does not or something failed."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("training", nargs="?", choices=TRAININGS, default="gpt")
    parser.add_argument("--steps", type=int, help="of training")
    parser.add_argument("--out", type=Path, help="folder for it all")
    arguments = parser.parse_args()
    training = TRAININGS[arguments.training]
    steps = arguments.steps or training.steps
    if steps < training.least_steps:
        parser.error(f"--steps must be at least {training.least_steps}")
    screen, began = Screen(), time.monotonic()
    out = (arguments.out or training.out).resolve()
    # Kernels are compiled once for both runs.
    os.environ.setdefault("RANKFOLD_CACHE", str(out / "cache"))
    # The demo shows that processes stay the same, however long a busy machine suspends them.
    os.environ.setdefault("RANKFOLD_REST_SAVE_AFTER", "never")
    try:
        screen.line(f"[bold]Preparing {training.source}[/bold]")
        training.build()
        reference = follow(screen, out / "reference", training, steps, ())
        elastic = follow(screen, out / "elastic", training, steps, CHANGES)
        report = judge(out, reference, elastic)
    except FleetError as error:
        screen.line(f"[red]The demo did not finish:[/red] {error}")
        return 1
    report["seconds"] = round(time.monotonic() - began, 1)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    draw(elastic, out / "timeline.png")
    print_summary(screen, report, out)
    return 0 if report["holds"] else 1


def follow(
    screen: Screen, folder: Path, training: Training, steps: int, changes: tuple[Change, ...]
) -> Record:
    """Perform one run, and show it on the screen."""
    path = " → ".join(str(c.gpus) if c.gpus else "suspended" for c in changes)
    title = f"The disturbed run: 4 → {path} devices" if changes else "The undisturbed run"
    run = Run(folder, training.specs, training.command, steps, screen.show, training.parts)
    trouble = run.fleet.can_save() if changes else ""
    if trouble:
        screen.line(f"Without a crash at its end: {trouble}")
    with screen.run(f"{title}, and a crash" if changes and not trouble else title):
        return run.go(changes, crash=bool(changes) and not trouble)


# ---- the result --------------------------------------------------------------------------------


def judge(out: Path, reference: Record, elastic: Record) -> dict[str, Any]:
    """The report. `holds` is the conjunction of all claims of the demo."""
    found = verdict(out / "reference", out / "elastic")
    before, after = proof(reference), proof(elastic)
    lost = lost_steps(before, after, elastic.steps)
    claims = {
        "bit_identical": found.bit_identical,
        "all_steps_made": found.steps == elastic.steps and found.world_size == WORLD_SIZE,
        "no_step_lost": lost == 0,
        "loss_fell": found.last_loss < found.first_loss,
        "same_kernels": all(
            before.kernels_of(rank) == after.kernels_of(rank) for rank in range(WORLD_SIZE)
        ),
        "one_proxy_ran_everything": bool(after.folded_on) and after.folded_kernels > 0,
        "pids_never_changed": after.pids_constant,
        "suspended_stood_still": elastic.steps_while_suspended == 0,
    }
    if elastic.recovery:
        claims["restarted_from_its_checkpoint"] = elastic.job()["restarts"] == 1
    return {
        **summary(found),
        "lost_steps": lost,
        "changes": changes_of(elastic),
        "recovery": recovery(elastic),
        "claims": claims,
        "holds": all(claims.values()),
        "reference_s": round(reference.seconds, 2),
        "elastic_s": round(elastic.seconds, 2),
        "proof": counted(after),
    }


def summary(found: Verdict) -> dict[str, Any]:
    values = asdict(found)
    if found.steps == 0:  # NaN is not JSON
        values["first_loss"] = values["last_loss"] = None
    return values


def recovery(record: Record) -> dict[str, Any] | None:
    """The cost of the crash; None: there was none."""
    return asdict(record.recovery) if record.recovery else None


def changes_of(record: Record) -> list[dict[str, Any]]:
    """The fleet's record of each change, checked against the commits."""
    said = record.job()["changes"]
    if [each["commit"] for each in said] != [made.commit for made in record.committed]:
        raise FleetError(f"the fleet reports other changes than were committed: {said}")
    return [
        {
            "from": each["from"],
            "to": each["to"],
            "commit": each["commit"],
            "title": made.change.title,
            "at_step": made.step,
            "converge_s": each["converge_s"],
            "pause_s": each["pause_s"],
        }
        for each, made in zip(said, record.committed, strict=True)
    ]


def counted(found: Proof) -> dict[str, Any]:
    """The proxies' counters, with ranks as JSON's string keys."""
    values = asdict(found)
    values["kernels"] = {
        device: {str(rank): count for rank, count in ranks.items()}
        for device, ranks in found.kernels.items()
    }
    return values


def shared(found: dict[str, Any]) -> str:
    """The effect of sharing, for people."""
    if not found["on"]:
        return "ranks shared nothing where they were folded: sharing is off"
    return (
        f"ranks that were folded shared up to {found['shared_max']} chunks of 2 MiB; "
        f"{found['squashed']:,} operations were done once for several of them, "
        f"{found['spared'] / 2**20:.1f} MiB were not swapped in because another rank had them, "
        f"{found['copies']:,} chunks were copied to be written"
    )


def print_summary(screen: Screen, report: dict[str, Any], out: Path) -> None:
    """Print the verdict."""
    proof_, line = report["proof"], screen.line
    if report["bit_identical"]:
        line(
            f"\n[bold green]Not a bit changed[/bold green]: {report['steps']} steps of "
            f"{report['world_size']} ranks and their final parameters, "
            f"{report['compared_bytes']:,} bytes, are equal to the undisturbed run's."
        )
    else:
        line("\n[bold red]The runs differ:[/bold red]")
        for each in report["differences"]:
            line(f"  {each}")
    line(
        f"  loss {report['first_loss']:.3f} → {report['last_loss']:.3f}; "
        f"{report['lost_steps']} steps lost"
    )
    for each in report["changes"]:
        line(
            f"  {each['from']} → {each['to']} devices: paused {each['pause_s']:.3f} s, "
            f"{each['converge_s']:.2f} s from commit to fact ({each['title']})"
        )
    if crash := report["recovery"]:
        line(
            f"  crash: {crash['killed']} processes killed at step {crash['step']}; after "
            f"{crash['seconds']:.1f} s the job continued from checkpoint {crash['checkpoint']}, "
            f"and made {crash['again']} steps again"
        )
    line("  kernels run by each device for ranks 0–3, switches, bytes swapped out and in:")
    for device, ranks in proof_["kernels"].items():
        row = "".join(f"{ranks.get(str(rank), 0):>9,}" for rank in range(WORLD_SIZE))
        line(
            f"    {device:<14}{row}   {proof_['switches'].get(device, 0):>6,}   "
            f"{proof_['swapped_out'].get(device, 0) / 2**20:.1f} MiB   "
            f"{proof_['swapped_in'].get(device, 0) / 2**20:.1f} MiB"
        )
    if proof_["folded_on"]:
        line(
            f"  while `gpus` was 1, {proof_['folded_on']} alone ran all "
            f"{proof_['folded_kernels']:,} kernels of the four ranks"
        )
    line(f"  {shared(proof_['sharing'])}")
    until = "until the crash" if report["recovery"] else "throughout"
    line(f"  pids of the ranks {until}: {', '.join(map(str, proof_['pids']))}")
    for claim, holds in report["claims"].items():
        if not holds:
            line(f"  [red]does not hold: {claim.replace('_', ' ')}[/red]")
    line(f"  {report['seconds']:.0f} s in all; see {out}/report.json and timeline.png")


if __name__ == "__main__":
    sys.exit(main())

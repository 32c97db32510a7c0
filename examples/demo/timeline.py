"""Draws a run: which rank was on which device, and the loss below."""

from __future__ import annotations

from pathlib import Path

from .run import WORLD_SIZE, Record

RESTING = ""  # a rank without a device


def intervals(record: Record) -> dict[int, list[tuple[float, float, str]]]:
    """Per rank, (from, to, device) in seconds; "" while it rests, or is gone."""
    ends = [since for since, _ in record.settled[1:]] + [record.seconds]
    return {
        rank: [
            (since, end, placement.get(rank, RESTING))
            for (since, placement), end in zip(record.settled, ends, strict=True)
        ]
        for rank in range(WORLD_SIZE)
    }


def draw(record: Record, path: Path) -> None:
    """Write the drawing as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(11, 6), height_ratios=[1, 1.2], constrained_layout=True
    )
    _draw_ranks(above, record)
    _draw_loss(below, record)
    for made in record.committed:
        label = f"→ {made.change.gpus}" if made.change.gpus else "suspend"
        for axes in (above, below):
            axes.axvline(made.time, color="0.3", linewidth=0.8, linestyle=":")
        above.annotate(
            label,
            (made.time, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 3),
            textcoords="offset points",
            fontsize=8,
            color="0.3",
        )
    if crash := record.recovery:
        for axes in (above, below):
            axes.axvline(crash.time, color="C3", linewidth=1.2)
        above.annotate(
            "kill -9",
            (crash.time, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 3),
            textcoords="offset points",
            fontsize=8,
            color="C3",
        )
    figure.suptitle("Four ranks of one job while commits change `gpus`", fontsize=12)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_ranks(axes: object, record: Record) -> None:
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

    assert isinstance(axes, Axes)
    rows = intervals(record)
    devices = sorted({device for row in rows.values() for *_, device in row if device})
    colour = {device: colormaps["tab10"](i) for i, device in enumerate(devices)}
    for rank, row in rows.items():
        for start, end, device in row:
            axes.barh(
                rank,
                end - start,
                left=start,
                height=0.8,
                color=colour.get(device, "0.93"),
                edgecolor="none",
            )
    axes.set_yticks(range(WORLD_SIZE), [f"rank {rank}" for rank in range(WORLD_SIZE)])
    axes.invert_yaxis()
    handles = [Patch(color=colour[device], label=device) for device in devices]
    handles.append(Patch(color="0.93", label="at rest"))
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_loss(axes: object, record: Record) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    complete = [record.losses[step] for step in range(len(record.step_times))]
    for rank in range(WORLD_SIZE):
        values = [losses[rank] for losses in complete]
        axes.plot(record.step_times, values, color="0.8", linewidth=0.7)
    means = [sum(losses) / WORLD_SIZE for losses in complete]
    axes.plot(record.step_times, means, color="C3", linewidth=1.5, label="mean of the ranks")
    axes.set_xlabel("seconds since the first commit")
    axes.set_ylabel("loss")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)

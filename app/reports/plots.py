"""The pictures of a run, drawn from ``metrics.jsonl``."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from espalier.app.ground.figures import drawn_figures
from espalier.app.ground.pictures import BLUE, GREY, ORANGE, PALETTE, number, save_plot
from espalier.app.reports.closed_form import closed_form_bytes
from espalier.app.reports.metrics import top_m
from espalier.clients.messages.train import ACCURACY, LOSS

Line = dict[str, Any]


def draw_plots(folder: Path, title: str, lines: Sequence[Line]) -> list[Path]:
    """Write the plots of a run as PNG files.

    Parameters
    ----------
    folder : Path
        Where to.
    title : str
        Names the run in every plot.
    lines : Sequence[dict]
        The lines of ``metrics.jsonl``.

    Returns
    -------
    list[Path]
        ``rounds.png`` (accuracy, or what else models are judged by, and loss over rounds), ``clients.png`` (accuracy
        per client), ``bytes.png`` (in split training beside what the closed form gives), and where there are such
        figures ``top-m.png`` (top-M accuracy over M) and ``personalised.png`` (each client with the global head and
        with its own).
    """
    rounds = [line for line in lines if line["scope"] == "global"]
    evaluated = [line for line in rounds if "clients" in line]
    paths = []
    if evaluated:
        names, of_clients = drawn_figures(evaluated), title_after(title, evaluated[-1])
        drawn, width = ([line for line in rounds if "clients" in line or "test" in line], names), 4.5 * len(names)
        paths.append(save_plot(folder / "rounds.png", title, _draw_rounds, drawn, width=width, columns=len(names)))
        bars = (evaluated[-1]["clients"], names[0])
        paths.append(save_plot(folder / "clients.png", of_clients, _draw_clients, bars, width=9.0))
        if tops := top_m(evaluated[-1]["clients"]):
            paths.append(save_plot(folder / "top-m.png", of_clients, _draw_top_m, tops, width=4.8))
    personalised = [line for line in lines if line["scope"] == "personalised" and line["clients"]]
    if evaluated and personalised:
        two = list(dict.fromkeys((names[0], names[-1])))
        drawn_heads = (rounds[-1].get("clients", {}), personalised[-1]["clients"], two)
        path, width = folder / "personalised.png", 4.5 * len(two)
        paths.append(save_plot(path, title, _draw_personalised, drawn_heads, width=width, columns=len(two)))
    paths.append(save_plot(folder / "bytes.png", title, _draw_bytes, lines, width=6.5))
    return paths


def title_after(title: str, line: Line) -> str:
    """Return the title of a picture of one round's model."""
    return f"{title}, after round {line['round']}"


def _draw_rounds(axes: Sequence[Axes], drawn: tuple[Sequence[Line], Sequence[str]]) -> None:
    evaluated, names = drawn
    numbers = [line["round"] for line in evaluated]
    for ax, key in zip(axes, names, strict=True):
        spreads = [line.get(key) or {} for line in evaluated]
        mean, low, high = ([number(own.get(part)) for own in spreads] for part in ("mean", "min", "max"))
        ax.fill_between(numbers, low, high, color=BLUE, alpha=0.15, lw=0, label="clients, min to max")
        ax.plot(numbers, mean, color=BLUE, marker="o", ms=3, label="clients, mean")
        if "test" in evaluated[-1]:
            pool = [number(line.get("test", {}).get(key)) for line in evaluated]
            ax.plot(numbers, pool, color=ORANGE, label="whole test pool")
        ax.set(xlabel="global round", ylabel=f"test {key}")
        if key in (ACCURACY, LOSS):
            ax.set_ylim(0, 1 if key == ACCURACY else None)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(frameon=False, fontsize=8)


def _draw_clients(axes: Sequence[Axes], drawn: tuple[dict[str, Line], str]) -> None:
    (ax,), (clients, name) = axes, drawn
    values = [number(metrics.get(name)) for metrics in clients.values()]
    ax.bar(list(clients), values, color=BLUE, width=0.7)
    mean = _mean(values)
    ax.axhline(mean, color=ORANGE, lw=1.2, label=f"mean {mean:.3f}")
    ax.set(xlabel="client", ylabel=f"test {name} of the global model", ylim=(0, 1) if name == ACCURACY else None)
    if len(values) > 30:
        ax.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    ax.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1))


def _draw_top_m(axes: Sequence[Axes], tops: dict[str, Line]) -> None:
    (ax,) = axes
    numbers = [int(m) for m in tops]
    mean, std = (np.array([number(own[part]) for own in tops.values()]) for part in ("mean", "std"))
    ax.fill_between(numbers, mean - std, mean + std, color=BLUE, alpha=0.15, lw=0, label="clients, standard deviation")
    ax.plot(numbers, mean, color=BLUE, marker="o", ms=3, label="clients, mean")
    ax.set(xlabel="M", ylabel="top-M test accuracy", ylim=(0, 1), xticks=numbers)
    ax.legend(frameon=False, fontsize=8, loc="lower right")


def _draw_personalised(axes: Sequence[Axes], drawn: tuple[dict[str, Line], dict[str, Line], Sequence[str]]) -> None:
    ours, heads, names = drawn
    clients = sorted(set(ours) & set(heads) or heads, key=int)  # of the last model there may be none
    positions = range(len(clients))
    for ax, key in zip(axes, names, strict=True):
        for shift, metrics, color, name in ((-0.2, ours, BLUE, "global"), (0.2, heads, ORANGE, "fine-tuned head")):
            values = [number(metrics.get(i, {}).get(key)) for i in clients]
            label = f"{name}, mean {_mean(values):.3f}"
            ax.bar([x + shift for x in positions], values, color=color, width=0.4, label=label)
        ax.set(xlabel="client", ylabel=f"test {key}")
        if len(clients) <= 30:
            ax.set_xticks(positions, clients)
        ax.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)


def _draw_bytes(axes: Sequence[Axes], lines: Sequence[Line]) -> None:
    (ax,) = axes
    totals: dict[tuple[str, str], dict[str, float]] = {}
    for line in (line for line in lines if line["scope"] == "global"):
        for tier, directions in line["bytes"].items():
            for direction, kinds in directions.items():
                bar = totals.setdefault((tier, direction), {})
                for kind, count in kinds.items():
                    bar[kind] = bar.get(kind, 0.0) + count / 1e6
    kinds = sorted({kind for bar in totals.values() for kind in bar}, key=lambda kind: (kind != "model", kind))
    labels = [f"{tier}\n{direction}" for tier, direction in totals]
    below = [0.0] * len(totals)
    for i, kind in enumerate(kinds):
        heights = [bar.get(kind, 0.0) for bar in totals.values()]
        ax.bar(labels, heights, bottom=below, color=PALETTE[i % len(PALETTE)], width=0.6, label=kind)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    formula = closed_form_bytes(lines)
    if formula is not None:
        # White: it is a formula's, not one of the kinds that were measured.
        ax.bar(["eq. 17\nboth directions"], formula / 1e6, color="white", edgecolor=GREY, hatch="//", width=0.6)
    ax.set(ylabel="megabytes (10^6), all rounds")
    if kinds:
        ax.legend(frameon=False, fontsize=8)


def _mean(values: Sequence[float]) -> float:
    """Return the mean of what leaves no gap."""
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan

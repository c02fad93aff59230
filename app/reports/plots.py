"""The pictures of a run, drawn from ``metrics.jsonl``."""

import math
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from espalier.app.ground.figures import drawn_figures
from espalier.app.ground.pictures import BLUE, GREY, ORANGE, PALETTE, SEEN, number, save_plot
from espalier.app.reports.closed_form import closed_form_bytes
from espalier.app.reports.metrics import failures_of, top_m
from espalier.clients.messages.train import ACCURACY, LOSS

Line = dict[str, Any]
MOST_BARS = 200
MOST_BESIDE = 40  # clients of pictures beside each other; of more they are one below the other
WIDEST_NAME = 0.3  # inches between the names of clients
CLOSED_FORM = "eq. 17\nboth directions"
CLOSED_FORM_IN_WORDS = """closed form, eq. 17 of the PHSFL
paper: what clients send and get,
both directions, at 33 bits a value"""


def draw_plots(folder: Path, title: str, lines: Sequence[Line]) -> list[Path]:
    """Write the plots of a run as PNG files, and each as PDF beside it.

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
    if tested := [line for line in rounds if "clients" in line or "test" in line]:
        names = drawn_figures(evaluated or tested)
        drawn, width = (tested, names), 4.5 * len(names)
        paths.append(save_plot(folder / "rounds.png", title, _draw_rounds, drawn, width=width, columns=len(names)))
    if evaluated:
        of_clients = title_after(title, evaluated[-1])
        bars = (evaluated[-1]["clients"], names[0], clients_of(lines))
        paths.append(save_plot(folder / "clients.png", of_clients, _draw_clients, bars, width=9.0))
        if tops := top_m(evaluated[-1]["clients"]):
            paths.append(save_plot(folder / "top-m.png", of_clients, _draw_top_m, tops, width=4.8))
    personalised = [line for line in lines if line["scope"] == "personalised" and line["clients"]]
    if evaluated and personalised:
        two = list(dict.fromkeys((names[0], names[-1])))
        ours, heads = rounds[-1].get("clients", {}), personalised[-1]["clients"]
        clients = sorted(set(ours) & set(heads) or heads, key=int)  # of the last model there may be none
        drawn_heads = (ours, heads, clients, two)
        size: dict[str, Any] = {"width": 4.5 * len(two), "columns": len(two)}
        if len(clients) > MOST_BESIDE:
            size = {"width": 9.0, "height": 3.2 * len(two), "rows": len(two)}
        paths.append(save_plot(folder / "personalised.png", title, _draw_personalised, drawn_heads, **size))
    paths.append(save_plot(folder / "bytes.png", title, _draw_bytes, lines, width=7.5))
    return paths


def clients_of(lines: Sequence[Line]) -> list[str]:
    """Return all clients that lines know of, whether they were evaluated or not, in the order of their numbers."""
    evaluated = {int(client) for line in lines for client in line.get("clients", {})}
    trained = {client for line in lines for clients in line.get("participants", ()) for client in clients}
    failed = {failure["client"] for line in lines for failure in failures_of(line)}
    return [str(client) for client in sorted(evaluated | trained | (failed - {None}))]


def title_after(title: str, line: Line) -> str:
    """Return the title of a picture of one round's model."""
    return f"{title}, after round {line['round']}"


def _draw_rounds(axes: Sequence[Axes], drawn: tuple[Sequence[Line], Sequence[str]]) -> None:
    evaluated, names = drawn
    numbers = [line["round"] for line in evaluated]
    for ax, key in zip(axes, names, strict=True):
        if any("clients" in line for line in evaluated):
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


def _draw_clients(axes: Sequence[Axes], drawn: tuple[dict[str, Line], str, Sequence[str]]) -> None:
    (ax,), (found, name, clients) = axes, drawn
    values = [number(found.get(client, {}).get(name)) for client in clients]
    _bars(ax, values, 0.0, 0.7, color=BLUE)
    mean = _mean(values)
    ax.axhline(mean, color=ORANGE, lw=1.2, label=f"mean {mean:.3f}")
    ax.set(xlabel="client", ylabel=f"test {name} of the global model", ylim=(0, 1) if name == ACCURACY else None)
    _name_clients(ax, clients)
    _mark(ax, [place for place, value in enumerate(values) if value == 0], "o", BLUE, "exactly 0")
    _mark(ax, [place for place, value in enumerate(values) if math.isnan(value)], "x", GREY, "no figure")
    _legend_above(ax, 3)


def _bars(ax: Axes, values: Sequence[float], shift: float, width: float, *, color: str, label: str = "") -> None:
    """Draw a bar for each client."""
    places = np.arange(len(values)) + shift
    if len(values) <= MOST_BARS:
        ax.bar(places, values, width=width, color=color, label=label)
    else:  # one set of lines: bars take a millisecond each
        points = 72 * ax.bbox.width / ax.figure.dpi / len(values)
        ax.vlines(places, 0, values, color=color, lw=width * points, label=label)


def _mark(ax: Axes, places: Sequence[int], marker: str, color: str, what: str) -> None:
    """Mark clients at the foot of a picture, and say how many they are."""
    if places:
        label = f"{what}: {len(places)} client{'s' * (len(places) > 1)}"
        height = [0.02] * len(places)  # of the picture
        ax.plot(places, height, marker, color=color, ms=4, label=label, transform=ax.get_xaxis_transform())


def _name_clients(ax: Axes, clients: Sequence[str]) -> None:
    """Name every so many clients along an axis, as many as have room."""
    room = ax.bbox.width / ax.figure.dpi / WIDEST_NAME
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    every = next(step for step in steps if len(clients) <= step * room)
    ax.set_xticks(range(0, len(clients), every), clients[::every])
    ax.set_xlim(-0.7, len(clients) - 0.3)


def _legend_above(ax: Axes, columns: int) -> None:
    ax.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=columns)


def _draw_top_m(axes: Sequence[Axes], tops: dict[str, Line]) -> None:
    (ax,) = axes
    numbers = [int(m) for m in tops]
    mean, std = (np.array([number(own[part]) for own in tops.values()]) for part in ("mean", "std"))
    ax.fill_between(numbers, mean - std, mean + std, color=BLUE, alpha=0.15, lw=0, label="clients, standard deviation")
    ax.plot(numbers, mean, color=BLUE, marker="o", ms=3, label="clients, mean")
    ax.set(xlabel="M", ylabel="top-M test accuracy", ylim=(0, 1), xticks=numbers)
    ax.legend(frameon=False, fontsize=8, loc="lower right")


def _draw_personalised(
    axes: Sequence[Axes], drawn: tuple[dict[str, Line], dict[str, Line], Sequence[str], Sequence[str]]
) -> None:
    ours, heads, clients, names = drawn
    for ax, key in zip(axes, names, strict=True):
        for shift, metrics, color, name in ((-0.2, ours, BLUE, "global"), (0.2, heads, ORANGE, "fine-tuned head")):
            values = [number(metrics.get(i, {}).get(key)) for i in clients]
            _bars(ax, values, shift, 0.4, color=color, label=f"{name}, mean {_mean(values):.3f}")
        ax.set(xlabel="client", ylabel=f"test {key}", ylim=(0, 1) if key == ACCURACY else None)
        _name_clients(ax, clients)
        _legend_above(ax, 2)


def _draw_bytes(axes: Sequence[Axes], lines: Sequence[Line]) -> None:
    (ax,) = axes
    totals: dict[str, dict[str, float]] = {}
    for line in (line for line in lines if line["scope"] == "global"):
        for tier, directions in line["bytes"].items():
            for direction, kinds in directions.items():
                bar = totals.setdefault(f"{tier}\n{direction}", {})
                for kind, number_of_bytes in kinds.items():
                    bar[kind] = bar.get(kind, 0.0) + number_of_bytes / 1e6
    formula = closed_form_bytes(lines)
    measured = {label: sum(bar.values()) for label, bar in totals.items()}
    sums = measured if formula is None else measured | {CLOSED_FORM: formula / 1e6}
    below = dict.fromkeys(totals, 0.0)
    for i, (name, heights) in enumerate(seen_kinds(totals, max(sums.values(), default=0.0)).items()):
        ax.bar(
            list(below), heights, bottom=list(below.values()), color=PALETTE[i % len(PALETTE)], width=0.6, label=name
        )
        below = {label: low + high for (label, low), high in zip(below.items(), heights, strict=True)}
    if formula is not None:
        # White: it is a formula's, not one of the kinds that were measured.
        style: dict[str, Any] = {"color": "white", "edgecolor": GREY, "hatch": "//", "label": CLOSED_FORM_IN_WORDS}
        ax.bar([CLOSED_FORM], formula / 1e6, width=0.6, **style)
    for place, total in enumerate(sums.values()):
        ax.annotate(f"{total:.3g}", (place, total), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    ax.set(ylabel="megabytes (10^6), all rounds")
    ax.margins(y=0.1)  # for the sums above the bars
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    if not sums:
        ax.text(0.5, 0.5, "nothing was sent", ha="center", transform=ax.transAxes)
        ax.set(xticks=[], yticks=[])


def seen_kinds(totals: Mapping[str, Mapping[str, float]], tallest: float) -> dict[str, list[float]]:
    """Return the heights of what bars are made of, by its name in the legend, the models first.

    Kinds too small to be seen are one, which has no name (it begins with ``_``) if it can't be seen either.

    Parameters
    ----------
    totals : Mapping[str, Mapping[str, float]]
        The heights by bar and kind.
    tallest : float
        The height of the tallest bar.
    """
    every = sorted({kind for bar in totals.values() for kind in bar}, key=lambda kind: (kind != "model", kind))
    heights = {kind: [bar.get(kind, 0.0) for bar in totals.values()] for kind in every}
    seen = {kind: own for kind, own in heights.items() if max(own) > SEEN * tallest}
    small = {kind: own for kind, own in heights.items() if kind not in seen and max(own) > 0}
    if small:
        rest = [sum(own) for own in zip(*small.values(), strict=True)]
        name = fill(f"other: {', '.join(small)}", 34)
        seen[name if max(rest) > SEEN * tallest else f"_{name}"] = rest
    return seen


def _mean(values: Sequence[float]) -> float:
    """Return the mean of what leaves no gap."""
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan

"""The pictures of a run whose rounds were planned: where its clients are, whom plans chose and what they cost.

They are those of the RawHFL paper's Figs. 4 to 9, for one run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Circle
from matplotlib.ticker import EngFormatter, MaxNLocator

from espalier.app.features.feature import Line
from espalier.app.features.plans.labels import label_points
from espalier.app.features.plans.reports import (
    ClientTotals,
    cdf,
    client_totals,
    joules_of_cell_rounds,
    joules_of_client_rounds,
    joules_of_clients,
)
from espalier.app.ground.figures import drawn_figures
from espalier.app.ground.pictures import BLUE, GREY, ORANGE, PALETTE, SEEN, number, save_plot
from espalier.clients.messages.train import ACCURACY

MAX_LABELS = 100  # clients that can be told apart in a plot
LOG_FROM = 100  # ratio of the largest to the smallest figure from which an axis is logarithmic


def draw_resource_plots(folder: Path, title: str, lines: Sequence[Line], world: Mapping[str, Any] | None) -> list[Path]:
    """Write the plots of a planned run as PNG files, and each as PDF beside it.

    Parameters
    ----------
    folder : Path
        Where to.
    title : str
        Names the run in every plot.
    lines : Sequence[dict]
        The lines of ``metrics.jsonl``.
    world : dict, optional
        The content of ``world.json``.

    Returns
    -------
    list[Path]
        ``costs.png`` (accuracy, or what else models are judged by, over rounds, simulated seconds and joules) and, for
        a known world, ``positions.png`` (the clients' places, where they have any, and how often they were selected),
        ``selections.png`` (how often they could take part at full power and by the solver, and were selected) and
        ``energy.png`` (distributions of the joules, and the joules so far over rounds). None for a run without plans.
    """
    rounds = [line for line in lines if line["scope"] == "global" and "energy_joules" in line]
    evaluated = [line for line in rounds if "clients" in line]
    paths = []
    if evaluated:
        columns = _costs_of(evaluated)
        width, what = 11.0 / 3 * len(columns), (evaluated, columns)
        paths.append(save_plot(folder / "costs.png", title, _draw_costs, what, width=width, columns=len(columns)))
    if rounds and world:
        totals = client_totals(lines, (client["client"] for client in world["clients"]))
        if "base_stations" in world:
            map_, height = (world, totals), _map_height(world["base_stations"], world["radius_metres"])
            paths.append(save_plot(folder / "positions.png", title, _draw_positions, map_, width=7.0, height=height))
        paths.append(save_plot(folder / "selections.png", title, _draw_selections, totals, width=9.0))
        data = (lines, rounds, world)
        paths.append(
            save_plot(folder / "energy.png", title, _draw_energy, data, width=9.0, height=6.6, rows=2, columns=2)
        )
    return paths


def _costs_of(evaluated: Sequence[Line]) -> dict[str, list[float]]:
    """Return what figures are drawn over: without a simulated clock the joules are not metered, but planned."""
    rounds, joules = ([line["round"] for line in evaluated], [line["energy_joules"]["so_far"] for line in evaluated])
    if any("simulated_seconds" not in line for line in evaluated):
        return {"global round": rounds, "planned joules of all clients": joules}
    seconds = [line["simulated_seconds"] for line in evaluated]
    return {"global round": rounds, "simulated seconds": seconds, "joules of all clients": joules}


def _draw_costs(axes: Sequence[Axes], costs: tuple[Sequence[Line], Mapping[str, Sequence[float]]]) -> None:
    evaluated, along = costs
    name = drawn_figures(evaluated)[0]
    spreads = [line.get(name) or {} for line in evaluated]
    mean, low, high = ([number(own.get(part)) for own in spreads] for part in ("mean", "min", "max"))
    for ax, (cost, values) in zip(axes, along.items(), strict=True):
        ax.fill_between(values, low, high, color=BLUE, alpha=0.15, lw=0, label="clients, min to max")
        ax.plot(values, mean, color=BLUE, marker="o", ms=3, label="clients, mean")
        ax.set(xlabel=cost, ylim=(0, 1) if name == ACCURACY else None)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=cost == "global round"))
    axes[0].set_ylabel(f"test {name}")
    axes[0].legend(frameon=False, fontsize=8)


def _map_height(stations: Sequence[Mapping[str, float]], radius: float) -> float:
    # The inches that leave no empty stripes around a map 5.3 inches wide.
    x, y = (np.ptp([station[key] for station in stations]) + 2 * radius for key in ("x_metres", "y_metres"))
    return float(5.3 * y / x + 1.2)


def _draw_positions(axes: Sequence[Axes], map_: tuple[Mapping[str, Any], dict[int, ClientTotals]]) -> None:
    (ax,) = axes
    world, totals = map_
    stations, clients, radius = world["base_stations"], world["clients"], world["radius_metres"]
    disks = [Circle((station["x_metres"], station["y_metres"]), radius) for station in stations]
    ax.add_collection(PatchCollection(disks, facecolor="none", edgecolor=GREY, linewidth=0.8))
    places = np.array([(client["x_metres"], client["y_metres"]) for client in clients])
    x, y = places.T
    times = np.array([totals[client["client"]].times_selected for client in clients])
    xy = np.array([(station["x_metres"], station["y_metres"]) for station in stations])
    few = len(clients) <= MAX_LABELS
    size, never = 36 if few else 8, times == 0
    ax.scatter(xy[:, 0], xy[:, 1], s=size, marker="^", color=ORANGE, label="base station")
    if never.any():
        ax.scatter(
            x[never], y[never], s=size, facecolor="white", edgecolor=GREY, lw=0.8, label=f"{never.sum()} clients never"
        )
    points = ax.scatter(x[~never], y[~never], s=size, c=times[~never], cmap="viridis", vmin=0, vmax=max(times.max(), 1))
    ax.set(xlabel="metres", ylabel="metres", aspect="equal")
    bar = ax.figure.colorbar(points, ax=ax, shrink=0.7, label="edge rounds in which it was selected")
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    if few:
        label_points(ax, [str(client["client"]) for client in clients], places, xy, size=size)


def _draw_selections(axes: Sequence[Axes], totals: dict[int, ClientTotals]) -> None:
    (ax,) = axes
    at_full_power = [own.times_eligible_at_full_power for own in totals.values()]
    eligible = [own.times_eligible for own in totals.values()]
    selected = [own.times_selected for own in totals.values()]
    # What the paper's Fig. 5a shows, which no solver changes; slower and quieter more clients are in time and budget.
    _bars(ax, list(totals), at_full_power, facecolor=BLUE, alpha=0.25, lw=0, label="could take part at full power")
    never = f"; {selected.count(0)} of {len(selected)} clients never"
    _bars(ax, list(totals), selected, facecolor=BLUE, lw=0, label=f"selected, mean {np.mean(selected):.1f}{never}")
    _bars(ax, list(totals), eligible, facecolor="none", edgecolor="#444444", lw=0.8, label="could by the solver")
    ax.set(xlabel="client", ylabel="edge rounds")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.01)
    ax.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))


def _bars(ax: Axes, positions: Sequence[int], heights: Sequence[int], **style: Any) -> None:
    if len(positions) <= MAX_LABELS:
        ax.bar(positions, heights, width=0.76, **style)
    else:  # one outline: bars take a millisecond each
        ax.fill_between(positions, heights, step="mid", **style)


def _draw_energy(axes: Sequence[Axes], data: tuple[Sequence[Line], Sequence[Line], Mapping[str, Any]]) -> None:
    lines, rounds, world = data
    _draw_cdfs(axes[0], "edge rounds", joules_of_cell_rounds(lines, world))
    axes[0].set_xlabel("joules of a cell in an edge round")
    _draw_cdfs(axes[1], "selections", joules_of_client_rounds(lines, world))
    axes[1].set_xlabel("joules of a selected client in an edge round")
    _draw_cdfs(axes[2], "clients", joules_of_clients(lines, world))
    axes[2].set_xlabel("joules of a client in all rounds")
    axes[0].figure.legend(
        *axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=5, loc="outside lower center"
    )
    numbers = [line["round"] for line in rounds]
    parts = [np.cumsum([line["energy_joules"][part] for line in rounds]) for part in ("compute", "upload")]
    total = sum(sums[-1] for sums in parts)
    labels = [_part(name, sums[-1], total) for name, sums in zip(("computing", "uploading"), parts, strict=True)]
    axes[3].stackplot(numbers, *parts, colors=[ORANGE, BLUE], labels=labels, alpha=0.8, lw=0)
    axes[3].set(xlabel="global round", ylabel="joules of all clients so far")
    axes[3].xaxis.set_major_locator(MaxNLocator(integer=True))
    if total:
        axes[3].legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))


def _part(name: str, joules: float, total: float) -> str:
    # What is less high than a line can't be seen, and has no entry.
    return f"{name}, {joules:.4g} J" if joules > SEEN * total else f"_{name}"


def _draw_cdfs(ax: Axes, what: str, cells: Mapping[int, Sequence[float]]) -> None:
    pooled = [joules for own in cells.values() for joules in own]
    positive = [joules for joules in pooled if joules > 0]
    if positive and max(positive) > LOG_FROM * min(positive):
        # Those at 0 joules stand at the left end, as a curve that starts above 0.
        ax.set_xscale("log", nonpositive="clip")
        ax.xaxis.set_major_formatter(EngFormatter("J"))
        ax.set_xlim(min(positive) / 2, max(positive) * 2)
    if 1 < len(cells) <= len(PALETTE):
        for cell, own in cells.items():
            ax.step(*_from_zero(*cdf(own)), where="post", color=PALETTE[cell], lw=1.2, label=f"cell {cell}")
    ax.step(*_from_zero(*cdf(pooled)), where="post", color="black", lw=1.6, ls=":", label="all cells")
    ax.set(ylabel=f"share of {what}", ylim=(0, 1.02))


def _from_zero(values: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([values[:1], values]), np.concatenate([np.zeros(len(values[:1])), shares])

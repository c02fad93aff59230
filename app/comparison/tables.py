"""Tables of runs that are compared: mean and standard deviation over seeds, and over clients."""

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO

from espalier.app.comparison.groups import Group
from espalier.app.comparison.runs import OVER_CLIENTS

# Figures that the CSV file has alone: those on the whole test pool, and counts.
ASIDE = re.compile("(best_)?test_.*|top-.*|rounds|failures|wall_seconds|.*_bytes")
POWER, TIMES_TEN = re.compile(r"(?<=\d)e([-+]?)0*(\d+)"), r" \\cdot 10^{\1\2}"
NUMBER = re.compile(r"-?[\d.]+e[-+]?\d+")
LATEX = str.maketrans({c: "\\" + c for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"})


def figure_names(groups: Sequence[Group]) -> list[str]:
    """Return the names of all figures, without those of the spread over clients."""
    every = [name for group in groups for run in group.runs for name in run.figures]
    return [name for name in dict.fromkeys(every) if not name.endswith(OVER_CLIENTS)]


def as_csv(groups: Sequence[Group]) -> str:
    """Return a line per setting, with a column for each figure's mean and standard deviation over seeds.

    Where a figure is a mean over clients, another column has their standard deviation, as the mean over seeds.
    """
    names, rows = figure_names(groups), []
    for group in groups:
        row: dict[str, object] = {**group.chosen, "runs": len(group.runs)}
        for name in names:
            mean, std = group.figure(name) or (None, None)
            row |= {f"{name}_mean": mean, f"{name}_std": std}
            if over_clients := group.figure(name + OVER_CLIENTS):
                row[name + OVER_CLIENTS] = over_clients[0]
        rows.append(row)
    header = [*groups[0].chosen, "runs"]
    for name in names:
        header += [f"{name}_mean", f"{name}_std"]
        header += [name + OVER_CLIENTS] * any(name + OVER_CLIENTS in row for row in rows)
    text = StringIO(newline="")
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_text(groups: Sequence[Group]) -> str:
    """Return the table for a terminal."""
    header, *rows = cells(groups)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    left = len(groups[0].chosen)
    return "\n".join(_aligned(row, widths, left) for row in (header, *rows))


def as_latex(groups: Sequence[Group]) -> str:
    """Return the table for a paper that uses the package booktabs."""
    header, *rows = cells(groups)
    lines = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in (header, *rows)]
    left = len(groups[0].chosen)
    columns = "l" * left + "r" * (len(header) - left)
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}", ""])


def cells(groups: Sequence[Group]) -> list[list[str]]:
    """Return header and rows: what was chosen, the number of runs, and for each figure its mean and deviation.

    A single run has no deviation over seeds. Behind a mean over clients is their deviation, as the mean over seeds.
    """
    names = [name for name in figure_names(groups) if not ASIDE.fullmatch(name) and any(g.figure(name) for g in groups)]
    header, rows = [*groups[0].chosen, "runs"], [[*map(str, g.chosen.values()), str(len(g.runs))] for g in groups]
    for name in names:
        header.append(name)
        for row, group in zip(rows, groups, strict=True):
            mean_and_std = group.figure(name)
            row.append("-" if mean_and_std is None else _spread(*mean_and_std, len(group.runs)))
        if any(group.figure(name + OVER_CLIENTS) for group in groups):
            header.append("over clients")
            for row, group in zip(rows, groups, strict=True):
                mean, over_clients = group.figure(name), group.figure(name + OVER_CLIENTS)
                row.append(f"+- {number(over_clients[0], mean and mean[0])}" if over_clients else "-")
    return [header, *rows]


def number(value: float, beside: float | None = None) -> str:
    """Return a figure with four decimals, a large one with thousands separated, a small one with four digits.

    Parameters
    ----------
    value : float
        The figure.
    beside : float, optional (default: itself)
        The mean that it stands beside: a small deviation of a mean that is not small has four decimals.
    """
    if 0 < abs(value if beside is None else beside) < 0.001:
        return f"{value:.4g}"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def _spread(mean: float, std: float, count: int) -> str:
    return f"{number(mean)} +- {number(std, mean)}" if count > 1 else number(mean)


def _aligned(row: Iterable[str], widths: Sequence[int], left: int) -> str:
    parts = [f"{c:<{w}}" if i < left else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))]
    return "  ".join(parts).rstrip()


def _latex(cell: str) -> str:
    mean, sign, std = cell.rpartition("+- ")
    if not sign:
        return f"${POWER.sub(TIMES_TEN, cell)}$" if NUMBER.fullmatch(cell) else cell.translate(LATEX)
    return POWER.sub(TIMES_TEN, f"${mean}\\pm {std}$".replace(",", "{,}"))

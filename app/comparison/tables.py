"""Tables of runs that are compared: mean and standard deviation over seeds, and over clients."""

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO

from espalier.app.comparison.groups import Group
from espalier.app.comparison.runs import OVER_CLIENTS
from espalier.app.ground.errors import bad_value

# Figures that no column of the other tables has unless it is asked for: those on the whole test pool, and counts.
HIDDEN = re.compile(
    "(best_)?test_.*|top-.*|rounds|failures|wall_seconds|(?!target_).*_bytes"
    "|(compute|upload|per_client_round)_joules|late|spare|edge_rounds_.*"
)
COUNT = re.compile("(best_)?round|(target_)?rounds|failures|late|spare|edge_rounds_.*|.*_bytes")
UNITS = {"joules": ("energy", "J"), "seconds": ("time", "s"), "bytes": ("", "B")}
SPREAD = "over clients"  # heads the column behind a mean over clients
ABOUT = (
    "+-: standard deviation over seeds; over clients: that of each run's clients, mean over seeds; of the population"
)
GAP = 2  # characters between columns
WIDTH = 100  # of the text table, in characters; what is wider goes on below
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


def columns_of(text: str | None, groups: Sequence[Group]) -> list[str]:
    """Return the names of the figures that text and LaTeX tables have.

    Parameters
    ----------
    text : str | None
        Names with commas between them; None for the main figures.
    groups : Sequence[Group]
        The settings.

    Raises
    ------
    UserError
        If no run has such a figure.
    """
    every = figure_names(groups)
    if text is None:
        found = {
            name for group in groups for run in group.runs for name, value in run.figures.items() if value is not None
        }
        return [name for name in every if name in found and not HIDDEN.fullmatch(name)]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in every:
            raise bad_value("--columns", name, ", ".join(every))
    return names


def as_text(groups: Sequence[Group], columns: Sequence[str]) -> str:
    """Return the table for a terminal; figures that find no room in a line of `WIDTH` follow in another table below."""
    header, *rows = cells(groups, columns)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    left = len(groups[0].chosen)
    tables = _folded(header, widths, left + 1)
    folded = "\n\n".join("\n".join(_aligned(row, widths, left, places) for row in (header, *rows)) for places in tables)
    lacking = [f"{run.folder.name}: {run.lacking}" for group in groups for run in group.runs if run.lacking]
    return "\n".join([folded, "", ABOUT, *lacking])


def _folded(header: Sequence[str], widths: Sequence[int], first: int) -> list[list[int]]:
    """Return the places of each table's columns: those before ``first`` in all, and of the others what finds room."""
    together: list[list[int]] = []
    for place in range(first, len(header)):
        if header[place] == SPREAD:
            together[-1].append(place)
        else:
            together.append([place])
    tables: list[list[int]] = []
    room = 0
    for places in together:
        width = sum(GAP + widths[place] for place in places)
        if not tables or width > room:
            tables.append(list(range(first)))
            room = WIDTH - sum(widths[:first]) - GAP * (first - 1)
        tables[-1] += places
        room -= width
    return tables or [list(range(first))]


def as_latex(groups: Sequence[Group], columns: Sequence[str]) -> str:
    """Return the table for a paper that uses the package booktabs."""
    header, *rows = cells(groups, columns)
    lines = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in (header, *rows)]
    left = len(groups[0].chosen)
    alignment = "l" * left + "r" * (len(header) - left)
    parts = [
        f"% {ABOUT}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        lines[0],
        r"\midrule",
        *lines[1:],
        r"\bottomrule",
    ]
    return "\n".join([*parts, r"\end{tabular}", ""])


def cells(groups: Sequence[Group], columns: Sequence[str]) -> list[list[str]]:
    """Return header and rows: what was chosen, the number of runs, and for each figure its mean and deviation.

    A single run has no deviation over seeds. Behind a mean over clients is their deviation, as the mean over seeds.
    """
    header, rows = [*groups[0].chosen, "runs"], [[*map(str, g.chosen.values()), str(len(g.runs))] for g in groups]
    for name in columns:
        header.append(heading(name))
        for row, group in zip(rows, groups, strict=True):
            mean_and_std = group.figure(name)
            row.append("-" if mean_and_std is None else _spread(name, *mean_and_std, len(group.runs)))
        if any(group.figure(name + OVER_CLIENTS) for group in groups):
            header.append(SPREAD)
            for row, group in zip(rows, groups, strict=True):
                mean, over_clients = group.figure(name), group.figure(name + OVER_CLIENTS)
                row.append(f"+- {number(over_clients[0], mean and mean[0])}" if over_clients else "-")
    return [header, *rows]


def heading(name: str) -> str:
    """Return a figure's name in words, with its unit in brackets."""
    what, _, ending = name.rpartition("_")
    if ending not in UNITS:
        return name.replace("_", " ")
    noun, unit = UNITS[ending]
    return " ".join(dict.fromkeys([*what.split("_"), *noun.split(), f"({unit})"]))


def number(value: float, beside: float | None = None) -> str:
    """Return a figure with four decimals; fewer from 10 on, and four digits if it is small.

    Parameters
    ----------
    value : float
        The figure.
    beside : float, optional (default: itself)
        The mean that it stands beside: a small deviation of a mean that is not small has four decimals.
    """
    if 0 < abs(value if beside is None else beside) < 0.001:
        return f"{value:.4g}"
    size = abs(value)
    return f"{value:.4f}" if round(size, 4) < 10 else f"{value:.2f}" if round(size, 2) < 1000 else f"{value:,.0f}"


def count(value: float) -> str:
    """Return a count, or a mean of counts."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _spread(name: str, mean: float, std: float, runs: int) -> str:
    both = (count(mean), count(std)) if COUNT.fullmatch(name) else (number(mean), number(std, mean))
    return " +- ".join(both) if runs > 1 else both[0]


def _aligned(row: Sequence[str], widths: Sequence[int], left: int, places: Iterable[int]) -> str:
    parts = [f"{row[i]:<{widths[i]}}" if i < left else f"{row[i]:>{widths[i]}}" for i in places]
    return (" " * GAP).join(parts).rstrip()


def _latex(cell: str) -> str:
    mean, sign, std = cell.rpartition("+- ")
    if not sign:
        return f"${POWER.sub(TIMES_TEN, cell)}$" if NUMBER.fullmatch(cell) else cell.translate(LATEX)
    return POWER.sub(TIMES_TEN, f"${mean}\\pm {std}$".replace(",", "{,}"))

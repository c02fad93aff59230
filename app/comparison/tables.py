"""Tables of runs that are compared: mean and spread over seeds, and standard deviation over clients."""

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO

from espalier.app.comparison.groups import Group
from espalier.app.comparison.spread import SPREADS, Spread
from espalier.app.ground.errors import bad_value
from espalier.app.ground.fields import OVER_CLIENTS, POOL

# Figures that no column of the other tables has unless it is asked for: those on the whole test pool, which are there
# where a run has none over clients, and counts.
HIDDEN = re.compile(
    "(best_)?test_.*|top-.*|rounds|failures|wall_seconds|(?!target_).*_bytes"
    "|(compute|upload|per_client_round)_joules|late|spare|edge_rounds_.*"
)
COUNT = re.compile("(best_)?round|(target_)?rounds|failures|late|spare|edge_rounds_.*|.*_bytes")
UNITS = {"joules": ("energy", "J"), "seconds": ("time", "s"), "bytes": ("", "B")}
SPREAD = "over clients"  # heads the column behind a mean over clients
ABOUT = "over clients: standard deviation (n) over those of each run's clients that were evaluated, mean over seeds"
DIGITS = 2  # of what is behind +-, and the mean's last digit is its last
NONE_BELOW = 1e-6  # of the mean: what is less is rounding
GAP = 2  # characters between columns
WIDTH = 100  # of the text table, in characters; what is wider goes on below
SMALL, BIG = 0.001, 1e12  # figures below, and from, these are written with a power of ten
POWER, TIMES_TEN = re.compile(r"(?<=\d)e(?:\+|(-)?)0*(\d+)"), r" \\cdot 10^{\1\2}"
NUMBER = re.compile(r"-?[\d.]+e[-+]?\d+")
LATEX = str.maketrans({c: "\\" + c for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"})


def figure_names(groups: Sequence[Group]) -> list[str]:
    """Return the names of all figures, without those of the spread over clients."""
    every = [name for group in groups for run in group.runs for name in run.figures]
    return [name for name in dict.fromkeys(every) if not name.endswith(OVER_CLIENTS)]


def as_csv(groups: Sequence[Group]) -> str:
    """Return a line per setting, with columns for each figure's mean, standard deviation and 95 % interval over seeds.

    Of one run there are no such deviation and interval. Where a figure is a mean over clients, another column has their
    standard deviation, as the mean over seeds.
    """
    names, rows = figure_names(groups), []
    for group in groups:
        row: dict[str, object] = {**group.chosen, "runs": len(group.runs)}
        for name in names:
            figure = group.figure(name)
            row[f"{name}_mean"] = figure and figure.mean
            row |= {f"{name}_{spread.name}": figure and spread.of(figure) for spread in SPREADS.values()}
            if over_clients := group.figure(name + OVER_CLIENTS):
                row[name + OVER_CLIENTS] = over_clients.mean
        rows.append(row)
    header = [*groups[0].chosen, "runs"]
    for name in names:
        header += [f"{name}_{part}" for part in ("mean", *SPREADS)]
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
    every = {name for group in groups for run in group.runs for name in run.figures}
    if text is None:
        runs = [run.figures for group in groups for run in group.runs]
        found = {name for own in runs for name, value in own.items() if value is not None}
        alone = {POOL + name for own in runs for name in own if own[name] is None and own.get(POOL + name) is not None}
        shown = [n for n in figure_names(groups) if n in alone or (n in found and not HIDDEN.fullmatch(n))]
        return [one for name in shown for one in (name, name + OVER_CLIENTS) if one in found]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in every:
            raise bad_value("--columns", name, ", ".join(figure_names(groups)))
    return names


def as_text(groups: Sequence[Group], columns: Sequence[str], spread: Spread) -> str:
    """Return the table for a terminal; figures that find no room in a line of `WIDTH` follow in another table below."""
    header, *rows = cells(groups, columns, spread)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    left = len(groups[0].chosen)
    tables = _folded(header, widths, left + 1)
    folded = "\n\n".join("\n".join(_aligned(row, widths, left, places) for row in (header, *rows)) for places in tables)
    lacking = [f"{run.folder.name}: {run.lacking}" for group in groups for run in group.runs if run.lacking]
    return "\n".join([folded, "", *about(columns, spread), *lacking])


def _folded(header: Sequence[str], widths: Sequence[int], first: int) -> list[list[int]]:
    """Return the places of each table's columns: those before ``first`` in all, and of the others what finds room."""
    together: list[list[int]] = []
    for place in range(first, len(header)):
        if header[place] == SPREAD and together:
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


def about(columns: Sequence[str], spread: Spread) -> list[str]:
    """Return what a table's spreads are."""
    return [f"+-: {spread.about}"] + [ABOUT] * any(name.endswith(OVER_CLIENTS) for name in columns)


def as_latex(groups: Sequence[Group], columns: Sequence[str], spread: Spread) -> str:
    """Return the table for a paper that uses the package booktabs."""
    header, *rows = cells(groups, columns, spread)
    left = len(groups[0].chosen)
    # What was chosen may be called anything, with a +- in it, say.
    written = [map(_escaped, header), *([*map(_escaped, row[:left]), *map(_latex, row[left:])] for row in rows)]
    lines = [" & ".join(row) + r" \\" for row in written]
    alignment = "l" * left + "r" * (len(header) - left)
    parts = [
        *(f"% {line}" for line in about(columns, spread)),
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        lines[0],
        r"\midrule",
        *lines[1:],
        r"\bottomrule",
    ]
    return "\n".join([*parts, r"\end{tabular}", ""])


def cells(groups: Sequence[Group], columns: Sequence[str], spread: Spread) -> list[list[str]]:
    """Return header and rows: what was chosen, the number of runs, and for each figure its mean and spread.

    A single run has no spread over seeds. The deviation over clients, a mean over seeds, has none either.
    """
    header, rows = [*groups[0].chosen, "runs"], [[*map(str, g.chosen.values()), str(len(g.runs))] for g in groups]
    for column in columns:
        name, is_over_clients = column.removesuffix(OVER_CLIENTS), column.endswith(OVER_CLIENTS)
        follows = is_over_clients and header[-1] == heading(name)
        header.append(SPREAD if follows else f"{heading(name)} {SPREAD}" if is_over_clients else heading(name))
        for row, group in zip(rows, groups, strict=True):
            figure = group.figure(column)
            if figure is None:
                row.append("-")
            elif is_over_clients:
                row.append(f"+- {rounded(figure.mean)}")
            else:
                row.append(with_spread(name, figure.mean, spread.of(figure)))
    return [header, *rows]


def heading(name: str) -> str:
    """Return a figure's name in words, with its unit in brackets."""
    what, _, ending = name.rpartition("_")
    if ending not in UNITS:
        return name.replace("_", " ")
    noun, unit = UNITS[ending]
    return " ".join(dict.fromkeys([*what.split("_"), *noun.split(), f"({unit})"]))


def number(value: float) -> str:
    """Return a figure with four decimals; fewer from 10 on, and four digits if it is small, or a loss of 10^24, say."""
    size = abs(value)
    if 0 < size < SMALL or size >= BIG:
        return f"{value:.4g}"
    return f"{value:.4f}" if round(size, 4) < 10 else f"{value:.2f}" if round(size, 2) < 1000 else f"{value:,.0f}"


def rounded(value: float) -> str:
    """Return a deviation with two digits."""
    if not value:
        return "0"
    return f"{value:.{DIGITS - 1}e}" if value < SMALL or value >= BIG else to_place(value, last_place(value))


def last_place(value: float) -> int:
    """Return the power of ten of a deviation's second digit, the last that is written."""
    return int(f"{value:.{DIGITS - 1}e}".partition("e")[2]) - DIGITS + 1


def to_place(value: float, place: int) -> str:
    """Return a number rounded to a power of ten."""
    return f"{round(value, -place):,.0f}" if place > 0 else f"{value:,.{-place}f}"


def count(value: float) -> str:
    """Return a count, or a mean of counts."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def with_spread(name: str, mean: float, wide: float | None) -> str:
    """Return a figure's mean and spread: this with two digits, the mean to the same place.

    Parameters
    ----------
    name : str
        The figure's; counts are whole.
    mean, wide : float
        The mean, and what is behind +-; None for nothing.
    """
    if wide is None or wide <= NONE_BELOW * abs(mean):
        plain = count(mean) if COUNT.fullmatch(name) else number(mean)
        return plain if wide is None else f"{plain} +- 0"
    if 0 < abs(mean) < SMALL or (max(abs(mean), wide) >= BIG and not COUNT.fullmatch(name)):
        digits = max(int(f"{mean:e}".partition("e")[2]) - last_place(wide), 0)
        return f"{mean:.{digits}e} +- {wide:.{DIGITS - 1}e}"
    place = last_place(wide)
    return f"{to_place(mean, place)} +- {to_place(wide, place)}"


def _aligned(row: Sequence[str], widths: Sequence[int], left: int, places: Iterable[int]) -> str:
    parts = [f"{row[i]:<{widths[i]}}" if i < left else f"{row[i]:>{widths[i]}}" for i in places]
    return (" " * GAP).join(parts).rstrip()


def _escaped(cell: str) -> str:
    return f"${POWER.sub(TIMES_TEN, cell)}$" if NUMBER.fullmatch(cell) else cell.translate(LATEX)


def _latex(figure: str) -> str:
    mean, sign, std = figure.rpartition("+- ")
    if not sign:
        return _escaped(figure)
    return POWER.sub(TIMES_TEN, f"${mean}\\pm {std}$".replace(",", "{,}"))

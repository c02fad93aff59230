"""``espalier compare``: tables and figures of runs that are over."""

import csv
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from espalier.app.comparison.curves import AXES, Axis, Curve, check_curves, curves
from espalier.app.comparison.figures import draw_curves, setting
from espalier.app.comparison.groups import Group, chosen_if_readable, grouped, without_repeats
from espalier.app.comparison.looks import looks_of
from espalier.app.comparison.runs import FinishedRun, read_run, write_runs
from espalier.app.comparison.spread import OPTION as SPREAD
from espalier.app.comparison.spread import SPREADS, STD, Spread, spread_named
from espalier.app.comparison.tables import as_csv, as_latex, as_text, columns_of, figure_names
from espalier.app.comparison.targets import OPTION, target_of, with_target
from espalier.app.ground.durable import replace_text
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.fields import POOL
from espalier.app.ground.logs import quiet_flower
from espalier.app.page.command import PAGE, write_page
from espalier.app.page.runs import Runs
from espalier.app.reports.folder import runs_below
from espalier.app.settings.values import path_of
from espalier.clients.messages.train import ACCURACY, LOSS

HELP = """Compare runs that are over: what differs between them, and what came of it.

  espalier compare results/experiment                 the runs of a sweep
  espalier compare results/run-1 results/run-2        single runs, and folders of them

Runs that differ in the seed alone are one setting. The output folder gets comparison.csv, .tex and .txt, runs.csv,
curves.csv, learning curves as PDF and PNG, and page.html, which shows all runs in a browser. docs/sweeps.md says more.
"""


def main(arguments: Sequence[str]) -> int:
    """Compare what a command line names and return the exit code."""
    parser = ArgumentParser("espalier compare", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="of a run, or of several runs' folders")
    parser.add_argument("--output", help="output folder (default: comparison, in the first FOLDER of runs)")
    parser.add_argument(
        "--columns",
        metavar="NAME,...",
        help="figures in comparison.txt and .tex, and no others, by their names in runs.csv (default: the main ones)",
    )
    parser.add_argument(
        SPREAD,
        metavar="NAME",
        default=STD.name,
        help="what is behind +- and in bands: std (of the sample, over seeds; the default), or ci95 (95 %% interval)",
    )
    parser.add_argument(
        OPTION,
        metavar="FIGURE=VALUE",
        help="how soon runs reached it, e.g. accuracy=0.6; of figures other than accuracy and loss 'NAME>=VALUE'",
    )
    options = parser.parse_args(arguments)
    quiet_flower()
    try:
        folders = [path_of("FOLDER", folder) for folder in options.folders]
        target = None if options.target is None else target_of(options.target)
        runs = finished_runs(folders)
        runs = with_target(runs, target) if target else runs
        default = (folders[0].parent if (folders[0] / "config.json").exists() else folders[0]) / "comparison"
        if options.output == "":
            raise bad_value("--output", "", "a folder")
        output = path_of("--output", options.output) if options.output else default
        kept, repeated = without_repeats(runs)
        for again, once in repeated.items():
            print(f"{again}: has the settings and the seed of {once}, and is left out", file=sys.stderr)
        groups = grouped(kept)
        columns, spread = columns_of(options.columns, groups), spread_named(options.spread)
        write_comparison(output, groups, columns, spread)
        write_page_of(output / PAGE, groups)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or '--output'}: can't be written ({error.strerror})", file=sys.stderr)
        return 2
    print(as_text(groups, columns, spread))
    print(f"comparison: {output}")
    return 0


def write_page_of(output: Path, groups: Sequence[Group]) -> None:
    """Write a page with all runs; where it can't be made of some run's files, a line on standard error says so."""
    names = {run.folder: f"{group.label}, seed {run.settings['seed']}" for group in groups for run in group.runs}
    try:
        write_page(output, Runs(list(names), names))
    except UserError as error:
        print(f"{PAGE} is not written: {error}", file=sys.stderr)


def finished_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """Return the runs in folders of runs, and in folders of such; UserError where there is none, or one is not over.

    In a folder of several, runs that are not over, or damaged, are left out with a line on standard error.
    """
    runs = []
    for folder in folders:
        if (folder / "config.json").exists():
            runs.append(checked_run(folder))
            continue
        over = []
        for path in in_order_of_sweep(folder):
            try:
                over.append(checked_run(path))
            except UserError as error:
                print(f"left out: {error}", file=sys.stderr)
        for sweep in sorted({path.parents[1] for path in folder.glob("*/*/config.json")} - set(folders)):
            print(f"left out: {sweep}: holds runs of its own; name it to compare them", file=sys.stderr)
        if not over:
            raise UserError(f"{folder}: holds no run that is over; allowed are folders of runs, or of runs' folders")
        runs += over
    return list({run.folder: run for run in runs}.values())


def checked_run(folder: Path) -> FinishedRun:
    """Return a run that is over, of whose files tables and curves can be made; else UserError."""
    run = read_run(folder)
    check_curves(run)
    return run


def in_order_of_sweep(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder: in the order of a sweep's table, then by their names and numbers."""
    places = {path: place for place, path in enumerate(chosen_if_readable(folder))}
    return sorted(runs_below(folder), key=lambda path: places.get(path, len(places)))


def write_comparison(output: Path, groups: Sequence[Group], columns: Sequence[str], spread: Spread) -> None:
    """Write the tables, text and LaTeX with some of the figures, and the curves of settings into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    texts = {
        "csv": as_csv(groups),
        "tex": as_latex(groups, columns, spread),
        "txt": as_text(groups, columns, spread) + "\n",
    }
    for ending, text in texts.items():
        replace_text(output / f"comparison.{ending}", text)
    write_runs(output / "runs.csv", [(group.chosen, run) for group in groups for run in group.runs])
    names, looks = figure_names(groups), looks_of(groups)
    drawn: list[tuple[Axis, str, list[Curve]]] = []
    for name in [name for name in names if name in (LOSS, ACCURACY) or POOL + name in names]:
        figure = name if curves(groups, AXES[0], name) else POOL + name
        for axis in AXES:
            if not (found := curves(groups, axis, figure)):
                continue
            drawn.append((axis, figure, found))
            title = setting([curve.group for curve in found], spread)
            draw_curves(output, found, looks, axis, figure, title, spread)
            if lacking := {*range(len(groups))} - {curve.place for curve in found}:
                others = "; ".join(groups[place].label for place in sorted(lacking))
                why = f"not two evaluated rounds with {axis.label}"
                print(f"{figure}-over-{axis.name} lacks {others}: {why}", file=sys.stderr)
    replace_text(output / "curves.csv", curve_table(groups, drawn))


def curve_table(groups: Sequence[Group], drawn: Sequence[tuple[Axis, str, Sequence[Curve]]]) -> str:
    """Return the points of all curves as CSV."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*groups[0].chosen, "figure", "over", "x", "mean", *SPREADS, "runs"])
    for axis, figure, found in drawn:
        for curve in found:
            setting, count = curve.group.chosen.values(), len(curve.group.runs)
            for x, y in zip(curve.x.tolist(), curve.y, strict=True):
                spreads = [spread.of(y) for spread in SPREADS.values()]
                writer.writerow([*setting, figure, axis.name, f"{x:.10g}", y.mean, *spreads, count])
    return text.getvalue()

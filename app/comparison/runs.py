"""The runs that are compared, read from their results folders."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from espalier.app.ground.durable import replace_text
from espalier.app.ground.errors import UserError
from espalier.app.ground.fields import OVER_CLIENTS, POOL
from espalier.app.ground.figures import is_figure
from espalier.app.reports.folder import ResultsFolder, damaged
from espalier.app.reports.initial import initial_figures_of
from espalier.app.reports.made_by import MAKER, makers_of
from espalier.app.reports.metrics import lacks_figures, nobody_could_train, why_no_model
from espalier.app.reports.owner import is_owned
from espalier.app.reports.saved import saved_config
from espalier.app.reports.stopping import SoFar
from espalier.app.settings.sections import Stop

MEAN, STD = "mean", "std"
OF_PLANS = ("late", "spare", "edge_rounds_without_anybody", "edge_rounds_short", "edge_rounds_unconverged")


@dataclass(frozen=True)
class FinishedRun:
    """A run that is over.

    Parameters
    ----------
    folder : Path
        Its results folder.
    settings : Mapping[str, Any]
        All settings, by key.
    figures : Mapping[str, float | None]
        What it came to, see `figures_of`.
    made_by : Mapping[str, str]
        Version, commit and machine; of a run that several made, all of them.
    lines : Sequence[Mapping[str, Any]] (default: none)
        Its global lines, without the single clients.
    initial : Mapping[str, Any] (default: none)
        The figures of the model that it started with, as in a global line.
    lacking : str (default: "")
        Why it has no figures over clients, if it has none and they were asked for.
    """

    folder: Path
    settings: Mapping[str, Any]
    figures: Mapping[str, float | None]
    made_by: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]] = ()
    initial: Mapping[str, Any] = field(default_factory=dict)
    lacking: str = ""


def is_over(path: Path) -> bool:
    """Return whether the run in a folder is over: all rounds were made and gave a model, and all figures are written.

    Raises
    ------
    UserError
        If the folder's files are damaged.
    """
    return _is_written(path) and not _why_no_model(path, _lines_of_all_rounds(ResultsFolder(path)))


def _lines_of_all_rounds(folder: ResultsFolder) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``; UserError unless it has a global line of each round in the summary."""
    lines, num_rounds = folder.read_metrics(), _summary(folder)["rounds"]
    rounds = [line["round"] for line in lines if line["scope"] == "global"]
    if len(rounds) != num_rounds or rounds != list(range(1, num_rounds + 1)):
        raise damaged(folder.path / "metrics.jsonl")
    return lines


def _why_no_model(path: Path, lines: Sequence[Mapping[str, Any]]) -> str:
    """Return why a run gave no model; nothing where it gave one, or nobody had to train."""
    # A run with plans writes the world.
    may_train_nobody = saved_config(path).may_train_nobody or (path / "world.json").exists()
    return "" if may_train_nobody and nobody_could_train(lines) else why_no_model(lines)


def _is_written(path: Path) -> bool:
    """Return whether all rounds were made and all figures are written."""
    summary = _summary(ResultsFolder(path))
    if not summary or not (path / "model.pt").exists() or _has_owner(path):
        return False
    config = saved_config(path)
    if summary["rounds"] < config.federation.global_rounds and not _has_stopped(path, config.stop):
        return False
    return not (config.algorithm.fine_tunes and config.fine_tune.steps) or "personalised" in summary


def _has_stopped(path: Path, stop: Stop) -> bool:
    """Return whether its settings, which may be others than when the summary was written, end a run where it is."""
    folder = ResultsFolder(path)
    try:
        return bool(SoFar.of(folder.read_metrics()).reason(stop))
    except (KeyError, TypeError, AttributeError):  # a line of something else
        raise damaged(path / "metrics.jsonl") from None


def _has_owner(path: Path) -> bool:
    try:
        return is_owned(path)
    except PermissionError:  # to ask takes the right to write, which a reader of another user's runs may lack
        return False


def is_surely_over(path: Path) -> bool:
    """Return whether a run is over, as `is_over`; not if files are damaged: who goes on with it learns which."""
    try:
        return is_over(path)
    except UserError:
        return False


def _summary(folder: ResultsFolder) -> Any:
    """Return what is in ``summary.json``, None where there is none; UserError if it is not what a run writes."""
    summary = folder.read_json("summary.json")
    if summary is not None:
        try:
            are_figures = all(v is None or is_figure(v) for v in figures_of(summary).values())
            are_figures &= type(summary["rounds"]) is int
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
            are_figures = False
        if not are_figures:
            raise damaged(folder.path / "summary.json")
    return summary


def read_run(path: Path) -> FinishedRun:
    """Return the run in a results folder; UserError if it is not over, its files are damaged, or there is none."""
    folder, settings = ResultsFolder(path), saved_config(path).as_dict()
    if not _is_written(path):
        raise UserError(f"{path}: its run is not over; allowed are folders of runs that are")
    every = _lines_of_all_rounds(folder)
    if why := _why_no_model(path, every):
        raise UserError(f"{path}: {why} in any round of its run; allowed are runs that gave a model")
    lines = [{key: line[key] for key in line if key != "clients"} for line in every if line["scope"] == "global"]
    makers = makers_of(folder)
    made_by = {key: "; ".join(dict.fromkeys(maker[key] for maker in makers)) for key in MAKER}
    summary = _summary(folder)
    initial, lacking = initial_figures_of(folder), lacks_figures(summary) if settings["report.evaluate-clients"] else ""
    return FinishedRun(path, settings, figures_of(summary), made_by, lines, initial, lacking)


def figures_of(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the final figures in a ``summary.json`` by name.

    Figures over clients are means, with their standard deviation over clients as another figure, whose name ends with
    `OVER_CLIENTS`. Bytes are those of training, of all tiers.
    """
    # Earlier editions have those of an earlier model there.
    spreads = dict.fromkeys(summary["global"]) if lacks_figures(summary) else dict(summary["global"])
    spreads |= {f"personalised_{name}": own for name, own in (summary.get("personalised") or {}).items()}
    spreads |= {f"personal_{name}": own for name, own in (summary.get("personal") or {}).items()}
    spreads |= {f"top-{m}": None if lacks_figures(summary) else own for m, own in (summary.get("top_m") or {}).items()}
    figures: dict[str, float | None] = {}
    for name, own in spreads.items():
        figures |= {name: (own or {}).get(MEAN), name + OVER_CLIENTS: (own or {}).get(STD)}
    figures |= {POOL + name: value for name, value in (summary["test"] or {}).items()}
    figures["rounds"] = summary["rounds"]
    for direction, tiers in summary["bytes"].items():
        figures[f"{direction}_bytes"] = sum(tiers.values())
    if "personalisation_bytes_by_kind" in summary:
        tiers = summary["personalisation_bytes_by_kind"].values()
        figures["personalisation_bytes"] = sum(
            count for ways in tiers for kinds in ways.values() for count in kinds.values()
        )
    if joules := summary.get("energy_joules"):
        figures["energy_joules"] = joules["total"]
        figures |= {f"{part}_joules": joules[part] for part in ("compute", "upload", "per_client_round")}
        figures |= {name: summary[name] for name in OF_PLANS if name in summary}
    if "simulated_seconds" in summary:
        figures["simulated_seconds"] = summary["simulated_seconds"]
    if best := summary.get("best"):
        figures["best_round"] = best["round"]
        figures |= {f"best_{name}": (own or {}).get(MEAN) for name, own in best["global"].items()}
        figures |= {f"best_test_{name}": value for name, value in (best["test"] or {}).items()}
        figures |= _means("best_validation", best["validation"])
    figures |= _means("personalised_validation", summary.get("personalised_validation") or {})
    return figures | {"failures": summary["failures"], "wall_seconds": summary["wall_seconds"]}


def _means(what: str, spreads: Mapping[str, Any]) -> dict[str, float | None]:
    """Return means over clients of figures on the examples that these hold back."""
    return {f"{what}_{name}": own.get(MEAN) for name, own in spreads.items() if isinstance(own, dict)}


def write_runs(path: Path, runs: Sequence[tuple[Mapping[str, Any], FinishedRun]]) -> None:
    """Write a table of runs, ``runs.csv``: a line each, with the settings that were chosen for one of them in front.

    Parameters
    ----------
    path : Path
        The file.
    runs : Sequence[tuple[Mapping[str, Any], FinishedRun]]
        What was chosen for a run, by key, and the run.
    """
    names = list(dict.fromkeys(name for chosen, _ in runs for name in chosen))
    names += [name for name in ("seed",) if name not in names]
    lines = []
    for chosen, run in runs:
        settings = {name: run.settings[name] for name in names if name in run.settings}
        lines.append({**settings, **chosen, **run.figures, **run.made_by, "folder": str(run.folder)})
    figures = [name for _, run in runs for name in run.figures]
    names += [*dict.fromkeys(figures), *MAKER, "folder"]
    text = StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    replace_text(path, text.getvalue())

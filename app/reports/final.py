"""What a run writes and shows at its end."""

import csv
from codecs import getwriter
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from espalier.app.features.table import FEATURES
from espalier.app.reports.best import ranked_by
from espalier.app.reports.folder import ResultsFolder, RunTitle
from espalier.app.reports.metrics import failures_of, in_digits, lacks_figures, last_round, names_of_figures, summarise
from espalier.app.reports.partition import read_partition
from espalier.app.reports.saved import saved_config
from espalier.app.reports.stopping import SoFar
from espalier.app.reports.titles import picture_title
from espalier.app.settings.sections import Stop
from espalier.clients.messages.train import PERSONAL
from espalier.strategies import Profile
from espalier.strategies.profiles import clients_by_node

LEDGER = "ledger.json"  # what a round of training takes, see `espalier.app.run.ledger`


def write_model(folder: ResultsFolder, name: str, model: nn.Module) -> None:
    """Write a model's weights, for ``torch.load``."""
    weights = {key: tensor.cpu() for key, tensor in model.state_dict().items()}
    folder.write_file(name, lambda file: torch.save(weights, file))


def write_clients(
    folder: ResultsFolder,
    lines: Sequence[dict[str, Any]],
    profiles: Sequence[Profile],
    topology: Mapping[str, Sequence[int]],
) -> None:
    """Write ``clients.csv`` from the lines of the rounds, see `ResultsFolder.read_all_lines`."""
    rows = client_table(lines, profiles, topology)
    folder.write_file("clients.csv", lambda file: csv.writer(getwriter("utf-8")(file)).writerows(rows))


def draw_run(title: str, folder: ResultsFolder, lines: Sequence[dict[str, Any]]) -> None:
    """Draw all plots of a run from the lines of ``metrics.jsonl``, as PNG and PDF."""
    # Imported here: it takes a second, and somebody who asks for help, mistyped a key or wants no plots need not wait.
    from espalier.app.reports.partition_plot import draw_partition
    from espalier.app.reports.plots import draw_plots

    draw_plots(folder.path, title, lines)
    world = folder.read_json("world.json")
    for feature in FEATURES:
        feature.draw(folder.path, title, lines, world)
    if found := read_partition(folder.path):
        draw_partition(folder.path, title, found)


def write_summary(
    title: RunTitle,
    folder: ResultsFolder,
    lines: Sequence[dict[str, Any]],
    closed_form: Mapping[str, float] | None,
    stop: Stop,
    num_rounds: int,
) -> None:
    """Write ``summary.json`` from the lines of ``metrics.jsonl``; a run that has it is over.

    ``stopped`` says by what a run has ended before `num_rounds` global rounds.
    """
    summary = {**vars(title), **summarise(lines)}
    if reason := SoFar.of(lines).ends_early(stop, num_rounds):
        summary["stopped"] = reason
    if closed_form:
        summary["closed_form"] = closed_form
    if ledger := folder.read_json(LEDGER):
        summary["ledger"] = ledger
    folder.write_json("summary.json", summary)


def report_again(path: Path) -> None:
    """Write ``summary.json`` and the plots of a results folder anew, whether its run is over or not.

    They come from ``config.json``, ``metrics.jsonl``, ``seconds.jsonl``, ``partition.csv`` and, for the plots
    of planned rounds, ``world.json``.

    Parameters
    ----------
    path : Path
        The folder.

    Raises
    ------
    UserError
        If it holds no run, or a file is damaged.
    """
    folder = ResultsFolder(path)
    config, lines = saved_config(path), folder.read_all_lines()
    # A saved config has a stand-in for an algorithm of a user's own, which does not know what that one calls itself.
    name = (folder.read_json("summary.json") or {}).get("algorithm", config.algorithm.name)
    title = RunTitle(name, config.data.title, config.seed)
    closed_forms = [line["closed_form_bits"] for line in lines if "closed_form_bits" in line]
    closed_form = closed_forms[-1] if closed_forms else None
    write_summary(title, folder, lines, closed_form, config.stop, config.federation.global_rounds)
    heading = picture_title(name, config.data, config.federation.num_clients, config.seed)
    draw_run(heading, folder, lines)


def client_table(
    lines: Sequence[dict[str, Any]], profiles: Sequence[Profile], topology: Mapping[str, Sequence[int]]
) -> Iterator[list[Any]]:
    """Yield a header and a row per client: its data, the last model's figures and how often it was left out.

    Features have columns of their own.
    """
    edge_of = {node_id: edge for edge, members in topology.items() for node_id in members}
    names, metrics = names_of_figures(lines), last_round(lines).get("clients", {})
    personalised: dict[str, Any] = next((line["clients"] for line in lines if line["scope"] == "personalised"), {})
    failures = Counter(failure["client"] for line in lines for failure in failures_of(line))
    clients, more = list(clients_by_node(profiles).values()), dict[str, Sequence[Any]]()
    if "personal" in last_round(lines):
        own_models = [metrics.get(str(client), {}) for client in clients]
        more |= {f"personal_{name}": [own.get(PERSONAL + name) for own in own_models] for name in names}
    for feature in FEATURES:
        more |= feature.columns(lines, clients)
    header = ["client", "edge", "train_examples", "test_examples", "classes", *names, "times_left_out"]
    header += [f"personalised_{name}" for name in names] * bool(personalised)
    yield [*header, *more]
    for i, profile in enumerate(profiles):
        own = metrics.get(str(profile.partition_id), {})
        row = [
            profile.partition_id,
            edge_of[profile.node_id],
            profile.num_train_examples,
            profile.num_test_examples,
            sum(count > 0 for count in profile.class_counts),
            *map(own.get, names),
            failures[profile.partition_id],
        ]
        if personalised:
            own = personalised.get(str(profile.partition_id), {})
            row += map(own.get, names)
        yield row + [values[i] for values in more.values()]


def _spread_cells(spread: Mapping[str, Any] | None) -> list[str]:
    return [_figure((spread or {}).get(part)) for part in ("mean", "std", "min", "max")]


def result_table(summary: Mapping[str, Any]) -> str:
    """Return the short table that ends a run."""
    table = Table(
        title=f"{summary['algorithm']} on {summary['dataset']}, {summary['rounds']} global rounds: test figures"
    )
    for column in ("", "mean", "std", "min", "max", "whole pool"):
        table.add_column(column, justify="left" if not column else "right", overflow="fold")
    for key in summary["global"]:
        test = summary["test"] or {}
        table.add_row(f"{key} of clients", *_spread_cells(summary["global"][key]), _figure(test.get(key)))
        for own, what in (("personalised", "fine-tuned heads"), ("personal", "own models")):
            if own in summary:
                table.add_row(f"  {what}", *_spread_cells(summary[own].get(key)), "")
    console = Console(width=100, color_system=None, markup=False, emoji=False)  # a figure may be called f1[macro]
    with console.capture() as capture:
        console.print(table)
        if "stopped" in summary:
            console.print(f"stopped after round {summary['rounds']} by {summary['stopped']}", soft_wrap=True)
        if lacking := lacks_figures(summary):
            console.print(lacking)
        for direction, tiers in summary["bytes"].items():
            parts = ", ".join(f"{tier} {count / 1e6:.2f} MB" for tier, count in tiers.items())
            console.print(f"{direction}: {parts or 'nothing'}")
        words = (line for feature in FEATURES for line in feature.words(summary))
        for line in (*_best_lines(summary), *_top_m_lines(summary), *words):
            console.print(line)
        others = summary["failures"] - summary["replies_left_out"]
        beside = f"; failures without one: {others}" if others else ""
        left_out = f"left out: {summary['replies_left_out']} replies{beside}"
        console.print(f"{left_out}; wall time {summary['wall_seconds']:.1f} s")
    return capture.get().rstrip("\n")


def _best_lines(summary: Mapping[str, Any]) -> list[str]:
    if not (best := summary.get("best")):
        return []
    name = ranked_by(best["validation"])
    held_back, over_clients, test = best["validation"][name]["mean"], best["global"].get(name), best["test"]
    tested = f"{_figure((over_clients or {}).get('mean'))} over clients, {_figure((test or {}).get(name))} whole pool"
    return [f"best round: {best['round']}; {name} {_figure(held_back)} on held-back data; test {tested}"]


def _top_m_lines(summary: Mapping[str, Any]) -> list[str]:
    if not (tops := summary.get("top_m")):
        return []
    shown = [f"M = {m}: {_figure(tops[m]['mean'])}" for m in ("1", "2", "5", "10") if m in tops]
    return [f"top-M accuracy, mean over clients: {', '.join(shown)}"]


def _figure(value: float | None) -> str:
    return "-" if value is None else in_digits(value)

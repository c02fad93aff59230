"""What a run writes and shows at its end."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, prod
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from app.config import RunConfig
from app.reports.folder import ResultsFolder
from app.reports.metrics import summarise
from app.reports.plots import draw_plots
from app.tasks.images import input_shape
from strategies import Profile
from strategies.split.edges import cut_shapes
from strategies.split.theory import phi_hfl, phi_phsfl


def write_final_reports(
    config: RunConfig,
    folder: ResultsFolder,
    model: nn.Sequential,
    profiles: Sequence[Profile],
    topology: Mapping[str, Sequence[int]],
) -> None:
    """Write ``summary.json``, ``clients.csv``, ``model.pt`` and the plots.

    All figures come from ``metrics.jsonl``, so that a resumed run reports on all of its rounds.
    """
    lines = folder.read_metrics()
    summary = summarise(config, lines)
    if config.is_split:
        summary["closed_form"] = closed_form(config, model, profiles)
    folder.write_json("summary.json", summary)
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, folder.path / "model.pt")
    with (folder.path / "clients.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(client_table(lines, profiles, topology))
    draw_plots(folder.path, f"{config.algorithm} on {config.dataset}, seed {config.seed}", lines)


def closed_form(config: RunConfig, model: nn.Sequential, profiles: Sequence[Profile]) -> dict[str, float]:
    """Return the payload of a client in an edge round, in bits and mean over clients, after the PHSFL paper's eq. 17.

    The paper counts 33 bits a value and both directions; ``phi_phsfl`` is for the split model, ``phi_hfl`` for the
    whole one.
    """
    shapes = cut_shapes(model, input_shape(config))
    bits = []
    for profile in profiles:
        cut, samples = config.cuts[profile.partition_id % len(config.cuts)], profile.num_train_examples
        n_batches = config.batches_per_epoch or ceil(samples / config.batch_size)
        bits.append(
            phi_phsfl(
                kappa_0=config.local_epochs,
                n_batches=n_batches,
                N=config.batch_size,
                Z_c=prod(shapes[cut]),
                Z_0=sum(p.numel() for p in model[:cut].parameters()),
                D_u=samples,
            )
        )
    return {"phi_phsfl": fmean(bits), "phi_hfl": float(phi_hfl(Z=sum(p.numel() for p in model.parameters())))}


def client_table(
    lines: Sequence[dict[str, Any]], profiles: Sequence[Profile], topology: Mapping[str, Sequence[int]]
) -> list[list[Any]]:
    """Return a header and a row per client: its data, the last evaluation and how often it was left out."""
    edge_of = {node_id: edge for edge, members in topology.items() for node_id in members}
    metrics = next((line["clients"] for line in reversed(lines) if line["scope"] == "global" and "clients" in line), {})
    personalised = next((line["clients"] for line in lines if line["scope"] == "personalised"), {})
    failures = Counter(failure["client"] for line in lines if line["scope"] == "edge" for failure in line["failures"])
    header = ["client", "edge", "train_examples", "test_examples", "classes", "accuracy", "loss", "times_left_out"]
    rows: list[list[Any]] = [header + ["personalised_accuracy", "personalised_loss"] * bool(personalised)]
    for profile in profiles:
        own = metrics.get(str(profile.partition_id), {})
        rows.append(
            [
                profile.partition_id,
                edge_of[profile.node_id],
                profile.num_train_examples,
                profile.num_test_examples,
                sum(count > 0 for count in profile.class_counts),
                own.get("accuracy"),
                own.get("loss"),
                failures[profile.partition_id],
            ]
        )
        if personalised:
            own = personalised.get(str(profile.partition_id), {})
            rows[-1] += [own.get("accuracy"), own.get("loss")]
    return rows


def result_table(summary: Mapping[str, Any]) -> str:
    """Return the short table that ends a run."""
    table = Table(title=f"{summary['algorithm']} on {summary['dataset']}, {summary['rounds']} global rounds")
    for column in ("", "mean", "std", "min", "max", "whole test pool"):
        table.add_column(column, justify="left" if not column else "right")
    for key in ("accuracy", "loss"):
        spread, test = summary["global"][key] or {}, summary["test"] or {}
        cells = [_figure(spread.get(part)) for part in ("mean", "std", "min", "max")]
        table.add_row(f"test {key}, over clients", *cells, _figure(test.get(key)))
        if "personalised" in summary:
            spread = summary["personalised"][key] or {}
            cells = [_figure(spread.get(part)) for part in ("mean", "std", "min", "max")]
            table.add_row("  with fine-tuned heads", *cells, "")
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(table)
        for direction, tiers in summary["bytes"].items():
            parts = ", ".join(f"{tier} {count / 1e6:.2f} MB" for tier, count in tiers.items())
            console.print(f"{direction}: {parts or 'nothing'}")
        console.print(f"left out: {summary['failures']} replies; wall time {summary['wall_seconds']:.1f} s")
    return capture.get().rstrip("\n")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"

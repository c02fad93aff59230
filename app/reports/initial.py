"""The figures of the model that a run starts from: round 0 of learning curves."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from espalier.app.ground.errors import FAULTS
from espalier.app.ground.figures import figure_names, finite, is_figure, spreads_of
from espalier.app.reports.folder import ResultsFolder, damaged
from espalier.app.tasks.node import ClientNode
from espalier.app.tasks.task import Task
from espalier.clients.whole.evaluation import figures_on

ROUND_0 = "round-0.json"


def initial_figures(task: Task, model: nn.Module, device: torch.device, clients_here: Iterable[int]) -> dict[str, Any]:
    """Return what ``round-0.json`` says of a new model.

    Parameters
    ----------
    task : Task
        Has the test pool.
    model : nn.Module
        On `device`.
    device : torch.device
        Where it computes.
    clients_here : Iterable[int]
        Numbers of clients whose data can be read in this process.

    Returns
    -------
    dict
        ``test``, and with clients here their spread by figure, as a global line of ``metrics.jsonl`` has them.
    """
    test = figures_on(model, task.test_examples(), task.normaliser(), device, task.objective)
    names = figure_names(test)
    found = []
    for i in clients_here:
        try:
            client = task.new_client_task(model, ClientNode(i))
            figures = figures_on(model, client.test, client.prepare, device, task.objective)
        except FAULTS:  # of whatever kind: the client fails in round 1 too, which names it
            continue
        if len(client.test):
            found.append(finite(figures))
    return {**(spreads_of(found, names) if found else {}), "test": finite(test)}


def initial_figures_of(folder: ResultsFolder) -> dict[str, dict[str, float | None]]:
    """Return what a run's ``round-0.json`` says, nothing where there is none; UserError if a run does not write so."""
    figures = folder.read_json(ROUND_0) or {}
    if not (
        isinstance(figures, dict)
        and all(isinstance(spread, dict) for spread in figures.values())
        and all(v is None or is_figure(v) for spread in figures.values() for v in spread.values())
    ):
        raise damaged(folder.path / ROUND_0)
    return figures

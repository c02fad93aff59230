"""``report.tracker = "wandb"``: a run of Weights & Biases, there or offline."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from espalier.app.reports.trackers.figures import Figures, edge_figures, failures_in, figures_of
from espalier.app.reports.trackers.kept import kept_id, models_in, pictures_in


class WandB:
    """Writes into a run of W&B's; without ``mode="offline"`` it needs ``wandb login``.

    Parameters
    ----------
    **options : Any
        Those of `wandb.init`, such as ``project`` (default: ``"espalier"``), ``entity`` and ``mode``.

    Raises
    ------
    TypeError
        For an option that there is not.
    """

    def __init__(self, **options: Any) -> None:
        inspect.signature(wandb.init).bind(**options)
        self._options = options
        self._run: Any = None
        self._figures: Figures = {}
        self._failures: list[str] = []
        self._is_over = False

    def run_begins(self, settings: Mapping[str, Any], folder: Path) -> None:
        """Begin a run, or go on with that of the results folder."""
        self._folder = folder
        given = {
            "project": "espalier",
            "name": folder.name,
            "group": str(settings["report.group"]) or None,
            "id": kept_id(folder, "wandb"),
            "resume": "allow",
            "dir": str(folder),
            "config": dict(settings),
            "settings": wandb.Settings(console="off"),  # the log and the progress bar are no part of it
        }
        self._run = wandb.init(**{**given, **self._options})
        self._run.define_metric("*", step_metric="round")

    def edges_over(self, number: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Keep the figures of a round's edges, and who failed there, for the round's."""
        self._figures, self._failures = edge_figures(lines), failures_in(lines)

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Write the figures of a round and its edges."""
        if not self._run:
            return
        failures = [[number, text] for text in (*self._failures, *failures_in([line]))]
        table = {"failures_named": wandb.Table(columns=["round", "failure"], data=failures)} if failures else {}
        self._run.log({"round": number, **self._figures, **figures_of(line), **table})

    def run_over(self, summary: Mapping[str, Any]) -> None:
        """Save models and plots."""
        if not self._run:
            return
        if models := models_in(self._folder):
            artifact = wandb.Artifact(f"models-{self._run.id}", type="model")
            for file in models:
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
        pictures = {f"pictures/{file.stem}": wandb.Image(str(file)) for file in pictures_in(self._folder)}
        self._run.log({"round": summary["rounds"], **pictures})
        self._is_over = True

    def close(self) -> None:
        """Send what is left."""
        if self._run:
            self._run.finish(exit_code=0 if self._is_over else 1)

"""``report.tracker = "wandb"``: a run of Weights & Biases, there or offline."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from espalier.app.reports.trackers.figures import OfEdges
from espalier.app.reports.trackers.kept import kept_id, models_in, pictures_in


class WandB(OfEdges):
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
        super().__init__()
        inspect.signature(wandb.init).bind(**options)
        self._options = options
        self._run: Any = None
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

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Write the figures of a round and its edges."""
        if not self._run:
            return
        figures, failures = self.whole_round(line)
        data = [[number, text] for text in failures]
        table = {"failures_named": wandb.Table(columns=["round", "failure"], data=data)} if data else {}
        self._run.log({"round": number, **figures, **table})

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

"""``report.tracker = "trackio"``: a run of Trackio, on this machine or in a Space of Hugging Face's."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trackio

from espalier.app.reports.trackers.figures import Figures, edge_figures, failures_in, figures_of
from espalier.app.reports.trackers.kept import kept_id, models_in, pictures_in


class Trackio:
    """Writes into a run of Trackio's, which ``trackio show`` shows.

    Parameters
    ----------
    **options : Any
        Those of `trackio.init`, such as ``project`` (default: ``"espalier"``) and ``space_id``.

    Raises
    ------
    TypeError
        For an option that there is not.
    """

    def __init__(self, **options: Any) -> None:
        self._options = {"project": "espalier", **options}
        inspect.signature(trackio.init).bind(**self._options)
        self._run: Any = None
        self._figures: Figures = {}
        self._failures: list[str] = []

    def run_begins(self, settings: Mapping[str, Any], folder: Path) -> None:
        """Begin a run, or go on with that of the results folder, which Trackio knows by its name."""
        self._folder = folder
        given = {
            "name": f"{folder.name}-{kept_id(folder, 'trackio')}",
            "group": str(settings["report.group"]) or None,
            "config": dict(settings),
            "resume": "allow",
            "embed": False,
        }
        self._run = trackio.init(**{**given, **self._options})

    def edges_over(self, number: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Keep the figures of a round's edges, and who failed there, for the round's."""
        self._figures, self._failures = edge_figures(lines), failures_in(lines)

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Write the figures of a round and its edges."""
        if not self._run:
            return
        failures = [*self._failures, *failures_in([line])]
        named = {"failures_named": trackio.Markdown("\n".join(f"- {text}" for text in failures))} if failures else {}
        self._run.log({**self._figures, **figures_of(line), **named}, step=number)

    def run_over(self, summary: Mapping[str, Any]) -> None:
        """Save models and plots."""
        if not self._run:
            return
        if models := models_in(self._folder):
            artifact = trackio.Artifact(f"models-{self._run.name}", type="model")
            for file in models:
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
        if pictures := pictures_in(self._folder):
            shown = {f"pictures/{file.stem}": trackio.Image(str(file)) for file in pictures}
            self._run.log(shown, step=summary["rounds"])

    def close(self) -> None:
        """Write what is left."""
        if self._run:
            self._run.finish()

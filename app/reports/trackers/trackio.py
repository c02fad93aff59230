"""``report.tracker = "trackio"``: a run of Trackio, on this machine or in a Space of Hugging Face's."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trackio

from espalier.app.reports.trackers.figures import OfEdges
from espalier.app.reports.trackers.kept import kept_id, models_in, pictures_in


class Trackio(OfEdges):
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
        super().__init__()
        self._options = {"project": "espalier", **options}
        inspect.signature(trackio.init).bind(**self._options)
        self._run: Any = None

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

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Write the figures of a round and its edges."""
        if not self._run:
            return
        figures, failures = self.whole_round(line)
        named = {"failures_named": trackio.Markdown("\n".join(f"- {text}" for text in failures))} if failures else {}
        self._run.log({**figures, **named}, step=number)

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

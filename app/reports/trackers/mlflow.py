"""``report.tracker = "mlflow"``: a run of an MLflow server or store."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME

from espalier.app.reports.trackers.figures import edge_figures, failures_in, figures_of
from espalier.app.reports.trackers.kept import kept_id, models_in, pictures_in

NOT_IN_NAMES = re.compile(r"[^\w./ -]", re.ASCII)
MOST_AT_ONCE = 100  # parameters of a request; metrics may be 1,000


class MLflow:
    """Writes into an MLflow run.

    Parameters
    ----------
    uri : str (default: "")
        Of the server or store, as ``http://host:5000`` or ``sqlite:///mlflow.db``; "": MLflow's own default, by the
        environment variable ``MLFLOW_TRACKING_URI``.
    experiment : str (default: "espalier")
        Made where it is missing.
    """

    def __init__(self, uri: str = "", experiment: str = "espalier") -> None:
        self._client, self._experiment = MlflowClient(tracking_uri=uri or None), experiment
        self._run = ""
        self._is_over = False

    def run_begins(self, settings: Mapping[str, Any], folder: Path) -> None:
        """Begin a run, or go on with that of the results folder."""
        self._folder = folder
        self._run = kept_id(folder, "mlflow", lambda: self._new_run(settings, folder))
        self._client.update_run(self._run, "RUNNING")
        # Parameters can't change, so that those of a resumed run are what it began with; tags can.
        known = self._client.get_run(self._run).data.params
        params = [Param(key, str(value)) for key, value in settings.items() if key not in known]
        for some in _some(params):
            self._client.log_batch(self._run, params=some)

    def edges_over(self, number: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the figures of a round's edges, and who failed there."""
        if not self._run:
            return
        self._write(number, edge_figures(lines))
        if failures := failures_in(lines):
            self._client.log_text(self._run, "\n".join(failures), f"failures/round-{number}.txt")

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Write the figures of a round."""
        if not self._run:
            return
        self._write(number, figures_of(line))
        if failures := failures_in([line]):
            self._client.log_text(self._run, "\n".join(failures), f"failures/round-{number}-cloud.txt")

    def run_over(self, summary: Mapping[str, Any]) -> None:
        """Save models and plots, and say that the run is over."""
        if not self._run:
            return
        for file in models_in(self._folder):
            self._client.log_artifact(self._run, str(file), "models")
        for file in pictures_in(self._folder):
            self._client.log_artifact(self._run, str(file), "pictures")
        self._client.log_dict(self._run, dict(summary), "summary.json")
        self._client.set_terminated(self._run)
        self._is_over = True

    def close(self) -> None:
        """Say of a run that is not over that it was stopped."""
        if self._run and not self._is_over:
            self._client.set_terminated(self._run, "KILLED")

    def _new_run(self, settings: Mapping[str, Any], folder: Path) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        tags = {MLFLOW_RUN_NAME: folder.name, "group": str(settings["report.group"]), "results": str(folder)}
        return str(self._client.create_run(experiment, tags=tags).info.run_id)

    def _write(self, number: int, figures: Mapping[str, float]) -> None:
        now = time.time_ns() // 10**6
        metrics = [Metric(NOT_IN_NAMES.sub("_", name), value, now, number) for name, value in figures.items()]
        for some in _some(metrics):
            self._client.log_batch(self._run, metrics=some)


def _some(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield as many at a time as a request may hold."""
    return (items[first : first + MOST_AT_ONCE] for first in range(0, len(items), MOST_AT_ONCE))

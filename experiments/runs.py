"""Runs of which an experiment keeps the summary alone."""

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from espalier.app.config.parse import parse_config
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.progress import BarProgress
from espalier.app.run.run import engine_of, run


def summary_of_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run the app with settings by their keys, and return what is in ``summary.json``; nothing is printed or kept."""
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = Path(folder) / "run"
        config = parse_config({**settings, "output-dir": str(path)})
        with engine_of(config) as engine:
            run(config, engine, BarProgress(Console(file=StringIO())), Path(folder))
        summary: dict[str, Any] = ResultsFolder(path).read_json("summary.json")
    return summary

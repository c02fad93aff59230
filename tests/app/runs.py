"""Runs of the app in this process, as the command line makes them."""

import atexit
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from flwr_run import local_superlink

from espalier.app.command_line import main
from espalier.app.config.parse import KEYS
from espalier.app.reports.folder import ResultsFolder
from espalier.clients.shared.arrays import to_weights
from espalier.clients.shared.records import records_in
from espalier.sim.flower_private import records_from_bytes

ROOT = Path(__file__).parent.parent.parent
# A step more than one, and not the hundreds of whole epochs: an equation that holds for two holds for all.
SHORT = {"global-rounds": 2, "local-epochs": 1, "batches-per-epoch": 2}


@cache
def app_folder() -> Path:
    """Return a copy of the app's folder: Flower would go through every file of a virtual environment in the other."""
    folder = Path(tempfile.mkdtemp(prefix="espalier-app-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Not .gitignore, by which Flower leaves files out.
    left_out = shutil.ignore_patterns(
        ".[!g]*", ".git", "__pycache__", "*.egg-info", "build", "dist", "results", "site", "venv"
    )
    return Path(shutil.copytree(ROOT, folder / ROOT.name, symlinks=True, ignore=left_out))


@cache
def superlink(python_path: str) -> dict[str, str]:
    """Return the environment of a SuperLink for simulations, which stays until all tests are over.

    Its runs have the environment that it has been started with, of which tests change ``PYTHONPATH`` alone.
    """
    made = local_superlink()
    environment = made.__enter__()
    atexit.register(made.__exit__, None, None, None)
    return environment


def key_of(name: str) -> str:
    """Return the key of a setting: underscores for hyphens and dots, without the section where that is clear."""
    written = name.replace("_", "-")
    return next(k for k in KEYS if written in (k, k.replace(".", "-"), k.partition(".")[2]))


def run_app(folder: Path, **settings) -> Path:
    """Run the app with settings (underscores for hyphens) into `folder`, which is returned: short and without plots."""
    values = {**SHORT, "report.plots": False, "output-dir": str(folder)}
    values |= {key_of(k): v for k, v in settings.items()}
    assert main([f"{key}={json.dumps(value)}" for key, value in values.items()]) == 0
    return folder


def flwr_run(federation: str, **settings) -> tuple[int, str]:
    """Run ``flwr run .`` on two CPUs, as short as `run_app`, and return its exit code and what it printed."""
    values = {**SHORT, "report.plots": False} | {key_of(k): v for k, v in settings.items()}
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    options = ["--run-config", config, "--federation-config", f"init-args-num-cpus=2 {federation}"]
    # On a crowded machine one of Ray's own processes may die as it starts; then nothing of the app has run yet.
    for _ in range(2):
        done = flwr_run_on(superlink(os.environ.get("PYTHONPATH", "")), app_folder(), *options)
        if "The current node timed out during startup" not in done.stdout + done.stderr:
            break
    return done.returncode, done.stdout + done.stderr


def flwr_run_on(environment: dict[str, str], app: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Do what ``deploy/flwr_run.py`` does, on a SuperLink that is there already."""
    script = "import os, sys; from flwr_run import run_app; sys.exit(run_app(sys.argv[1], sys.argv[2:], os.environ))"
    return subprocess.run(
        [sys.executable, "-c", script, str(app), *options],
        env={**environment, "PYTHONPATH": str(ROOT / "deploy")},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def rows_of_clients(folder: Path) -> list[dict]:
    """Return the rows of ``clients.csv``, apart from real time."""
    with (folder / "clients.csv").open(newline="") as file:
        times = ("training_seconds", "waiting_seconds", "transfer_seconds")
        return [{key: value for key, value in row.items() if key not in times} for row in csv.DictReader(file)]


def lines(folder: Path, scope: str) -> list[dict]:
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in every if line["scope"] == scope]


def kept_in(folder: Path) -> list[dict[str, dict[str, torch.Tensor]]]:
    """Return the weights that each client keeps after the last global round of a run, by the names of its records."""
    state = ResultsFolder(folder).load_state()
    assert state is not None
    return kept_of(state.clients)


def kept_of(states: Mapping[str, bytes]) -> list[dict[str, dict[str, torch.Tensor]]]:
    """Return the weights in the states of a simulated grid's nodes, likewise."""
    nodes = [records_in(records_from_bytes(states[key]), ArrayRecord) for key in sorted(states, key=int)]
    return [{name: to_weights(arrays) for name, arrays in node.items()} for node in nodes]


def same_weights(left: Path, right: Path) -> bool:
    a, b = weights(left), weights(right)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

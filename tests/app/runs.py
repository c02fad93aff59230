"""Runs of the app in this process, as the command line makes them."""

import atexit
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from espalier.app.command_line import main
from espalier.app.config.parse import KEYS

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
    command = [sys.executable, str(ROOT / "deploy/flwr_run.py"), str(app_folder()), "--run-config", config]
    command += ["--federation-config", f"init-args-num-cpus=2 {federation}"]
    # On a crowded machine one of Ray's own processes may die as it starts; then nothing of the app has run yet.
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        if "The current node timed out during startup" not in done.stdout + done.stderr:
            break
    return done.returncode, done.stdout + done.stderr


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


def same_weights(left: Path, right: Path) -> bool:
    a, b = weights(left), weights(right)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

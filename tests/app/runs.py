"""Runs of the app in this process, as the command line makes them."""

import json
from pathlib import Path

import torch

from app.__main__ import main


def run_app(folder: Path, **settings) -> Path:
    """Run the app with settings (underscores for hyphens) into `folder`, which is returned."""
    values = {"global-rounds": 2, "output-dir": str(folder)} | {k.replace("_", "-"): v for k, v in settings.items()}
    assert main([f"{key}={json.dumps(value)}" for key, value in values.items()]) == 0
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def lines(folder: Path, scope: str) -> list[dict]:
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in every if line["scope"] == scope]


def same_weights(left: Path, right: Path) -> bool:
    a, b = weights(left), weights(right)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

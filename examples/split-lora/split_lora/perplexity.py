"""How much a run has learned: ``python -m split_lora.perplexity FOLDER`` prints the perplexity before and after."""

import sys
from pathlib import Path

import torch

from espalier.app.reports.saved import saved_config
from espalier.app.wiring.task_of_run import build_task


@torch.no_grad()
def perplexities(folder: Path) -> tuple[float, float]:
    """Return the perplexity on the test texts of all clients of a run's model as it began, and as it ended."""
    task = build_task(saved_config(folder).model_copy(update={"device": "cpu"}))
    model, tests, found = task.new_model().eval(), task.test_examples(), []
    for weights in (model.state_dict(), torch.load(folder / "model.pt", weights_only=True)):
        model.load_state_dict(weights)
        found.append(float(task.objective.loss(model(tests.inputs), tests.labels).exp()))
    return found[0], found[1]


if __name__ == "__main__":
    before, after = perplexities(Path(sys.argv[1]))
    print(f"perplexity before {before:.1f}, after {after:.1f}")

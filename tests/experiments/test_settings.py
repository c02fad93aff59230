"""Every settings file is one that a run takes, and says nothing that the run has no use for."""

from pathlib import Path

import pytest

from espalier.app.config.parse import parse_config, read_arguments
from espalier.app.config.unused import unused_keys
from espalier.strategies.allocation import SCA

FOLDER = Path(__file__).parents[2] / "experiments"


def config_of(name):
    return parse_config(read_arguments([str(FOLDER / f"{name}.toml"), f"data-dir={FOLDER}"]))


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.toml")))
def test_a_run_takes_it_and_has_use_for_all_of_it(name):
    assert unused_keys(config_of(name)).keys() <= {"data-dir"}


RAWHFL = {
    "algorithm": "rawhfl",
    "num-clients": 48,
    "num-edges": 4,
    "global-rounds": 100,
    "edge-rounds": 4,
    "batches-per-epoch": 10,
    "batch-size": 32,
    "plan.max-local-rounds": 50,
    "plan.deadline-seconds": 150.0,
    "plan.theta": 0.4,
    "plan.solver": "exact",
    "plan.margin": 0.0,
    "plan.late-share": 0.0,
    "plan.value": "uniform",
}
PAPERS = {
    "rawhfl-table2": RAWHFL | {"caching.exploitation": "0.3"},
    "rawhfl-table3": RAWHFL | {"caching.exploitation": "0.7"},
    "rawhfl-table4": RAWHFL | {"caching.exploitation": "0.1-0.8"},
    "phsfl-cifar10": {
        **{"algorithm": "phsfl", "num-clients": 100, "num-edges": 4, "global-rounds": 100, "edge-rounds": 3},
        **{"local-epochs": 5, "batches-per-epoch": 5, "batch-size": 32, "optimizer": "sgd", "learning-rate": 0.01},
        **{"train.momentum": 0.0, "train.weight-decay": 0.0, "fine-tune.steps": 10},
        **{"partition": "dirichlet", "alpha": 0.1, "dataset": "cifar10"},
    },
    "fsl-sage-cifar10": {
        **{"model": "resnet18-imagenet", "cut-layer": 2, "num-clients": 10, "partition": "iid", "local-epochs": 1},
        **{"batches-per-epoch": 0, "batch-size": 128, "optimizer": "adam", "learning-rate": 0.001},
        **{"train.weight-decay": 0.0001, "split.upload-every": 5, "fsl-sage.fit-every": 10},
    },
    "cut-layer-cifar10": {
        **{"model": "resnet18", "num-clients": 100, "global-rounds": 200, "local-epochs": 5, "batches-per-epoch": 0},
        **{"batch-size": 64, "optimizer": "adam", "learning-rate": 0.001, "alpha": 0.1},
        **{"split.server-optimizer": "adam", "split.server-learning-rate": 0.001},
    },
}


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_settings_are_what_the_paper_prints(name):
    values = config_of(name).as_dict()
    assert {key: str(values[key]) for key in PAPERS[name]} == {key: str(value) for key, value in PAPERS[name].items()}


def test_the_paper_of_rawhfl_has_the_weights_of_the_approximation():
    """Sec. V-A: rho = 1, I = 50 iterations."""
    assert (SCA().rho, SCA().max_iterations) == (1.0, 50)


def test_the_authors_settings_of_the_cut_layer_paper_are_those_of_the_paper_but_for_what_they_say():
    paper, authors = (config_of(name).as_dict() for name in ("cut-layer-cifar10", "cut-layer-cifar10-authors"))
    assert {key for key in paper if paper[key] != authors[key]} == {
        *("data.augmentation", "partition", "alpha", "report.evaluate-every"),
        *("train.weight-decay", "train.schedule", "train.drop-last", "train.weighting"),
        *("split.server-order", "split.server-optimizer", "split.server-learning-rate"),
        *("split.server-momentum", "split.server-weight-decay", "guard.mode"),
    }

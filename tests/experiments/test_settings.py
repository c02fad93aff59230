"""Every settings file is one that a run takes, and says nothing that the run has no use for."""

from pathlib import Path

import pytest

from espalier.app.config.parse import parse_config, read_arguments
from espalier.app.config.unused import unused_keys

FOLDER = Path(__file__).parents[2] / "experiments"


def config_of(name):
    return parse_config(read_arguments([str(FOLDER / f"{name}.toml"), f"data-dir={FOLDER}"]))


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.toml")))
def test_a_run_takes_it_and_has_use_for_all_of_it(name):
    assert unused_keys(config_of(name)).keys() <= {"data-dir"}


def test_the_authors_settings_of_the_cut_layer_paper_are_those_of_the_paper_but_for_what_they_say():
    paper, authors = (config_of(name).as_dict() for name in ("cut-layer-cifar10", "cut-layer-cifar10-authors"))
    assert {key for key in paper if paper[key] != authors[key]} == {
        *("data.augmentation", "partition", "alpha", "report.evaluate-every"),
        *("train.weight-decay", "train.schedule", "train.drop-last", "train.weighting"),
        *("split.server-order", "split.server-optimizer", "split.server-learning-rate"),
        *("split.server-momentum", "split.server-weight-decay", "guard.mode"),
    }

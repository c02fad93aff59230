"""A feature is a folder and a value, whose settings, checks and reports all others reach through the table."""

from pathlib import Path

import pytest

from espalier.app import features
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.features.asynchrony.settings import Asynchrony
from espalier.app.features.availability.settings import Availability
from espalier.app.features.table import FEATURES
from espalier.app.settings.section import Tag


def test_every_folder_is_one_feature_of_the_table():
    folders = sorted(path.parent.name for path in Path(features.__file__).parent.glob("*/__init__.py"))
    assert sorted(feature.name for feature in FEATURES) == folders


def test_a_run_config_has_the_settings_of_every_feature():
    config = parse_config({"async.mode": "fedbuff", "async.buffer-size": 1, "availability.trace": ""})
    assert {type(section) for section in config.held} >= {feature.section for feature in FEATURES if feature.section}
    assert (config[Asynchrony].mode, config[Asynchrony].buffer_size) == ("fedbuff", 1)
    assert config[Availability] == Availability()
    assert parse_config(config.as_dict()) == config


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_feature_that_is_not_asked_for_refuses_nothing_and_says_nothing(feature):
    case = RunConfig()
    feature.check(case)
    feature.check_strategies(case)
    feature.check_files(case)
    assert feature.falls_short(case) == {}
    assert (feature.out_of_step(case), feature.splits_edges(case), feature.presence(case)) == ("", False, None)
    assert (feature.summary([]), list(feature.words({})), feature.columns([], [])) == ({}, [], {})


def test_decisions_follow_from_settings_of_features():
    waits, does_not = (parse_config({"async.mode": mode, "num-edges": 2}) for mode in ("off", "fedasync"))
    assert (waits.out_of_step, does_not.out_of_step) == ("", "async.mode = 'fedasync'")
    at_edges = parse_config({"async.mode": "fedasync", "async.tier": "edges", "engine": "ray"})
    assert (does_not.has_whole_edges, at_edges.has_whole_edges) == (True, False)
    assert (at_edges.has_clients_in_workers, waits.has_clients_in_workers) == (True, False)
    assert parse_config({"availability.moves": "moves.csv"}).movers == {"availability.moves": "''"}


def test_tags_of_a_section_hold_for_all_of_its_settings():
    assert set(Asynchrony.keys_tagged(Tag.OWN_AT_EDGES)) == set(Asynchrony.keys().values())
    assert Asynchrony.keys_tagged(Tag.PATH) == ["async.trace"]


def test_who_is_stacked_and_recorded_is_decided_once_and_anew_for_a_copy():
    config = parse_config({"engine": "in-process", "stack": 4, "train.cuda-graph": True})
    assert config.decided is config.decided
    assert (config.decided.stack, config.decided.records) == (4, False)
    assert "stack = 4: clients train side by side" in config.decided.why_not_recorded
    alone = config.model_copy(update={"stack": 0})
    assert (alone.decided.stack, alone.decided.records, alone.decided.why_not_recorded) == (0, True, "")
    assert parse_config(config.as_dict()) == config

"""What can be asked of differential privacy, and what is said where the guarantee would not hold."""

import pytest
from torch import nn

from espalier.app.config.keys import keys_tagged
from espalier.app.config.parse import parse_config
from espalier.app.config.together import check_strategies, falling_short
from espalier.app.config.unused import unused_keys
from espalier.app.features.privacy import PRIVACY
from espalier.app.ground.errors import UserError
from espalier.app.settings.section import Tag

EQUAL = {"train.weighting": "equal"}
EDGE = {"privacy.level": "client-at-edge", "privacy.noise": 1.0, **EQUAL}
CLOUD = {"privacy.level": "client-at-cloud", "privacy.noise": 1.0, "edge-rounds": 1, **EQUAL}
WHOLE_EDGE = {"privacy.level": "edge-at-cloud", "privacy.noise": 1.0, **EQUAL}
CLIENT = {"privacy.level": "client-at-client", "privacy.noise": 1.0}
EXAMPLE = {"privacy.level": "example-at-client", "privacy.noise": 1.0}
LEVELS = [EDGE, CLOUD, WHOLE_EDGE, CLIENT, EXAMPLE]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level["privacy.level"])
def test_every_level_goes_with_two_tiers_and_personal_heads(level):
    for algorithm in ("h-fedavg", "fedper"):
        config = parse_config({**level, "algorithm": algorithm, "num-edges": 2})
        check_strategies(config)
        assert falling_short(config) == unused_keys(config) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**EDGE, "train.weighting": "examples"}, "train.weighting = 'examples': allowed is 'equal' for privacy.level"),
        ({**EDGE, "privacy.clip": 0.0}, "privacy.clip = 0.0: allowed is more than 0"),
        ({**EDGE, "algorithm": "fedavg"}, "privacy.level = 'client-at-edge': allowed is 'client-at-cloud' for an"),
        ({**WHOLE_EDGE, "algorithm": "fedavg"}, "allowed is 'client-at-cloud': without edges"),
        ({**CLOUD, "edge-rounds": 2}, "edge-rounds = 2: allowed is 1 for privacy.level = 'client-at-cloud'"),
        ({**EDGE, "guard.update-norm": 5.0}, "= 5.0: allowed is 0 for .* and guard.mode = 'leave-out', or guard.mode"),
        ({**CLOUD, "compress.edge": "int8"}, "compress.edge = 'int8': allowed is 'none' for privacy.level"),
        ({**CLIENT, "algorithm": "hsfl"}, "'none' for algorithm = 'hsfl': activations and gradients of every example"),
        ({**CLIENT, "algorithm": "scaffold"}, "'none' for algorithm = 'scaffold', whose clients send more than one"),
        ({**CLIENT, "algorithm": "ditto"}, "'none' for algorithm = 'ditto', whose clients"),
        ({**CLIENT, "algorithm": "local"}, "'none' for algorithm = 'local', whose clients send no updates"),
        ({**WHOLE_EDGE, "algorithm": "local"}, "'none' for algorithm = 'local', whose clients send no updates"),
        ({**EXAMPLE, "selection": "resource-aware"}, "with plans, which choose by what clients tell"),
        ({**CLIENT, "async.mode": "fedbuff"}, "'none' for async.mode = 'fedbuff', where no fixed number"),
        ({**EDGE, "availability.moves": "moves.csv"}, "'none' for availability.moves: the budget is that of an edge's"),
        ({**EXAMPLE, "dataset": "video-caching"}, "whose clients get more data from round to round"),
        (
            {**CLIENT, "stop.accuracy": 0.9},
            "stop.accuracy = 0.9: allowed is 0 for privacy.level = 'client-at-client'",
        ),
        ({**CLIENT, "stop.patience": 2}, "stop.patience = 2: allowed is 0 for privacy.level"),
        ({**CLIENT, "data.validation-share": 0.1}, "data.validation-share = 0.1: allowed is 0.0 for privacy.level"),
        ({**EXAMPLE, "engine": "in-process", "stack": 4}, "stack = 4: allowed is 0 for privacy.level"),
        ({**EXAMPLE, "train.cuda-graph": True}, "train.cuda-graph = True: allowed is false for privacy.level"),
        ({"privacy.delta": 1.0}, "privacy.delta = 1.0: allowed is"),
        ({"privacy.level": "client"}, "privacy.level = 'client': allowed is"),
    ],
)
def test_what_would_make_the_guarantee_a_lie_is_refused(given, said):
    with pytest.raises(UserError, match=said):
        parse_config({"num-edges": 2 if given.get("algorithm") != "fedavg" else 0, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {**EDGE, "edge-strategy": "FedMedian"},
            "edge-strategy = 'FedMedian': allowed is 'FedAvg' or 'FedProx', which",
        ),
        ({**CLOUD, "cloud-strategy": "FedAdam"}, "cloud-strategy = 'FedAdam': allowed is 'FedAvg' or 'FedProx', which"),
        ({**WHOLE_EDGE, "cloud-strategy": "Krum"}, "cloud-strategy = 'Krum': allowed is 'FedAvg' or 'FedProx', which"),
        (
            {**EDGE, "cloud-strategy": "QFedAvg(client_learning_rate=0.1)"},
            "cloud-strategy = 'QFedAvg.client_learning_rate=0.1.': allowed is one of Flower's that uses",
        ),
        (
            {**CLIENT, "edge-strategy": "QFedAvg(client_learning_rate=0.1)"},
            "edge-strategy = 'QFedAvg.client_learning_rate=0.1.': allowed is one of Flower's that uses",
        ),
    ],
)
def test_only_plain_means_have_a_bound_and_nobody_uses_losses(given, said):
    with pytest.raises(UserError, match=said):
        check_strategies(parse_config({"num-edges": 2, **given}))


@pytest.mark.parametrize("given", ["fraction_train=1.0", "min_train_nodes=4", "min_available_nodes=3"])
def test_nothing_but_participation_says_how_many_train(given):
    flat = {**CLOUD, "algorithm": "fedavg", "num-edges": 0, "cloud-strategy": f"FedAvg({given})"}
    for settings in ({**EDGE, "num-edges": 2, "edge-strategy": f"FedProx(proximal_mu=0.1, {given})"}, flat):
        with pytest.raises(UserError, match="without fraction_train, min_train_nodes, min_available_nodes: partici"):
            check_strategies(parse_config({**settings, "participation": 0.25}))
    for level, key in ((EDGE, "cloud-strategy"), (WHOLE_EDGE, "edge-strategy"), (CLIENT, "edge-strategy")):
        check_strategies(parse_config({**level, "num-edges": 2, key: f"FedAvg({given})"}))


def test_other_tiers_may_have_any_strategy_of_models():
    for given in ({**EDGE, "cloud-strategy": "FedAdam"}, {**WHOLE_EDGE, "edge-strategy": "FedMedian"}):
        check_strategies(parse_config({"num-edges": 2, **given}))
    check_strategies(parse_config({**CLIENT, "num-edges": 2, "edge-strategy": "FedTrimmedAvg"}))


def test_who_is_protected_by_nothing_or_little_is_said():
    assert (
        "nobody is protected without noise"
        in falling_short(parse_config({**CLIENT, "privacy.noise": 0.0}))["privacy.level"]
    )
    assert "one over the 8" in falling_short(parse_config({**CLIENT, "privacy.delta": 0.2}))["privacy.delta"]
    assert unused_keys(parse_config({"privacy.noise": 1.0})) == {"privacy.noise": "privacy.level = 'none'"}


def test_an_edge_host_has_no_secret_noise_of_its_own():
    assert not {key for key in keys_tagged(Tag.OWN_AT_EDGES) if key.startswith("privacy.")}


def test_models_whose_examples_change_each_other_are_refused():
    model, good = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), nn.Sequential(nn.GroupNorm(1, 2))
    said = r"privacy.level = 'example-at-client': allowed is 'none' for a model with BatchNorm2d \(1\), .* nn.GroupNorm"
    with pytest.raises(UserError, match=said):
        PRIVACY.check_model(parse_config(EXAMPLE), model)
    PRIVACY.check_model(parse_config(EXAMPLE), good)
    PRIVACY.check_model(parse_config(CLIENT), model)

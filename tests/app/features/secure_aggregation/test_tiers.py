"""What edges of a run with secure aggregation are made for."""

import pytest
from torch import nn

from espalier.app.config.parse import parse_config
from espalier.app.features.feature import Scene
from espalier.app.features.secure_aggregation.tiers import most_weights_of
from espalier.strategies import Profile


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, {"west": 30, "east": 50}),
        ({"train.weighting": "equal"}, {"west": 1, "east": 1}),
        ({"deploy.nodes-move": True}, {"west": 50, "east": 50}),
    ],
)
def test_an_edge_allows_for_the_largest_of_its_own_clients_and_of_all_where_they_move(settings, most):
    profiles = [Profile(10 + i, i, "", examples, 5, (5,)) for i, examples in enumerate((20, 50, 30))]
    config = parse_config({"secure.aggregation": True, **settings})
    assert most_weights_of(Scene(config, profiles, {"west": [10, 12], "east": [11]}, None, nn.Linear(1, 1))) == most

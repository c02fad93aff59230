"""Where a run's noise is added, and how much."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from torch import nn

from espalier.app.config.parse import parse_config
from espalier.app.features.feature import Scene
from espalier.app.features.privacy.tiers import around_cloud
from tests.strategies.split.federation import ANY
from tests.strategies.test_privacy import CLIP, first_round, private
from tests.strategies.toys import to_numpy, toy_grid, toy_topology


@pytest.mark.parametrize("faults", [{}, {3: "raise", 4: "raise"}])
def test_for_clients_the_smallest_edge_decides_on_the_noise_at_the_cloud_whoever_answers(faults):
    start, made = {"w": np.zeros(300_000, np.float32)}, []
    for noise in (0.0, 1.5):
        settings = {"num-edges": 2, "num-clients": 5, "edge-rounds": 1, "train.weighting": "equal"}
        own = {"privacy.level": "client-at-cloud", "privacy.clip": CLIP, "privacy.noise": noise}
        scene = Scene(parse_config({**settings, **own}), (), toy_topology(toy_grid(5), 2), None, nn.Linear(1, 1))
        around = around_cloud(scene)
        made.append(
            first_round(around(FedAvg(**ANY)), private(CLIP, 0.0), clients=5, num_edges=2, start=start, faults=faults)
        )
    without, noisy = (to_numpy(outcome.arrays)["w"] for outcome in made)
    assert np.std(noisy - without) == pytest.approx(1.5 * CLIP / 2 / 2, rel=0.01)

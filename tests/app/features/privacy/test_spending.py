"""What rounds release, by what is told of them."""

import pytest

from espalier.app.features.privacy.releases import Release
from espalier.app.features.privacy.spending import AtClients

ONE = Release(4.0)


@pytest.mark.parametrize(
    ("participants", "failures", "times"),
    [
        ([[0, 1], [1]], [{"edge_round": 2, "client": 0}], {0: 2, 1: 2}),
        ([[0], [2]], [], {0: 1, 2: 1}),
        ([[], [2]], [{"edge_round": 1, "client": None}], {0: 1, 1: 1, 2: 2}),
        # As of an edge that does not answer: it may have trained with all of its clients, in every edge round.
        ([[], []], [{"edge_round": 1, "client": None}], {0: 2, 1: 2, 2: 2}),
    ],
)
def test_clients_release_once_for_each_edge_round_they_may_have_trained_in(participants, failures, times):
    spending = AtClients({client: {ONE: 3} for client in range(4)}, {"edge-0": [0, 1, 2], "edge-1": [3]}, edge_rounds=2)
    line = {"participants": participants, "failures": failures, "privacy": [None, None]}
    expected = {client: {ONE: 3 * count} for client, count in times.items()}
    assert spending.of_round({"edge-0": line}, {}) == expected

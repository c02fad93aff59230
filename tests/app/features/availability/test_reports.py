"""What is counted of clients that come and go."""

from espalier.app.features.availability.reports import availability_summary


def test_an_edge_that_has_no_clients_is_not_one_whose_clients_are_away():
    lines = [
        {"scope": "edge", "num_clients": 2, "away": [[0], [0, 1]], "dropped_out": [[1], []]},
        {"scope": "edge", "num_clients": 0, "away": [[], []], "dropped_out": [[], []]},
        {"scope": "global"},
    ]
    assert availability_summary(lines) == {
        "availability": {"away_share": 3 / 4, "dropped_out": 1, "edge_rounds_without_anybody": 1}
    }

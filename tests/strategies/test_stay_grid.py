"""Devices that stay: one message each, then all go through streams."""

from dataclasses import replace

from tests.strategies.devices import Devices, staying
from tests.strategies.split.federation import Federation, same, weights


def side_by_side(federation):
    """Give each client a model of its own, as devices have."""
    federation.tasks = [replace(task, model=federation.make_model()) for task in federation.tasks]
    return federation


def test_rounds_through_streams_are_those_by_messages():
    federation = side_by_side(Federation())
    expected = federation.run(num_edges=2)
    devices = Devices(federation.app(durable=True), 4)
    with staying(devices) as grid:
        found = federation.run(num_edges=2, grid=grid)
    assert same(weights(found[-1]), weights(expected[-1]))
    assert sorted(kind for _, kind in devices.asked) == ["query.stay"] * 4

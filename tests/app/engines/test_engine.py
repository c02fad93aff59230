"""What an engine can do is found out without starting it."""

from espalier.app.engines.engine import serves_edges
from espalier.app.engines.ray import Ray
from tests.app.assembling import config_of, engine_of


class Unstarted(Ray):
    def __init__(self):
        pass

    @property
    def grid(self):
        raise AssertionError("workers were started")


def test_whether_an_engine_serves_edges_is_asked_without_opening_its_grid():
    assert serves_edges(Unstarted())
    assert not serves_edges(engine_of(config_of(num_clients=2)))

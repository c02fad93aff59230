"""SL, split learning: clients train one after the other (arXiv:1812.00564)."""

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.split_edges import split_options, the_cut
from espalier.strategies.split import Relay


def relay(site: Site) -> Relay:
    """Return an edge that passes the client block along its clients."""
    return Relay(site.new_model(), the_cut(site), **split_options(site))


SL = Algorithm(
    name="sl",
    summary="Split learning: the clients train one after the other against one server block.",
    make_edge=relay,
    tiers="one or two",
    splits=True,
    shares_server=True,
    in_turn=lambda split: True,
    averages=False,
)

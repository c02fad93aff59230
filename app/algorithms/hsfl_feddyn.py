"""FedDyn of cut models: SFL-V1, or HSFL, whose clients' blocks and server's blocks are regularised alike."""

from functools import partial

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.feddyn import FEDDYN_CLIENT, FedDynSettings, server_dynamics
from espalier.app.algorithms.split_edges import server_block_per_client
from espalier.strategies.split import SplitFedV1
from espalier.strategies.split.algorithm import SplitAlgorithm


def split_feddyn_edge(site: Site) -> SplitFedV1:
    """Return an SFL-V1 edge with an ``h`` of its own."""
    of = partial(SplitAlgorithm, rule=FEDDYN_CLIENT.rule, half=server_dynamics(site))
    return server_block_per_client(site, of=of)


HSFL_FEDDYN = Algorithm(
    name="hsfl-feddyn",
    summary="FedDyn of cut models: SFL-V1 under one edge, HSFL with num-edges = 2 or more.",
    make_edge=split_feddyn_edge,
    tiers="one or two",
    strategy_key="edge-strategy",
    splits=True,
    takes_means=False,
    client=FEDDYN_CLIENT,
    section=FedDynSettings,
)

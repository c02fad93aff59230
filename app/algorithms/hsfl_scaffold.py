"""SCAFFOLD of cut models: SFL-V1, or HSFL, whose clients' blocks and server's blocks are corrected alike."""

from functools import partial

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.scaffold import SCAFFOLD_CLIENT, ServerControl
from espalier.app.algorithms.split_edges import server_block_per_client
from espalier.strategies.split import SplitFedV1
from espalier.strategies.split.algorithm import SplitAlgorithm


def split_scaffold_edge(site: Site) -> SplitFedV1:
    """Return an SFL-V1 edge with a control variate of its own."""
    return server_block_per_client(site, of=partial(SplitAlgorithm, rule=SCAFFOLD_CLIENT.rule, half=ServerControl()))


HSFL_SCAFFOLD = Algorithm(
    name="hsfl-scaffold",
    summary="SCAFFOLD of cut models: SFL-V1 under one edge, HSFL with num-edges = 2 or more.",
    make_edge=split_scaffold_edge,
    tiers="one or two",
    strategy_key="edge-strategy",
    splits=True,
    client=SCAFFOLD_CLIENT,
)

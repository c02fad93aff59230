"""SFL-V1: a server block per client (arXiv:2004.12088)."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.split_edges import server_block_per_client

SFL_V1 = Algorithm(
    name="sfl-v1",
    summary="Split, a server block per client: equal to FedAvg at any cut, also if every client has its own cut.",
    make_edge=server_block_per_client,
    tiers="one or two",
    strategy_key="edge-strategy",
    splits=True,
)

"""HSFL: SFL-V1 at every edge, under a cloud."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.split_edges import server_block_per_client

HSFL = Algorithm(
    name="hsfl",
    summary="SFL-V1 at every edge, under any cloud-strategy.",
    make_edge=server_block_per_client,
    strategy_key="edge-strategy",
    splits=True,
)

"""Decoupled HSFL: a server block per client, and clients that train by a local loss (Han et al., FL-ICML 2021)."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.split_edges import LOCAL_LOSS_CLIENT, server_block_per_client

DECOUPLED = Algorithm(
    name="decoupled",
    summary="HSFL without gradients that come back: auxiliary heads train the clients' blocks, at every edge.",
    make_edge=server_block_per_client,
    strategy_key="edge-strategy",
    splits=True,
    auxiliary="averaged",
    client=LOCAL_LOSS_CLIENT,
)

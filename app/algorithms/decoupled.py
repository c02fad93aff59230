"""Decoupled HSFL: a server block per client, and clients that train by a local loss (Han et al., FL-ICML 2021)."""

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.split_edges import LOCAL_LOSS_CLIENT, server_block_per_client
from espalier.strategies.split import LocalLossTransport, SplitFedV1


def server_block_on_uploads(site: Site) -> SplitFedV1:
    """Return an edge with a server block for each client, which trains on what comes with its reply."""
    return server_block_per_client(site, transport=LocalLossTransport(site.split.upload_every))


DECOUPLED = Algorithm(
    name="decoupled",
    summary="HSFL without gradients that come back: auxiliary heads train the clients' blocks, at every edge.",
    make_edge=server_block_on_uploads,
    strategy_key="edge-strategy",
    splits=True,
    auxiliary="averaged",
    client=LOCAL_LOSS_CLIENT,
)

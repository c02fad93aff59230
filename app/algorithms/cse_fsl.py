"""CSE-FSL: clients train by auxiliary heads, one server block on some of their activations (arXiv:2507.15816)."""

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.split_edges import LOCAL_LOSS_CLIENT, split_options, the_cut
from espalier.strategies.split import SplitFedV2


def server_trained_on_uploads(site: Site) -> SplitFedV2:
    """Return an edge with one server block, which trains on what comes with the clients' replies."""
    return SplitFedV2(site.new_model(), the_cut(site), **split_options(site))


CSE_FSL = Algorithm(
    name="cse-fsl",
    summary="Split by a local loss: auxiliary heads train the clients' blocks, uploads one server block.",
    make_edge=server_trained_on_uploads,
    tiers="one or two",
    splits=True,
    shares_server=True,
    auxiliary="averaged",
    client=LOCAL_LOSS_CLIENT,
)

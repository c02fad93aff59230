"""SFL-V2: one server block for all clients (arXiv:2004.12088)."""

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.split_edges import split_options, the_cut
from espalier.app.settings.sections import Split
from espalier.strategies.split import SplitFedV2


def one_by_one(split: Split) -> bool:
    """Return whether the server block takes all of a client's mini-batches before the next client's."""
    return split.server_order != "interleaved"


def shared_server_block(site: Site) -> SplitFedV2:
    """Return an edge with one server block."""
    return SplitFedV2(site.new_model(), the_cut(site), order=site.split.server_order, **split_options(site))


SFL_V2 = Algorithm(
    name="sfl-v2",
    summary="Split, one server block for all clients.",
    make_edge=shared_server_block,
    tiers="one or two",
    splits=True,
    shares_server=True,
    in_turn=one_by_one,
)

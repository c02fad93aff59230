"""PHSFL: HSFL with a frozen head, which is fine-tuned for each client after training (arXiv:2411.06042)."""

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.split_edges import aggregation, head_weights, split_options
from espalier.strategies.split import SplitFedV1


def frozen_head(site: Site) -> SplitFedV1:
    """Return an edge whose server blocks keep the head's initial weights."""
    model = site.new_model()
    return SplitFedV1(
        model, site.cut_of, frozen=head_weights(model), aggregation=aggregation(site), **split_options(site)
    )


PHSFL = Algorithm(
    name="phsfl",
    summary="HSFL with a frozen random head; afterwards each client's head is fine-tuned.",
    make_edge=frozen_head,
    strategy_key="edge-strategy",
    splits=True,
    freezes_head=True,
)

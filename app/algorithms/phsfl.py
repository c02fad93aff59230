"""PHSFL: HSFL with a frozen head, which is fine-tuned for each client after training (arXiv:2411.06042)."""

from functools import partial

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.split_edges import server_block_per_client

PHSFL = Algorithm(
    name="phsfl",
    summary="HSFL with a frozen random head; afterwards each client's head is fine-tuned.",
    make_edge=partial(server_block_per_client, freezes_head=True),
    strategy_key="edge-strategy",
    splits=True,
    freezes_head=True,
)

"""The ClientApp: Espalier's, with a task of one's own. It answers all of Espalier's messages, split or not."""

import torch
from flwr.app import Context

from espalier.clients.client_app import make_client_app
from espalier.clients.task import ClientTask

from .task import node_task


def load_task(context: Context) -> ClientTask:
    """Return this node's task."""
    torch.set_num_threads(1)  # with another number, sums could round differently
    node = context.node_config
    return node_task(context.run_config["seed"], node["partition-id"], node["num-partitions"])


app = make_client_app(load_task)

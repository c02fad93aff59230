"""A strategy as one writes it for Flower: it knows nothing of edges and clouds."""

import math

import numpy as np
from flwr.app import Array
from flwr.serverapp.strategy import FedAvg


class ClippedFedAvg(FedAvg):
    """FedAvg with clipped updates: in a round, no node moves the model further than `max_norm`."""

    def __init__(self, max_norm, **options):
        super().__init__(**options)
        self.max_norm = max_norm

    def configure_train(self, server_round, arrays, config, grid):
        """Remember the model that the nodes start from."""
        sent = {name: array.numpy() for name, array in arrays.items()}
        self.sent = {name: values for name, values in sent.items() if values.dtype.kind == "f"}  # no counters
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        """Shorten the updates that are too long, then average as ever."""
        for arrays in (reply.content["arrays"] for reply in replies if reply.has_content()):
            step = {name: arrays[name].numpy() - sent for name, sent in self.sent.items()}
            norm = math.sqrt(sum(float((part**2).sum()) for part in step.values()))
            if norm > self.max_norm:
                shorter = {name: self.sent[name] + part * (self.max_norm / norm) for name, part in step.items()}
                arrays.update({name: Array(np.asarray(values)) for name, values in shorter.items()})
        return super().aggregate_train(server_round, replies)

"""Algorithms with personal models in plain PyTorch, from their papers' equations; beside `plain`."""

import copy

import torch
from torch.nn.functional import cross_entropy


def loss(clients, number, state):
    """Return the loss of a model on a client's test set."""
    return float(cross_entropy(*clients.outputs(number, state)))


class Training:
    """A model of a client's with an optimizer of those of its weights that are named; all of them by default."""

    def __init__(self, clients, number, state, names=None):
        self.model, train = copy.deepcopy(clients.model), clients.config.train
        self.model.load_state_dict(state)
        self.inputs, self.labels = clients.inputs[number], clients.data[number].labels
        named = [p for name, p in self.model.named_parameters() if names is None or name in names]
        decay = train.weight_decay
        self.optimizer = torch.optim.SGD(named, lr=clients.rate, momentum=clients.momentum, weight_decay=decay)

    def step(self, batch):
        self.optimizer.zero_grad()
        cross_entropy(self.model(self.inputs[batch]), self.labels[batch]).backward()
        self.optimizer.step()

    def state(self):
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


def local(clients, rounds):
    """Return each client's own model after rounds of training alone."""
    own = [clients.start() for _ in clients.sizes]
    for t in range(1, rounds + 1):
        own = [clients.train(i, state, t) for i, state in enumerate(own)]
    return own

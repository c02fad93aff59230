"""Algorithms with personal models in plain PyTorch, from their papers' equations; beside `plain`."""

import copy

import torch
from torch.nn.functional import cross_entropy

from espalier.clients.randomness import client_generator
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import mini_batches
from tests.app.algorithms.plain import two_tiers


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


def ditto(clients, edges, global_rounds, edge_rounds, pull):
    """Ditto within every edge (arXiv:2012.04221, Alg. 1); return the model, and each client's own."""
    own = [None for _ in clients.sizes]

    def round_of_edge(j, members, x, server_round):
        models = {i: clients.train(i, x, server_round) for i in members}
        for i in members:
            own[i] = clients.train(i, own[i] or x, server_round, pull=pull, anchor=x)
        return clients.average(models, members)

    return two_tiers(clients, edges, round_of_edge, global_rounds, edge_rounds), own


def fedrep(clients, edges, global_rounds, edge_rounds, head, head_epochs):
    """FedRep within every edge (arXiv:2102.07078, Alg. 1); return the model, and each client's head."""
    first = {name: tensor for name, tensor in clients.start().items() if name in head}
    body = [name for name in clients.start() if name not in head]
    own = [first for _ in clients.sizes]

    def round_of_edge(j, members, x, server_round):
        models = {}
        for i in members:
            state = {**x, **own[i]}
            for names, epochs in ((head, head_epochs), (body, None)):
                training = Training(clients, i, state, names)
                for batch in clients.batches(i, server_round, epochs):
                    training.step(batch)
                state = training.state()
            models[i], own[i] = state, {name: state[name] for name in head}
        return {**clients.average(models, members), **first}

    return two_tiers(clients, edges, round_of_edge, global_rounds, edge_rounds), own


def fedbabu(clients, edges, global_rounds, edge_rounds, head):
    """FedBABU within every edge (arXiv:2106.06042, Alg. 1); return the model."""
    body = [name for name in clients.start() if name not in head]

    def round_of_edge(j, members, x, server_round):
        models = {}
        for i in members:
            training = Training(clients, i, x, body)
            for batch in clients.batches(i, server_round):
                training.step(batch)
            models[i] = training.state()
        return clients.average(models, members)

    return two_tiers(clients, edges, round_of_edge, global_rounds, edge_rounds)


def fine_tuned(clients, number, state, steps, rate, names=None):
    """Return what plain SGD steps make of a client's model, or of those of its weights that are named."""
    training = Training(clients, number, state, names)
    training.optimizer = torch.optim.SGD(training.optimizer.param_groups[0]["params"], lr=rate)
    order = client_generator(clients.config.seed, number, 0, "fine-tuning")
    how = LocalTraining(batches_per_epoch=steps, batch_size=clients.how.batch_size)
    for batch in mini_batches(clients.sizes[number], how, order):
        training.step(batch)
    return training.state()


def mixed(v, w, mixing):
    return {name: mixing * v[name] + (1 - mixing) * w[name] for name in w}


def apfl(clients, edges, global_rounds, edge_rounds, mixing, *, adapts):
    """APFL within every edge (arXiv:2003.13461, Alg. 1); return the model, each client's v and each client's a."""
    own, shares = [clients.start() for _ in clients.sizes], [mixing for _ in clients.sizes]

    def round_of_edge(j, members, x, server_round):
        models = {}
        for i in members:
            of_w = Training(clients, i, x)
            for batch in clients.batches(i, server_round):
                of_w.step(batch)
                w, v, a = of_w.state(), own[i], shares[i]
                gradient = gradient_at(clients, i, mixed(v, w, a), batch)
                own[i] = {n: v[n] - clients.rate * a * gradient[n] for n in v}
                if adapts:
                    of_a = sum(float(((v[n] - w[n]) * gradient[n]).sum()) for n in v)
                    shares[i] = min(max(a - clients.rate * of_a, 0.0), 1.0)
            models[i] = of_w.state()
        return clients.average(models, members)

    return two_tiers(clients, edges, round_of_edge, global_rounds, edge_rounds), own, shares


def gradient_at(clients, number, state, batch):
    training = Training(clients, number, state)
    cross_entropy(training.model(training.inputs[batch]), training.labels[batch]).backward()
    return {name: parameter.grad for name, parameter in training.model.named_parameters()}


def pfedme(clients, edges, global_rounds, edge_rounds, *, pull, rate, steps, beta):
    """pFedMe within every edge (arXiv:2006.08848, Alg. 1); return the model, and each client's theta."""
    own = [None for _ in clients.sizes]

    def round_of_edge(j, members, x, server_round):
        models = {}
        for i in members:
            theta, w = x, x
            for batch in clients.batches(i, server_round):
                for _ in range(steps):
                    gradient = gradient_at(clients, i, theta, batch)
                    theta = {n: theta[n] - clients.rate * (gradient[n] + pull * (theta[n] - w[n])) for n in x}
                w = {n: w[n] - rate * pull * (w[n] - theta[n]) for n in x}
            models[i], own[i] = w, theta
        average = clients.average(models, members)
        return {n: (1 - beta) * x[n] + beta * average[n] for n in x}

    return two_tiers(clients, edges, round_of_edge, global_rounds, edge_rounds), own

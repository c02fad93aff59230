"""Algorithms in plain PyTorch, on a run's own data, first model and mini-batches: what the app is held against."""

import torch
from torch.nn.functional import cross_entropy

from espalier.app.tasks.images import examples
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.randomness import client_generator
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import mini_batches


class Clients:
    """The clients of a run, and what they compute."""

    def __init__(self, config):
        self.task, self.config, train = build_task(config), config, config.train
        self.how = LocalTraining(train.local_epochs, train.batches_per_epoch, train.batch_size)
        self.rate, self.momentum = train.learning_rate, train.momentum
        self.data = [examples(self.task.data.train, indices.train) for indices in self.task.client_indices]
        self.inputs = [self.task.normaliser()(client.inputs) for client in self.data]
        self.tests = [examples(self.task.data.test, indices.test) for indices in self.task.client_indices]
        self.sizes = [len(client) for client in self.data]
        self.model = self.task.new_model()

    def start(self):
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def batches(self, number, server_round):
        order = client_generator(self.config.seed, number, server_round, "batches")
        return list(mini_batches(self.sizes[number], self.how, order))

    def train(self, number, weights, server_round, drift=None, pull=0.0, anchor=None):
        """Return what a client makes of weights by ``g + pull * (w - anchor)`` and ``drift``, after the momentum."""
        self.model.load_state_dict(weights)
        named = dict(self.model.named_parameters())
        optimizer = torch.optim.SGD(named.values(), lr=self.rate, momentum=self.momentum)
        for batch in self.batches(number, server_round):
            optimizer.zero_grad()
            cross_entropy(self.model(self.inputs[number][batch]), self.data[number].labels[batch]).backward()
            with torch.no_grad():
                for name, parameter in named.items():
                    if pull:
                        parameter.grad += pull * (parameter - anchor[name])
            optimizer.step()
            with torch.no_grad():
                for name, parameter in named.items():
                    if drift:
                        parameter -= self.rate * drift[name]
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def steps(self, number, server_round):
        return len(self.batches(number, server_round))

    def outputs(self, number, weights):
        """Return what a model makes of a client's test set, and the labels of that."""
        self.model.load_state_dict(weights)
        with torch.no_grad():
            return self.model(self.task.normaliser()(self.tests[number].inputs)), self.tests[number].labels

    def weights(self, members):
        equal = self.config.train.weighting == "equal"
        return [1 if equal else self.sizes[i] for i in members]

    def shares(self, members):
        own = self.weights(members)
        return {i: weight / sum(own) for i, weight in zip(members, own, strict=True)}

    def average(self, models, members):
        shares = self.shares(members)
        return {name: sum(models[i][name] * shares[i] for i in members) for name in models[members[0]]}


def two_tiers(clients, edges, train_edge, global_rounds, edge_rounds):
    """Return the global model of FedAvg over edges, each of which `train_edge` trains for a round."""
    equal = clients.config.train.weighting == "equal"
    model, sizes = clients.start(), [1 if equal else sum(clients.weights(members)) for members in edges]
    for t in range(global_rounds):
        made = []
        for j, members in enumerate(edges):
            own = model
            for e in range(1, edge_rounds + 1):
                own = train_edge(j, members, own, t * edge_rounds + e)
            made.append(own)
        shares = [size / sum(sizes) for size in sizes]
        model = {name: sum(m[name] * share for m, share in zip(made, shares, strict=True)) for name in model}
    return model


def scaffold(clients, edges, global_rounds, edge_rounds):
    """SCAFFOLD, option II, within every edge (arXiv:1910.06378, Alg. 1); return model, each c_i and each edge's c."""
    names = [name for name, _ in clients.model.named_parameters()]
    zeros = {name: torch.zeros_like(clients.start()[name]) for name in names}
    of_client = [dict(zeros) for _ in clients.sizes]
    of_edge = [dict(zeros) for _ in edges]

    def round_of_edge(j, members, x, server_round):
        c, models, changes = of_edge[j], {}, []
        for i in members:
            drift = {name: c[name] - of_client[i][name] for name in names}
            models[i] = clients.train(i, x, server_round, drift=drift)
            path = clients.steps(i, server_round) * clients.rate
            new = {n: of_client[i][n] - c[n] + (x[n] - models[i][n]) / path for n in names}
            changes.append({name: new[name] - of_client[i][name] for name in names})
            of_client[i] = new
        of_edge[j] = {name: c[name] + sum(change[name] for change in changes) / len(members) for name in names}
        return clients.average(models, members)

    return two_tiers(clients, edges, round_of_edge, global_rounds, edge_rounds), of_client, of_edge


def feddyn(clients, edges, global_rounds, edge_rounds, alpha):
    """FedDyn within every edge (arXiv:2111.04263, Alg. 1); return the model."""
    zeros = {name: torch.zeros_like(own) for name, own in clients.start().items()}
    q, h = [dict(zeros) for _ in clients.sizes], [dict(zeros) for _ in edges]

    def round_of_edge(j, members, x, server_round):
        models = {}
        for i in members:
            drift = {name: -own for name, own in q[i].items()}
            models[i] = clients.train(i, x, server_round, drift=drift, pull=alpha, anchor=x)
            q[i] = {name: q[i][name] - alpha * (models[i][name] - x[name]) for name in x}
        for name in x:
            h[j][name] = h[j][name] - alpha / len(members) * sum(models[i][name] - x[name] for i in members)
        average = clients.average(models, members)
        return {name: average[name] - h[j][name] / alpha for name in x}

    return two_tiers(clients, edges, round_of_edge, global_rounds, edge_rounds)


def fednova(clients, edges, global_rounds, edge_rounds, pull=0.0):
    """FedNova within every edge (arXiv:2007.07481, eq. 9); return the model."""
    names = [name for name, _ in clients.model.named_parameters()]

    def gradients_in(steps):
        # The change is linear in the gradients: with each of them 1 it is the sum of their coefficients.
        w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=clients.rate, momentum=clients.momentum)
        for _ in range(steps):
            w.grad = 1 + pull * w.detach()
            optimizer.step()
        return -float(w.detach()) / clients.rate

    def round_of_edge(j, members, x, server_round):
        p = clients.shares(members)
        models = {i: clients.train(i, x, server_round, pull=pull, anchor=x) for i in members}
        counts = {i: gradients_in(clients.steps(i, server_round)) for i in members}
        d = {n: sum(p[i] * (x[n] - models[i][n]) / (clients.rate * counts[i]) for i in members) for n in names}
        tau = sum(p[i] * counts[i] for i in members)
        return {n: x[n] - tau * clients.rate * d[n] for n in names}

    return two_tiers(clients, edges, round_of_edge, global_rounds, edge_rounds)


def mtgc(clients, edges, global_rounds, edge_rounds):
    """MTGC (arXiv:2409.18448, Alg. 1); return the model."""
    x, names = clients.start(), [name for name, _ in clients.model.named_parameters()]
    zeros = {name: torch.zeros_like(x[name]) for name in names}
    y = [dict(zeros) for _ in edges]
    for t in range(global_rounds):
        made, paths = [], []
        for j, members in enumerate(edges):
            own, z, path = x, {i: dict(zeros) for i in members}, 0.0
            for e in range(1, edge_rounds + 1):
                server_round, models = t * edge_rounds + e, {}
                for i in members:
                    drift = {name: z[i][name] + y[j][name] for name in names}
                    models[i] = clients.train(i, own, server_round, drift=drift)
                steps = {clients.steps(i, server_round) for i in members}
                assert len(steps) == 1  # the paper's H
                rate = steps.pop() * clients.rate
                own, path = clients.average(models, members), path + rate
                z = {i: {n: z[i][n] + (models[i][n] - own[n]) / rate for n in names} for i in members}
            made.append(own)
            paths.append(path)
        equal = clients.config.train.weighting == "equal"
        sizes = [1 if equal else sum(clients.sizes[i] for i in members) for members in edges]
        x = {n: sum(m[n] * (s / sum(sizes)) for m, s in zip(made, sizes, strict=True)) for n in x}
        y = [{n: y[j][n] + (made[j][n] - x[n]) / paths[j] for n in names} for j in range(len(edges))]
    return x

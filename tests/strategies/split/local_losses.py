"""Federations whose clients train by a local loss, and the same in plain PyTorch."""

import copy
from collections import OrderedDict
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.half import ClientHalf
from espalier.clients.messages.split_names import AUXILIARY_HEAD, SPLIT_LOCAL
from espalier.clients.split.local_loss import train_by_local_loss
from espalier.strategies.split.averages import average
from tests.strategies.split.federation import SGD, Federation, batches_of

RATE = 0.05


def head_of(*layers):
    """Return an auxiliary head; the same for the same layers."""
    torch.manual_seed(3)
    made = [make() for make in layers]
    return nn.Sequential(OrderedDict([(AUXILIARY_HEAD, nn.Sequential(*made))])).double()


def pooled_head():
    """Behind the first block of `tiny_model`: images of four channels."""
    return head_of(lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten, lambda: nn.Linear(4, 3))


class LocalFederation(Federation):
    """Clients with auxiliary heads."""

    def __init__(self, head, **options):
        super().__init__(**options)
        half = ClientHalf(handlers={SPLIT_LOCAL: train_by_local_loss})
        self.tasks = [replace(task, auxiliary=head, half=half) for task in self.tasks]
        self.head = head

    def start(self, *, with_heads):
        """Return what travels at first."""
        model = self.make_model()
        if with_heads:
            for name, part in self.head.named_children():
                model.add_module(name, copy.deepcopy(part))
        return model


def local_round(federation, client, server_round, front, head, every, *, trains_head):
    """Train a client's blocks by the head's loss; return them, the head, and the mini-batches that go up."""
    front, head, uploads = copy.deepcopy(front).train(), copy.deepcopy(head).train(), []
    optimizers = [SGD(front.parameters())] + ([SGD(head.parameters())] if trains_head else [])
    for number, (inputs, labels) in enumerate(batches_of(federation, client, server_round)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        activations = front(inputs)
        if every and number % every == 0:
            uploads.append((activations.detach().clone(), labels))
        cross_entropy(head(activations), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
    return front, head, uploads


def train_server(server, optimizer, uploads):
    for activations, labels in uploads:
        optimizer.zero_grad()
        cross_entropy(server(activations), labels).backward()
        optimizer.step()


def fit(head, server, activations, labels, steps, rate):
    """Fit a head to a server's gradients, whose statistics stay."""
    server, head = copy.deepcopy(server).train(), copy.deepcopy(head).train()
    inputs = activations.clone().requires_grad_(True)
    (true,) = torch.autograd.grad(cross_entropy(server(inputs), labels), inputs)
    optimizer = torch.optim.Adam(head.parameters(), lr=rate)
    for _ in range(steps):
        inputs = activations.clone().requires_grad_(True)
        (estimate,) = torch.autograd.grad(cross_entropy(head(inputs), labels), inputs, create_graph=True)
        optimizer.zero_grad()
        ((estimate - true) ** 2).sum().backward()
        optimizer.step()
    return head


def mean_of(states, counts):
    return average(dict(enumerate(states)), dict(enumerate(counts)))


def plain_rounds(federation, cut, every, *, edges, rounds, server_per_client=False, sage=None):
    """Return the whole model after so many rounds, each of one edge round, and the heads of clients.

    `sage` is (rounds between fits, steps, rate, examples kept): each client has a head of its own; None: heads are
    averaged.
    """
    model = federation.make_model().train()
    names = list(model.state_dict())
    front, server = model[:cut], model[cut:]
    heads = {i: copy.deepcopy(federation.head) for i in range(len(federation.sizes))}
    servers = [copy.deepcopy(server) for _ in edges]
    optimizers = [SGD(own.parameters(), momentum=0.5) for own in servers]
    kept = {}
    for number in range(1, rounds + 1):
        made = []
        for own, optimizer, members in zip(servers, optimizers, edges, strict=True):
            own.load_state_dict(server.state_dict())
            states, counts = [], [federation.sizes[i] for i in members]
            for i in members:
                trained, head, uploads = local_round(
                    federation, i, number, front, heads[i], every, trains_head=sage is None
                )
                if server_per_client:
                    mine = copy.deepcopy(server)
                    train_server(mine, SGD(mine.parameters(), momentum=0.5), uploads)
                else:
                    mine = nn.Sequential()
                    train_server(own, optimizer, uploads)
                beside = {} if sage else head.state_dict()
                states.append({**trained.state_dict(), **mine.state_dict(), **beside})
                if uploads:
                    values, labels = (torch.cat(parts) for parts in zip(*uploads, strict=True))
                    before = kept.get(i, (values[:0], labels[:0]))
                    kept[i] = tuple(torch.cat(pair) for pair in zip(before, (values, labels), strict=True))
                    if sage:
                        kept[i] = tuple(part[-sage[3] :] for part in kept[i])
            shared = {} if server_per_client else own.state_dict()
            made.append(({**mean_of(states, counts), **{n: t.clone() for n, t in shared.items()}}, sum(counts)))
            if sage and (number - 1) % sage[0] == 0:
                for i in members:
                    heads[i] = fit(heads[i], own, *kept[i], sage[1], sage[2])
        whole = mean_of(*map(list, zip(*made, strict=True)))
        model.load_state_dict({name: whole[name] for name in names})
        if sage is None:
            for head in heads.values():
                head.load_state_dict({name: whole[name] for name in head.state_dict()})
    return model.state_dict(), heads

"""A small split federation on the in-process Grid, and the same federation unsplit."""

from functools import partial

import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

from espalier.clients.client_app import make_client_app
from espalier.clients.randomness import client_generator
from espalier.clients.task import ClientTask, Examples, LocalTraining
from espalier.clients.whole.training import mini_batches
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical, StrategyEdge, ask_profiles, group_by_edge

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
SGD = partial(torch.optim.SGD, lr=0.05)
SHAPE = (1, 8, 8)


def tiny_model(seed=0):
    """Four blocks, with BatchNorm: three legal cuts."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = nn.Sequential()
        model.add_module("first", nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()))
        model.add_module(
            "second", nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())
        )
        model.add_module("third", nn.Sequential(nn.Linear(96, 16), nn.ReLU()))
        model.add_module("head", nn.Linear(16, 3))
        return model


def examples(count, seed, shape=SHAPE, classes=3):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=generator)
    means = inputs.flatten(1)[:, : 5 * classes].reshape(count, classes, 5).mean(2)
    return Examples(inputs, means.argmax(1))


class Federation:
    """Clients with data of their own; `sizes` holds their numbers of training examples."""

    def __init__(
        self, make_model=tiny_model, *, sizes=(20, 33, 14, 40), test_size=30, shape=SHAPE, classes=3, **training
    ):
        # In float64, so that equal in theory is equal to many digits: in float32 BatchNorm and ReLU blow last bits up.
        self.make_model, self.shape, self.sizes = lambda: make_model().double(), shape, sizes
        settings = LocalTraining(**{"batch_size": 8, "learning_rate": 0.05, **training})
        workspace = self.make_model()
        self.tasks = [
            ClientTask(
                model=workspace,
                train=examples(count, 10 + i, shape, classes),
                test=examples(test_size, 50 + i, shape, classes),
                prepare=lambda x: x.double(),
                training=settings,
                seed=0,
                partition_id=i,
                class_counts=(),
                device=torch.device("cpu"),
            )
            for i, count in enumerate(sizes)
        ]

    def load(self, context):
        return self.tasks[int(context.node_config["partition-id"])]

    def app(self, durable=False):
        return make_client_app(self.load, durable=durable)

    def grid(self, app=None, *, durable=False, seed=0):
        return InProcessGrid(app or self.app(durable), len(self.sizes), seed=seed)

    def split(self, kind, cut, *, make_optimizer=SGD, **options):
        """Return what makes an edge of a split algorithm; `cut` is one number for V2 and SL, else one per client."""
        return lambda name, size: kind(
            self.make_model(),
            cut,
            make_optimizer,
            input_shape=self.shape,
            evaluation=StrategyEdge(FedAvg(**ANY)),
            **options,
        )

    def run(
        self, make_edge=lambda name, size: FedAvg(**ANY), *, num_edges=1, rounds=2, grid=None, start=None, **options
    ):
        """Run rounds and return the list of them."""
        grid = grid or self.grid()
        topology = group_by_edge(ask_profiles(grid), num_edges)
        strategy = Hierarchical(FedAvg(**ANY), make_edge, topology, **options)
        arrays = ArrayRecord((start or self.make_model()).state_dict())
        if any(getattr(edge, "frozen", None) for edge in strategy.edges.values()):
            frozen = next(iter(strategy.edges.values())).frozen
            arrays = ArrayRecord({name: array for name, array in arrays.items() if name not in frozen})
        return list(strategy.rounds(grid, arrays, rounds))


def weights(outcome):
    return outcome.arrays.to_torch_state_dict()


def assert_close(left, right, tolerance=1e-9):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(
            left[name], right[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def every(cut):
    return lambda node_id: cut


def batches_of(federation, client, server_round):
    task = federation.tasks[client]
    order = client_generator(task.seed, client, server_round, "batches")
    return [
        (task.prepare(task.train.inputs[b]), task.train.labels[b])
        for b in mini_batches(len(task.train), task.training, order)
    ]


def momentum_sgd(parameters):
    return SGD(parameters, momentum=0.5)


def model_with_dropout():
    model = tiny_model()
    model.third.add_module("drop", nn.Dropout(0.5))
    return model

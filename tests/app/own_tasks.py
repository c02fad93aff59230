"""Tasks as users write them, for tests."""

import os
import signal
import time
import traceback
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from espalier.app.tasks import Examples, OwnTask, Pool
from espalier.sim.side_by_side import place_here


class Points(OwnTask):
    """Three clouds of points in float64: a tuple of two tensors as the input, blocks that can be split."""

    def __init__(self, spread: float = 0.5) -> None:
        self.spread = spread

    def model(self):
        blocks = OrderedDict(
            join=nn.Sequential(Join(), nn.Linear(2, 8), nn.Tanh()), body=nn.Linear(8, 8), head=nn.Linear(8, 3)
        )
        return nn.Sequential(blocks).double()

    def client_data(self, client, num_clients, seed):
        generator = torch.Generator().manual_seed(1000 * seed + client)
        labels = torch.randint(3, (40,), generator=generator)
        noise = self.spread * torch.randn(2, 40, generator=generator, dtype=torch.float64)
        angles = labels * 2 * torch.pi / 3
        x, y = angles.cos() + noise[0], angles.sin() + noise[1]
        return Examples((x[:30], y[:30]), labels[:30]), Examples((x[30:], y[30:]), labels[30:])


class Few(Points):
    """Clients have 1, 6 and 11 examples to train on, and so on."""

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        few = slice(1 + 5 * client)
        return Examples(tuple(part[few] for part in train.inputs), train.labels[few]), test


class Narrow(Points):
    """A model that takes other inputs than the data."""

    def model(self):
        return nn.Linear(5, 3)


class Wide(Points):
    """Activations of a mini-batch take more than a mebibyte, and those of single precision would take less."""

    def model(self):
        blocks = OrderedDict(join=nn.Sequential(Join(), nn.Linear(2, 5000)), head=nn.Linear(5000, 3))
        return nn.Sequential(blocks).double()


class InPlace(Points):
    """Changes the inputs that it is given."""

    def prepare(self, inputs):
        for part in inputs:
            part.mul_(2)
        return inputs


class InPlaceFigures(Points):
    """Metrics that spoil the outputs."""

    def metrics(self, outputs, labels):
        outputs.zero_()
        return {"zero": 0.0}


class OneOutput(Points):
    """Two classes, told apart by the sign of one output."""

    def model(self):
        return nn.Sequential(OrderedDict(body=super().model()[:2], head=nn.Linear(8, 1).double()))

    def client_data(self, client, num_clients, seed):
        return tuple(Examples(e.inputs, (e.labels > 0).long()) for e in super().client_data(client, num_clients, seed))

    def loss(self, outputs, labels):
        return binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs.dtype))

    def metrics(self, outputs, labels):
        return {"right": ((outputs[:, 0] > 0) == labels).double().mean()}


class Odd(Points):
    """Has one thing of another form than it should."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def model(self):
        model = super().model()
        if self.what == "mask":
            model.join.register_buffer("mask", torch.full((2,), -torch.inf))
        if self.what == "sparse":
            model.join.register_buffer("links", torch.eye(2).to_sparse(), persistent=False)
        if self.what == "outputs":
            model.head = nn.Sequential(model.head, Transposed())
        return model

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        if self.what == "numbers":
            train = Examples(train.inputs, train.labels + 300_000)
        if self.what == "nothing":
            train = Examples(tuple(part[:0] for part in train.inputs), train.labels[:0])
        if self.what == "list":
            train = Examples(train.inputs, train.labels.tolist())
        if self.what == "shape" and client == 2:
            test = Examples(tuple(part[:, None] for part in test.inputs), test.labels)
        return train, test

    def loss(self, outputs, labels):
        if self.what == "many" and len(labels) > 32:
            raise RuntimeError("too many")
        return cross_entropy(outputs, labels)


class Lazy(Points):
    """A model that learns the width of its inputs from the first ones, and a state beside its outputs."""

    def model(self):
        return Stateful(nn.Sequential(Join(), nn.LazyLinear(3, dtype=torch.float64)))

    def loss(self, outputs, labels):
        return cross_entropy(outputs[0], labels)


class Stateful(nn.Sequential):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs, outputs.mean(0, keepdim=True)


class Kept(Points):
    """A model that keeps something else than weights and buffers, or other ones when it has computed."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def model(self):
        return Keeping(self.what)


class Keeping(nn.Sequential):
    def __init__(self, what):
        super().__init__(Join(), nn.Linear(2, 3).double())
        self.what = what
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs):
        if self.what == "another":
            self.register_buffer(f"seen{len(self._buffers)}", torch.zeros(1))
        if self.what == "longer":
            self.seen = torch.zeros(len(self.seen) + 1)
        return super().forward(inputs)

    def get_extra_state(self):
        return torch.tensor([2.5]) if self.what == "tensor" else {"a": 1}

    def set_extra_state(self, state):
        self.extra = state

    def state_dict(self, *arguments, **options):
        if self.what == "fails":
            raise KeyError("seen")
        state = super().state_dict(*arguments, **options)
        if self.what not in ("dict", "tensor"):
            del state["_extra_state"]
        return state


class Named(Points):
    """Inputs by name, in another order at every other client; client 3 may have other names."""

    def __init__(self, third="x"):
        super().__init__()
        self.third = third

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        names = [self.third if client == 3 else "x", "y"][:: 1 - 2 * (client % 2)]
        parts = [1, -1][client % 2]
        return tuple(Examples(dict(zip(names, e.inputs[::parts], strict=True)), e.labels) for e in (train, test))

    def prepare(self, inputs):
        return inputs["x"], inputs["y"]


class Weighted(OwnTask):
    """A loss with weights that ignores a class, and test examples sorted by class: parts have other means than all."""

    def __init__(self, size: int) -> None:
        self.size = size

    def model(self):
        blocks = OrderedDict(
            first=nn.Linear(4, 6), body=nn.Sequential(nn.Tanh(), nn.Linear(6, 6)), head=nn.Linear(6, 4)
        )
        return nn.Sequential(blocks)

    def client_data(self, client, num_clients, seed):
        generator = torch.Generator().manual_seed(client)
        inputs = torch.randn(40 + self.size, 4, generator=generator)
        labels = inputs.argmax(1)
        order = 40 + labels[40:].argsort(descending=True)
        return Examples(inputs[:40], labels[:40]), Examples(inputs[order], labels[order])

    def loss(self, outputs, labels):
        return cross_entropy(outputs, labels, weight=torch.tensor([1.0, 0.05, 1.0, 20.0]), ignore_index=0)


class LabelsInPlace(Points):
    """Changes the labels that it is given."""

    def loss(self, outputs, labels):
        return cross_entropy(outputs, labels.add_(1).remainder_(3))


class Transposed(nn.Module):
    def forward(self, outputs):
        return outputs.T


class Typed(Points):
    """A model of some data type."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = getattr(torch, dtype)

    def model(self):
        return super().model().to(self.dtype)

    def prepare(self, inputs):
        return tuple(part.to(self.dtype) for part in inputs)


class Counting(Points):
    """A model that counts its steps where no message holds them."""

    def model(self):
        model = super().model()
        model.body.register_buffer("steps", torch.zeros(()), persistent=False)
        model.body.register_forward_hook(count_step)
        return model


def count_step(body, inputs, outputs):
    body.steps += 1


class Spectral(Points):
    """A model with complex weights."""

    def model(self):
        model = super().model()
        model.register_parameter("spectrum", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
        return model


class Join(nn.Module):
    def forward(self, inputs):
        return torch.stack(inputs, dim=1)


class Steered(Points):
    """With a loss, an optimizer and learning rates of its own."""

    def loss(self, outputs, labels):
        return cross_entropy(outputs, labels, label_smoothing=0.1)

    def optimizer(self, parameters, learning_rate):
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.5)

    def learning_rate(self, rate, server_round):
        return rate / server_round

    def metrics(self, outputs, labels):
        return {"confidence": outputs.softmax(1).amax(1).mean()}


class Recalls(Points):
    """A recall for each class in the test set, of which clients 1, 3, 5, ... have one, and infinite figures."""

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        return train, Examples(test.inputs, test.labels if client % 2 == 0 else torch.ones_like(test.labels))

    def metrics(self, outputs, labels):
        found = outputs.argmax(1)
        recalls = {f"recall-{k}": (found[labels == k] == k).double().mean() for k in labels.unique().tolist()}
        return {**recalls, "spread": 1.0 if len(recalls) > 1 else float("inf")}


class Misfit(Points):
    """Does one thing in another way than it should."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    def model(self):
        return super().model().requires_grad_(self.wrong != "frozen")

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        labels = {"float": test.labels.double(), "negative": -1 - test.labels}.get(self.wrong, test.labels)
        return train, Examples(test.inputs, labels)

    def loss(self, outputs, labels):
        if self.wrong == "raises":
            raise RuntimeError("of mine")
        each = cross_entropy(outputs, labels, reduction="none")
        return {"vector": each, "detached": each.mean().detach(), "number": 0.5}.get(self.wrong, each.mean())

    def learning_rate(self, rate, server_round):
        return {"text": "a", "below": -1.0}.get(self.wrong, rate)

    def optimizer(self, parameters, learning_rate):
        kinds = {"none": lambda *_, **__: None, "closure": torch.optim.LBFGS}
        return kinds.get(self.wrong, torch.optim.SGD)(parameters, lr=learning_rate)

    def metrics(self, outputs, labels):
        figures = {"no mapping": None, "no number": {"a": "much"}, "list": {"a": torch.ones(3)}}
        figures |= {"unnamed": {"": 1.0}, "long": {"a" * 90: 1.0}}
        return figures.get(self.wrong, {self.wrong: 1.0} if self.wrong in TAKEN else {})


class Fails(Points):
    """Fails in one of its methods."""

    def __init__(self, method):
        super().__init__()
        self.method = method

    def _at(self, method):
        if self.method == method:
            raise KeyError("age")

    def model(self):
        self._at("model")
        return super().model()

    def client_data(self, client, num_clients, seed):
        self._at("client_data")
        return super().client_data(client, num_clients, seed)

    def test_data(self):
        self._at("test_data")

    def fingerprint(self):
        self._at("fingerprint")
        return ""

    def prepare(self, inputs):
        self._at("prepare")
        return inputs


TAKEN = (
    *("loss", "num-examples", "train_loss", "round", "clients", "validation-accuracy", "top-1"),
    *("seed", "alpha", "rounds", "uplink_bytes", "test_loss", "best_accuracy", "loss_std_over_clients"),
)


class Rare(Points):
    """A figure that only test sets with all three classes have, and an error for others."""

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        labels = torch.zeros_like(test.labels)
        return train, Examples(test.inputs, test.labels if client == num_clients - 1 else labels)

    def metrics(self, outputs, labels):
        if len(labels.unique()) < 3:
            raise ValueError("too few classes")
        return {"balance": 1.0}


class Caching(Points):
    """A model that keeps a tensor of its first forward pass."""

    def model(self):
        return nn.Sequential(super().model(), Shift())


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.kept = None

    def forward(self, inputs):
        self.kept = torch.ones(3, dtype=torch.float64) if self.kept is None else self.kept
        return inputs + self.kept * self.weight


class InFours(Points):
    """A loss of pairs of examples, for mini-batches that can be parted in fours."""

    def loss(self, outputs, labels):
        quads = outputs.log_softmax(1).view(-1, 4, 3)
        return -(quads[:, 0] * quads[:, 3].exp()).sum(1).mean()

    def client_data(self, client, num_clients, seed):
        parts = super().client_data(client, num_clients, seed)
        return tuple(Examples(tuple(x[:8] for x in part.inputs), part.labels[:8]) for part in parts)


class NumpyRate(Points):
    """Learning rates of NumPy's."""

    def learning_rate(self, rate, server_round):
        return np.float32(rate)


class Singles(Points):
    """One test example for each client, and BatchNorm."""

    def model(self):
        blocks = super().model()
        blocks.body = nn.Sequential(blocks.body, nn.BatchNorm1d(8).double())
        return blocks

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        return train, Examples(tuple(part[:1] for part in test.inputs), test.labels[:1])


class Weighing(Points):
    """Classes weigh differently, so that a loss is the mean by what its examples weigh."""

    def loss(self, outputs, labels):
        return cross_entropy(outputs, labels, weight=torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64))


class Near(Singles):
    """Points that are near each other, so that BatchNorm's variances fall from 1 to almost zero."""

    def client_data(self, client, num_clients, seed):
        parts = Points.client_data(self, client, num_clients, seed)
        return tuple(Examples(tuple(x / 10 for x in part.inputs), part.labels) for part in parts)


class Pair(Points):
    """Two outputs for each example."""

    def model(self):
        return Doubled(super().model())

    def loss(self, outputs, labels):
        return cross_entropy(outputs["scores"], labels)

    def metrics(self, outputs, labels):
        return {"share": (outputs["scores"].argmax(1) == labels).double().mean()}


class Doubled(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def forward(self, inputs):
        scores = self.blocks(inputs)
        return {"scores": scores, "again": 2 * scores}


class Scheduled(Points):
    """With learning rates of its own."""

    def learning_rate(self, rate, server_round):
        return rate / server_round


class Pooled(Points):
    """The server has a test pool of its own."""

    def test_data(self):
        return Examples(
            (torch.tensor([1.0], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64)), torch.tensor([0])
        )

    def fingerprint(self):
        return f"points {self.spread}"


class Values(Points):
    """Labels that are numbers."""

    def client_data(self, client, num_clients, seed):
        return tuple(Examples(e.inputs, e.labels.double()) for e in super().client_data(client, num_clients, seed))

    def loss(self, outputs, labels):
        return ((outputs[:, 0] - labels) ** 2).mean()


class Numbers(Values):
    """Numbers to predict, by the first output."""

    def client_data(self, client, num_clients, seed):
        given = super().client_data(client, num_clients, seed)
        return tuple(Examples(e.inputs, e.inputs[0] * e.inputs[1]) for e in given)


class Several(Points):
    """Several classes of an example, as floats."""

    def client_data(self, client, num_clients, seed):
        return tuple(
            Examples((x, y), torch.stack([x, y, x + y], 1).gt(0).double())
            for x, y in (e.inputs for e in super().client_data(client, num_clients, seed))
        )

    def loss(self, outputs, labels):
        return binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype))


class CountsOfSeveral(Several):
    """The same labels as whole numbers, a row for each example."""

    def client_data(self, client, num_clients, seed):
        return tuple(Examples(e.inputs, e.labels.int()) for e in super().client_data(client, num_clients, seed))


class Counts(Values):
    """Whole numbers that are no classes of this head's."""

    def client_data(self, client, num_clients, seed):
        return tuple(Examples(e.inputs, 2 * e.labels.long()) for e in super().client_data(client, num_clients, seed))


class Jittered(Points):
    """Inputs are moved in training alone, by draws from the generator that it is given."""

    def augment(self, inputs, generator):
        assert torch.is_grad_enabled()
        return tuple(x + torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in inputs)


class Unmoved(Points):
    def augment(self, inputs, generator):
        return inputs


class BadlyMoved(Points):
    def augment(self, inputs, generator):
        return inputs[2]


class Unmeasured(Points):
    """Client 2 has test inputs that were not measured."""

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        return train, Examples(tuple(x * torch.nan for x in test.inputs), test.labels) if client == 2 else test


class NoData(OwnTask):
    def model(self):
        return nn.Linear(1, 1)


class Uneven(Points):
    """One label too few."""

    def client_data(self, client, num_clients, seed):
        train, test = super().client_data(client, num_clients, seed)
        return Examples(train.inputs, train.labels[1:]), test


class One(Points):
    """Training examples alone."""

    def client_data(self, client, num_clients, seed):
        return super().client_data(client, num_clients, seed)[0]


class Whole(Points):
    """A model in one piece."""

    def model(self):
        return nn.Sequential(Join(), nn.Linear(2, 3).double())


class Branches(Points):
    """Blocks that pass on more than a tensor."""

    def model(self):
        return nn.Sequential(OrderedDict(two=Two(), join=Join(), head=nn.Linear(2, 3).double()))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, inputs):
        return inputs[0] * self.scale, inputs[1]


class NotATask:
    pass


STAGES = {
    "train": {"train", "train_accumulated", "forward"},
    "evaluate": {"evaluate", "evaluation_activations"},
    "heads": {"fine_tuning_features"},
}


class Mortal(Points):
    """Kills its process once in a client's training, evaluation and fine-tuning, unless that is the run's own process.

    The figures are those of `Points`.
    """

    def __init__(self, folder: str = "", driver: int = 0) -> None:
        super().__init__()
        self.folder = folder
        self.driver = driver

    def prepare(self, inputs):
        if os.getpid() != self.driver:
            doing = {frame.name for frame in traceback.extract_stack()}
            for stage, functions in STAGES.items():
                if doing & functions and is_first(Path(self.folder) / f"died-in-{stage}"):
                    os.kill(os.getpid(), signal.SIGKILL)
        return inputs


def is_first(mark):
    """Return whether no process has made this file before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class SharedOut(OwnTask):
    """Three clouds of points that the run shares out."""

    def __init__(self, labels: str = "classes") -> None:
        self.labels = labels

    def model(self):
        return nn.Linear(2, 3)

    def pool(self):
        train, test = (self._examples(size, seed) for size, seed in ((300, 0), (60, 1)))
        return (train, test) if self.labels == "no pool" else Pool(train, test)

    def loss(self, outputs, labels):
        return cross_entropy(outputs, labels.long())

    def _examples(self, size, seed):
        labels = torch.arange(size) % 3
        points = torch.nn.functional.one_hot(labels)[:, :2] + 0.3 * torch.randn(
            size, 2, generator=torch.Generator().manual_seed(seed)
        )
        if self.labels == "untrained" and seed == 0:
            labels = labels % 2
        return Examples(points, labels.float() if self.labels == "numbers" else labels)


class Measured(SharedOut):
    """Prepares inputs by what the pool told it."""

    def pool(self):
        found = super().pool()
        self.mean = found.train.inputs.mean(0)
        return found

    def prepare(self, inputs):
        return inputs - self.mean


class Broken(Points):
    """Has no data of client 1, and tells how many there are."""

    def client_data(self, client, num_clients, seed):
        if client == 1:
            raise OSError("no such file")
        return super().client_data(client, num_clients, seed)

    def num_examples(self, client, num_clients, seed):
        return tuple(map(len, super().client_data(client, num_clients, seed)))

    def test_data(self):
        return super().client_data(0, 1, 0)[1]


class Untold(Broken):
    """The same, but it does not tell."""

    def num_examples(self, client, num_clients, seed):
        return None


class Noisy(Points):
    """Inputs with noise that PyTorch's generator gives, in training and in evaluations."""

    def prepare(self, inputs):
        return tuple(part + 0.1 * torch.randn_like(part) for part in inputs)


class SideBySide(Points):
    """Says that it is safe in threads."""

    side_by_side = True

    def prepare(self, inputs):
        return tuple(part * 2 for part in inputs)


class Placed(SideBySide):
    """Tells which thread of those side by side prepares what, for gradients or without."""

    seen: ClassVar[set[tuple[bool, int]]] = set()

    def prepare(self, inputs):
        time.sleep(0.005)
        self.seen.add((torch.is_grad_enabled(), place_here()))
        return super().prepare(inputs)


class FalselySideBySide(Noisy):
    """Says so, too, and draws."""

    side_by_side = True


class FalselyBesideDropout(FalselySideBySide):
    """Says so, too, and draws beside a model with dropout, which may."""

    def model(self):
        model = super().model()
        model.body = nn.Sequential(nn.Dropout(0.2), model.body)
        return model


class Attending(SideBySide):
    """With a layer that drops by itself, and one of PyTorch's for it."""

    def model(self):
        model = super().model()
        layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.2, batch_first=True).double()
        model.body = nn.Sequential(nn.Unflatten(1, (1, 8)), layer, nn.Flatten(), model.body)
        return model


class InTurn(SideBySide):
    """Says that it is not."""

    side_by_side = False


class Leaping(Points):
    """Makes steps in the first round that are far too long."""

    def learning_rate(self, rate, server_round):
        return 1e300 if server_round == 1 else rate


class Interrupting(SideBySide):
    """Sends the interrupt of a terminal, once, when the second global round has begun, and trains for ever."""

    def __init__(self, sent: str) -> None:
        super().__init__()
        self.sent = Path(sent)

    def learning_rate(self, rate, server_round):
        if server_round == 3:
            with suppress(FileExistsError):
                self.sent.touch(exist_ok=False)
                signal.raise_signal(signal.SIGINT)
            while True:
                sum(range(1000))
        return rate

"""A user's own task, as the rest of the app asks for it."""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from inspect import getsourcefile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import error_line
from espalier.app.settings.sections import Data
from espalier.app.tasks.fitting import are_classes, check_fit, try_cuts
from espalier.app.tasks.held_back import kept_and_held
from espalier.app.tasks.node import ClientNode
from espalier.app.tasks.own import OwnTask, Pool
from espalier.app.tasks.partition import SHARING_KEYS, ClientIndices, partition_of
from espalier.app.tasks.schemes import EVEN
from espalier.app.tasks.task import Task
from espalier.app.tasks.trial import MisfitError, Tried, named
from espalier.clients.messages.frames import Format
from espalier.clients.messages.profile import MOST_CLASSES
from espalier.clients.messages.train import ACCURACY
from espalier.clients.shared.cut import Cut
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.shared.lazy_layers import draw_weights, lacks_weights
from espalier.clients.shared.nested import concatenate, map_tensors, rows_on, tensors_of
from espalier.clients.task import ClientTask, Examples, LocalTraining, Objective

# The methods of a user's own that are called while clients train and are evaluated.
CALLED_BY_CLIENTS = ("prepare", "augment", "loss", "metrics", "optimizer", "learning_rate")


class AdaptedTask(Task):
    """What `espalier.app.tasks.OwnTask` describes, with the settings of a run.

    Parameters
    ----------
    section : Data
        Names the user's class, with its arguments, and says how its pool is shared out, if it has one.
    training : LocalTraining
        How clients train.
    num_clients : int
        Clients of the run.
    seed : int
        Decides data, initial weights and the clients' randomness.
    device : torch.device
        Where models compute.
    num_edges : int
        Edges of the run.
    has_pool : bool
        The server's test pool is here.
    splits_for : str
        The algorithm that splits the model; empty for one that does not.

    Raises
    ------
    UserError
        If there is no such class, it can't be made, or has no pool that these settings could share out.
    """

    has_own_model = True
    own: OwnTask

    def __init__(
        self,
        section: Data,
        training: LocalTraining,
        num_clients: int,
        seed: int,
        device: torch.device,
        *,
        num_edges: int,
        has_pool: bool,
        splits_for: str,
    ) -> None:
        self.section = section
        self.spec = section.task
        self.num_edges = num_edges
        self.num_clients = num_clients
        self.seed = seed
        self.device = device
        self.has_pool = has_pool
        self.splits_for = splits_for
        self.validation_share = section.validation_share
        self.own = own = self._made()
        self.has_own_methods = any(map(self._has_own, CALLED_BY_CLIENTS))
        self.side_by_side = own.side_by_side
        self.has_corners = self._has_own("corner")
        self.training = training
        if self._has_own("optimizer"):
            self.training = replace(self.training, optimizer=own.optimizer)
        if self._has_own("learning_rate"):
            self.training = replace(self.training, schedule=own.learning_rate)
        if self._has_own("loss"):
            self.objective = Objective(own.loss, self._metrics, self._test_loss)
        else:
            self.objective = Objective(metrics=self._metrics)

    def refused(self, allowed: str) -> UserError:
        """Return the error that names the task and says what is allowed."""
        return bad_value(self.spec.key, self.spec.text, allowed)

    @cached_property
    def pool(self) -> Examples:
        """The server's test pool."""
        with self._does("test_data()"):
            given = self.own.test_data()
        if given is not None:
            return self._checked(given, "test_data()")
        if self._shares_out:
            return self._to_share_out.test
        tests = [self.client_examples(client)[1] for client in range(self.num_clients)]
        first, *others = map(_form_of, tests)
        for client, form in enumerate(others, 1):
            if form != first:
                allowed = f"one whose client_data() gives all clients rows of one form, as client 0 {first},"
                raise self.refused(f"{allowed} not {form} as client {client}")
        return Examples(concatenate([e.inputs for e in tests]), torch.cat([e.labels for e in tests]))

    def corners(self, client: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of those weights of which a client has but a corner."""
        if not self.has_corners:
            return {}
        found: dict[str, tuple[int, ...]] = {}
        for name, whole in self._shapes.items():
            with self._does(f"corner({client}, {name!r}, {whole})"):
                corner = tuple(map(operator.index, self.own.corner(client, name, whole)))
            if len(corner) != len(whole) or not all(1 <= a <= b for a, b in zip(corner, whole, strict=True)):
                raise self.refused(f"one whose corner({client}, {name!r}, {whole}) is within that, not {corner}")
            if corner != whole:
                found[name] = corner
        return found

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(weight.shape) for name, weight in self.new_model().state_dict().items()}

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of an example's labels."""
        return tuple(self.pool.labels.shape[1:])

    @cached_property
    def _tried(self) -> Tried:
        return Tried(self.own.prepare, self.own.metrics, [getsourcefile(type(self.own)) or ""], self.own.augment)

    @cached_property
    def _to_share_out(self) -> Pool:
        """All examples, where the run shares them out."""
        with self._does("pool()"):
            given = self.own.pool()
        if not isinstance(given, Pool):
            raise self.refused(f"one whose pool() returns an espalier.app.tasks.Pool, not a {type(given).__name__}")
        return Pool(
            self._checked(given.train, "pool()", "Examples to train on"),
            self._checked(given.test, "pool()", "Examples to test on"),
        )

    @cached_property
    def client_indices(self) -> list[ClientIndices]:
        """Every client's part of the pool."""
        pool, spec = self._to_share_out, self.section.partition
        labels = [pool.train.labels, pool.test.labels]
        if not all(map(are_classes, labels)):
            if spec.text != EVEN and not spec.module:
                allowed = f"{EVEN!r} or a function of your own for {self.section.source}, whose labels are no classes"
                raise bad_value("partition", spec.text, allowed)
            labels = [torch.zeros(len(one), dtype=torch.int64) for one in labels]
        train, test = (one.numpy() for one in labels)
        if missing := sorted({*test.tolist()} - {*train.tolist()}):
            raise self.refused(f"one whose pool() has examples of each class to train on, not none of {missing[0]}")
        return partition_of(
            self.section,
            train,
            test,
            num_clients=self.num_clients,
            num_edges=self.num_edges,
            seed=self.seed,
            columns=self.columns(),
        )

    def columns(self) -> Mapping[str, np.ndarray]:
        """Return what is known of each example of the pool to share out, beside its label, by name; here nothing."""
        return {}

    def check_data(self) -> None:
        """Load the server's test pool; refuse a model that can't take the data, be split, or be held in parts."""
        with self._fits():
            check_fit(self, self._tried, seed=self.seed, splits_for=self.splits_for, has_pool=self.has_pool)
        self.corners(0)

    def try_cuts(self, cuts: Collection[Cut], form: Format | None) -> None:
        """Raise UserError unless a step through each cut can be made, with the gradients of the whole model."""
        with self._fits():
            try_cuts(self, self._tried, cuts, form, seed=self.seed, splits_for=self.splits_for)

    def data_fingerprint(self) -> str:
        """Return the task's own fingerprint, or a hash of the server's test pool."""
        with self._does("fingerprint()"):
            given = self.own.fingerprint()
        if given:
            return str(given)
        digest = sha256()
        for tensor in (*tensors_of(self.pool.inputs), self.pool.labels):
            digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def new_model(self) -> nn.Module:
        """Return the model with the initial weights that the seed gives."""
        with seeded_torch(self.seed, torch.device("cpu")):
            with self._does("model()"):
                model = self.own.model()
            if not isinstance(model, nn.Module):
                raise self.refused(f"one whose model() returns an nn.Module, not a {type(model).__name__}")
            # Where the server's pool has been read: a client gets these weights, and has no data but its own.
            if "pool" in vars(self) and lacks_weights(model):
                draw_weights(model, self.example_input)
        return self.training.arithmetic.of(model)

    def example_input(self) -> Any:
        """Return the first example of the server's test pool, as the model takes it."""
        example = rows_on(self.pool.inputs, slice(1), torch.device("cpu"))
        with self._does("prepare(inputs)"):
            return self.own.prepare(example)

    def test_examples(self) -> Examples:
        """Return the server's test pool."""
        return self.pool

    def normaliser(self) -> Callable[[Any], Any]:
        """Return what prepares inputs for the model."""
        return self.own.prepare

    def client_examples(self, client: int) -> tuple[Examples, Examples]:
        """Return what a client trains on and is tested on; UserError if it is not of the form."""
        if self._shares_out:
            pool, held = self._to_share_out, self.client_indices[client]
            return _rows_of(pool.train, torch.from_numpy(held.train)), _rows_of(pool.test, torch.from_numpy(held.test))
        what = f"client_data({client}, {self.num_clients}, {self.seed})"
        with self._does(what):
            given = self.own.client_data(client, self.num_clients, self.seed)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise self.refused(f"one whose {what} returns two Examples, to train on and to test on")
        train, test = given
        kind = f"client {client} Examples to"
        return self._checked(train, what, f"{kind} train on"), self._checked(test, what, f"{kind} test on")

    def num_examples(self, client: int) -> tuple[int, int] | None:
        """Return how many examples a client trains on, and is tested on, if the task or its pool can tell."""
        if self._shares_out:
            held = self.client_indices[client]
            return len(self._kept_of(held.train, client)), len(held.test)
        try:
            given = self.own.num_examples(client, self.num_clients, self.seed)
        except FAULTS:  # entered here alone, as this is called for all clients
            with self._does(f"num_examples({client}, {self.num_clients}, {self.seed})"):
                raise
        if given is None:
            return None
        try:
            train, test = map(operator.index, given)
        except (TypeError, ValueError):
            train, test = 0, 0
        if min(train, test) < 1:
            call = f"num_examples({client}, {self.num_clients}, {self.seed})"
            raise self.refused(f"one whose {call} returns two numbers, 1 or more, not {given!r}")
        return len(self._kept_of(np.arange(train), client)) if self.validation_share else train, test

    def class_counts(self, client: int) -> tuple[int, ...]:
        """Return a client's training examples per class, if the run shares out a pool of classes."""
        if not self._shares_out:
            return ()
        kept = self._kept_of(self.client_indices[client].train, client)
        return _class_counts(self._to_share_out.train.labels[torch.from_numpy(kept)])

    def new_client_task(self, model: nn.Module, node: ClientNode) -> ClientTask:
        """Return the task of one client, which works on `model`."""
        test = self.client_examples(node.partition_id)[1]
        train, validation = self.train_and_validation(node.partition_id)
        return ClientTask(
            model=model,
            train=train,
            test=test,
            prepare=self.own.prepare,
            training=self.training,
            seed=self.seed,
            partition_id=node.partition_id,
            class_counts=_class_counts(train.labels),
            device=self.device,
            edge_name=node.edge_name,
            objective=self.objective,
            prepare_draws=not self.side_by_side,
            augment=self.own.augment if self._has_own("augment") else None,
            validation=validation,
            corners=self.corners(node.partition_id),
        )

    def train_and_validation(self, client: int) -> tuple[Examples, Examples | None]:
        """Return what a client trains on, and what it holds back of it; None where the run holds none back."""
        train = self.client_examples(client)[0]
        if not self.validation_share:
            return train, None
        rows = kept_and_held(len(train), self.validation_share, self.seed, client)
        kept, held = (_rows_of(train, torch.from_numpy(part)) for part in rows)
        return kept, held

    def _kept_of(self, rows: np.ndarray, client: int) -> np.ndarray:
        """Return those of a client's rows that it trains on."""
        share = self.validation_share
        return rows[kept_and_held(len(rows), share, self.seed, client)[0]] if share else rows

    def centralised_task(self) -> ClientTask:
        """Return the task of a client with all data, and as many mini-batches as all clients of a flat round."""
        parts = [self.train_and_validation(client)[0] for client in range(self.num_clients)]
        train = Examples(concatenate([e.inputs for e in parts]), torch.cat([e.labels for e in parts]))
        one = self.new_client_task(self.new_model().to(self.device), ClientNode(0))
        whole = replace(self.training, batches_per_epoch=self.training.batches_per_epoch * self.num_clients)
        return replace(one, train=train, test=self.pool, training=whole)

    def _made(self) -> OwnTask:
        """Return the user's object."""
        kind = self.spec.load()
        if not (isinstance(kind, type) and issubclass(kind, OwnTask)):
            raise self.refused("a subclass of espalier.app.tasks.OwnTask")
        if missing := sorted(kind.__abstractmethods__):
            raise self.refused(f"one that has {' and '.join(f'{name}()' for name in missing)}")
        self._shares_out = kind.pool is not OwnTask.pool
        if not self._shares_out:
            if kind.client_data is OwnTask.client_data:
                raise self.refused("one that has client_data() or pool()")
            given, usual = self.section.as_dict(), Data().as_dict()
            for key in SHARING_KEYS:
                if given[key] != usual[key]:
                    allowed = f"{usual[key]!r}, the default, for {self.section.source}, which has no pool()"
                    raise bad_value(key, given[key], allowed)
        return self.spec.call(kind)

    @contextmanager
    def _fits(self) -> Iterator[None]:
        """Make an error that names the task of what does not fit."""
        try:
            yield
        except MisfitError as error:
            raise self.refused(str(error)) from None

    @contextmanager
    def _does(self, call: str) -> Iterator[None]:
        """Make one line of whatever goes wrong in a method of the user's, with the line of the file."""
        with self._fits(), named(f"one whose {call} does not fail", self._tried):
            yield

    def _has_own(self, method: str) -> bool:
        return getattr(type(self.own), method) is not getattr(OwnTask, method)

    def _checked(self, examples: Any, what: str, kind: str = "Examples") -> Examples:
        """Return examples; UserError unless there are some, with labels in a tensor."""
        try:
            if not isinstance(examples.labels, Tensor):
                raise TypeError(f"labels are a {type(examples.labels).__name__}, not a tensor")
            if not len(examples):
                raise ValueError("none")
        except (AttributeError, TypeError, ValueError) as error:
            allowed = f"one whose {what} gives {kind}, at least one, with a label for each ({error_line(error)})"
            raise self.refused(allowed) from None
        if are_classes(examples.labels) and (largest := int(examples.labels.max())) >= MOST_CLASSES:
            allowed = f"one whose {what} gives classes from 0 to {MOST_CLASSES - 1}, not {largest}"
            raise self.refused(f"{allowed}; numbers that are no classes are allowed as floats")
        return examples

    def _test_loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the user's loss in an evaluation: what fails there is the task's fault, and no client's."""
        with self._does("loss(outputs, labels)"):
            return self.own.loss(outputs, labels)

    def _metrics(self, outputs: Any, labels: Tensor) -> Mapping[str, float]:
        found = dict[str, float]()  # first, as what is the user's may work in place
        if are_classes(labels) and isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] > 1:
            found[ACCURACY] = float((outputs.argmax(1) == labels).sum()) / len(labels)
        try:
            with named("one whose metrics(outputs, labels) does not fail", self._tried):
                own = {str(name): float(value) for name, value in self.own.metrics(outputs, labels).items()}
        except MisfitError as error:  # later than the trial, as it may be for other outputs
            raise self.refused(str(error)) from None
        return found | own


def _rows_of(examples: Examples, rows: Tensor) -> Examples:
    return Examples(map_tensors(lambda tensor: tensor[rows], examples.inputs), examples.labels[rows])


def _class_counts(labels: Tensor) -> tuple[int, ...]:
    return tuple(torch.bincount(labels).tolist()) if are_classes(labels) else ()


def _form_of(examples: Examples) -> Any:
    """Return the shapes of an example's tensors, nested as they are, and of its label."""
    return map_tensors(lambda tensor: tuple(tensor.shape[1:]), (examples.inputs, examples.labels))

"""A user's own task, as the rest of the app asks for it."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.fields import FIELDS
from espalier.app.ground.object_spec import ObjectSpec, error_line
from espalier.app.tasks.held_back import kept_and_held
from espalier.app.tasks.node import Node
from espalier.app.tasks.own import OwnTask
from espalier.app.tasks.split_trial import check_blocks, try_cut
from espalier.app.tasks.task import Task
from espalier.app.tasks.trial import CPU, MisfitError, named, spread_over, try_out
from espalier.clients.messages.frames import Format
from espalier.clients.messages.profile import MOST_CLASSES
from espalier.clients.messages.train import ACCURACY
from espalier.clients.shared.cut import Cut, as_blocks
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.shared.nested import concatenate, map_tensors, take, tensors_of
from espalier.clients.task import ClientTask, Examples, LocalTraining, Objective
from espalier.strategies.split.shapes import cut_shapes


class AdaptedTask(Task):
    """What `espalier.app.tasks.OwnTask` describes, with the settings of a run.

    Parameters
    ----------
    spec : ObjectSpec
        Names the user's class, with its arguments.
    training : LocalTraining
        How clients train.
    num_clients : int
        Clients of the run.
    seed : int
        Decides data, initial weights and the clients' randomness.
    device : torch.device
        Where models compute.
    has_pool : bool
        The server's test pool is here.
    splits_for : str
        The algorithm that splits the model; empty for one that does not.
    validation_share : float (default: 0)
        Of each client's training examples, to hold back.

    Raises
    ------
    UserError
        If there is no such class, or it can't be made.
    """

    has_own_model = True

    def __init__(
        self,
        spec: ObjectSpec,
        training: LocalTraining,
        num_clients: int,
        seed: int,
        device: torch.device,
        *,
        has_pool: bool,
        splits_for: str,
        validation_share: float = 0.0,
    ) -> None:
        self.spec = spec
        self.num_clients = num_clients
        self.seed = seed
        self.device = device
        self.has_pool = has_pool
        self.splits_for = splits_for
        self.validation_share = validation_share
        self.own = own = self._made()
        self._loaded: list[tuple[Examples, Examples]] = []
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
        tests = [self.client_examples(client)[1] for client in range(self.num_clients)]
        first, *others = map(_form_of, tests)
        for client, form in enumerate(others, 1):
            if form != first:
                allowed = f"one whose client_data() gives all clients rows of one form, as client 0 {first},"
                raise self.refused(f"{allowed} not {form} as client {client}")
        return Examples(concatenate([e.inputs for e in tests]), torch.cat([e.labels for e in tests]))

    def check_data(self) -> None:
        """Load the server's test pool; refuse a model that can't take the data, or be split where it has to be.

        Where there is a pool, a step of training and an evaluation show what else does not fit.
        """
        self.check_weights()
        if self.splits_for:
            self.check_split()
        elif self.has_pool:
            self.check_model()
        if self.has_pool:
            with seeded_torch(self.seed, torch.device("cpu")):
                try:
                    try_out(self.own, self.new_model, self.pool, self.training, self.objective.loss, FIELDS)
                except MisfitError as error:
                    raise self.refused(str(error)) from None

    def try_cuts(self, cuts: Collection[Cut], form: Format | None) -> None:
        """Raise UserError unless a step through each cut can be made, with the gradients of the whole model."""
        blocks = as_blocks(self.new_model())
        if not (are_classes(self.pool.labels) or all(cut.has_tail(blocks) for cut in cuts)):
            allowed = "one whose labels are classes, integers of shape (N,) from 0, or with a tail-layer any that its"
            raise self.refused(f"{allowed} loss takes, for algorithm = {self.splits_for!r}")
        for cut in cuts:
            try:
                try:
                    self._try_cut(cut, form, 2)
                except MisfitError:  # a loss, or BatchNorm, may need a whole mini-batch
                    self._try_cut(cut, form, self.training.batch_size)
            except MisfitError as error:
                raise self.refused(f"{error}, for algorithm = {self.splits_for!r}") from None

    def _try_cut(self, cut: Cut, form: Format | None, num_examples: int) -> None:
        rows = spread_over(self.pool, num_examples)
        few = Examples(take(self.pool.inputs, rows, CPU), self.pool.labels[rows])
        client = ClientTask(
            model=self.new_model(),
            train=few,
            test=few,
            prepare=self.own.prepare,
            training=self.training,
            seed=self.seed,
            partition_id=0,
            class_counts=(),
            device=CPU,
            objective=self.objective,
        )
        with seeded_torch(self.seed, CPU):
            try_cut(self.own, client, cut, form)

    def check_weights(self) -> None:
        """Raise UserError for weights that can't travel: NumPy has no type for them, or they are not finite."""
        model = self.new_model()
        with self._does("model()'s state_dict()"):
            state = model.state_dict()
        for name, weights in state.items():
            if not isinstance(weights, Tensor):
                allowed = f"one whose model's state_dict() holds tensors, not a {type(weights).__name__} as {name}"
                raise self.refused(f"{allowed}, which would not travel")
            try:
                torch.empty(0, dtype=weights.dtype).numpy()
            except TypeError:
                raise self.refused(f"one whose weights NumPy has a type for, not {weights.dtype} as {name}") from None
            if not (is_lazy(weights) or weights.isfinite().all()):
                allowed = f"one whose weights begin finite, not NaN or Inf as {name}: a buffer that is a constant, such"
                raise self.refused(f"{allowed} as a mask, does not travel with persistent=False")

    @torch.no_grad()
    def check_model(self) -> None:
        """Raise UserError unless the model takes an example."""
        model, example = self.new_model().eval(), self.example_input()
        try:
            model(example)
        except FAULTS as error:  # the model is foreign code
            raise self.refused(f"one whose model takes its data ({error_line(error)})") from None

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
        with seeded_torch(self.seed, torch.device("cpu")), self._does("model()"):
            model = self.own.model()
        if not isinstance(model, nn.Module):
            raise self.refused(f"one whose model() returns an nn.Module, not a {type(model).__name__}")
        return model

    def example_input(self) -> Any:
        """Return the first example of the server's test pool, as the model takes it."""
        example = take(self.pool.inputs, slice(1), torch.device("cpu"))
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
        if self._loaded:
            return self._loaded[client]
        what = f"client_data({client}, {self.num_clients}, {self.seed})"
        with self._does(what):
            given = self.own.client_data(client, self.num_clients, self.seed)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise self.refused(f"one whose {what} returns two Examples, to train on and to test on")
        train, test = given
        kind = f"client {client} Examples to"
        return self._checked(train, what, f"{kind} train on"), self._checked(test, what, f"{kind} test on")

    def new_client_task(self, model: nn.Module, node: Node) -> ClientTask:
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
            class_counts=tuple(torch.bincount(train.labels).tolist()) if are_classes(train.labels) else (),
            device=self.device,
            edge_name=node.edge_name,
            objective=self.objective,
            augment=self.own.augment if self._has_own("augment") else None,
            validation=validation,
        )

    def train_and_validation(self, client: int) -> tuple[Examples, Examples | None]:
        """Return what a client trains on, and what it holds back of it; None where the run holds none back."""
        train = self.client_examples(client)[0]
        if not self.validation_share:
            return train, None
        rows = kept_and_held(len(train), self.validation_share, self.seed, client)
        kept, held = (_rows_of(train, torch.from_numpy(part)) for part in rows)
        return kept, held

    def centralised_task(self) -> ClientTask:
        """Return the task of a client with all data, and as many mini-batches as all clients of a flat round."""
        parts = [self.train_and_validation(client)[0] for client in range(self.num_clients)]
        train = Examples(concatenate([e.inputs for e in parts]), torch.cat([e.labels for e in parts]))
        one = self.new_client_task(self.new_model().to(self.device), Node(0))
        whole = replace(self.training, batches_per_epoch=self.training.batches_per_epoch * self.num_clients)
        return replace(one, train=train, test=self.pool, training=whole)

    def loaded(self) -> list[tuple[Examples, Examples]]:
        """Return every client's examples."""
        return [self.client_examples(client) for client in range(self.num_clients)]

    def take_loaded(self, loaded: list[tuple[Examples, Examples]]) -> None:
        """Take every client's examples; the user's class is asked for none."""
        self._loaded = loaded

    def check_split(self) -> None:
        """Raise UserError unless the model can be split, and has outputs for all classes, where labels are such."""
        model = self.new_model()
        names = [name for name, _ in model.named_children()]
        if not isinstance(model, nn.Sequential) or names[-1:] != ["head"]:
            allowed = "one whose model is an nn.Sequential of named blocks, the last one called head,"
            raise self.refused(f"{allowed} for algorithm = {self.splits_for!r}")
        example = self.example_input()
        try:
            cut_shapes(model, example)
        except FAULTS as error:  # the model is foreign code
            allowed = f"one whose blocks each take what the one before gives, a tensor ({error_line(error)}),"
            raise self.refused(f"{allowed} for algorithm = {self.splits_for!r}") from None
        self.check_model()
        try:
            check_blocks(model, example)
        except MisfitError as error:
            raise self.refused(f"{error}, for algorithm = {self.splits_for!r}") from None
        if not are_classes(self.pool.labels):
            return
        # One output tells two classes apart.
        outputs, largest = max(getattr(model[-1], "out_features", math.inf), 2), int(self.pool.labels.max())
        if largest >= outputs:
            allowed = f"one whose labels are less than {outputs}, by the outputs of its head, not {largest},"
            raise self.refused(f"{allowed} for algorithm = {self.splits_for!r}")

    def _made(self) -> OwnTask:
        """Return the user's object."""
        kind = self.spec.load()
        if not (isinstance(kind, type) and issubclass(kind, OwnTask)):
            raise self.refused("a subclass of espalier.app.tasks.OwnTask")
        if missing := sorted(kind.__abstractmethods__):
            raise self.refused(f"one that has {' and '.join(f'{name}()' for name in missing)}")
        return self.spec.call(kind)

    @contextmanager
    def _does(self, call: str) -> Iterator[None]:
        """Make one line of whatever goes wrong in a method of the user's, with the line of the file."""
        try:
            with named(f"one whose {call} does not fail", self.own):
                yield
        except MisfitError as error:
            raise self.refused(str(error)) from None

    def _has_own(self, method: str) -> bool:
        return getattr(type(self.own), method) is not getattr(OwnTask, method)

    def _checked(self, examples: Any, what: str, kind: str = "Examples") -> Examples:
        """Return examples; UserError unless there are some, with as many labels as rows in each tensor."""
        try:
            if not isinstance(examples.labels, Tensor):
                raise TypeError(f"labels are a {type(examples.labels).__name__}, not a tensor")
            sizes = {len(tensor) for tensor in (*tensors_of(examples.inputs), examples.labels)}
            if len(sizes) != 1 or sizes == {0}:
                raise ValueError(f"{sorted(sizes)} rows")
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
        try:
            with named("one whose metrics(outputs, labels) does not fail", self.own):
                own = {str(name): float(value) for name, value in self.own.metrics(outputs, labels).items()}
        except MisfitError as error:  # later than the trial, as it may be for other outputs
            raise self.refused(str(error)) from None
        has_scores = isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] > 1
        if not (are_classes(labels) and has_scores):
            return own
        return {ACCURACY: float((outputs.argmax(1) == labels).sum()) / len(labels)} | own


def _rows_of(examples: Examples, rows: Tensor) -> Examples:
    return Examples(map_tensors(lambda tensor: tensor[rows], examples.inputs), examples.labels[rows])


def _form_of(examples: Examples) -> Any:
    """Return the shapes of an example's tensors, nested as they are, and of its label."""
    return map_tensors(lambda tensor: tuple(tensor.shape[1:]), (examples.inputs, examples.labels))


def are_classes(labels: Tensor) -> bool:
    """Return whether labels are class indices, one for each example."""
    is_integer = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return is_integer and labels.dim() == 1 and bool((labels >= 0).all())

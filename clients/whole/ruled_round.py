"""A client's round of whole models, as its algorithm's rule goes on; whatever trains carries out its passes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import ConfigRecordValues, Context, Message
from torch import Tensor

from ..memory import OWN_WEIGHTS, keep, kept
from ..messages.train import LOCAL_ROUNDS, Train
from ..shared.arrays import to_weights
from ..shared.correction import Weights
from ..shared.local_round import BadRuleError, Begun, Done, Learned, Pass, as_pass, begun_by
from ..shared.tied import as_loaded, other_names, with_other_names
from ..task import ClientTask, LocalTraining

NO_EXAMPLES = "it has no training examples yet"


@dataclass(frozen=True)
class LocalResult:
    """What a client has learned in a round.

    Parameters
    ----------
    instruction : Train
        What it was told.
    training : LocalTraining
        How it trained.
    weights : Mapping[str, Tensor]
        The state of its model that goes to the edge.
    loss : float
        Over the examples that it saw, see `Done.loss`.
    num_examples : int
        The training examples that it has.
    told : Mapping[str, Tensor] (default: none)
        What the edge's half of the algorithm is told.
    """

    instruction: Train
    training: LocalTraining
    weights: Mapping[str, Tensor]
    loss: float
    num_examples: int
    told: Mapping[str, Tensor] = field(default_factory=dict)


class RuledRound:
    """A round of one client. While it is not over, a pass is `due`: from `start`, by `training`.

    Parameters
    ----------
    message : Message
        The instruction to train.
    context : Context
        Has what the client keeps.
    task : ClientTask
        Model, data, settings and the algorithm's half.
    """

    def __init__(self, message: Message, context: Context, task: ClientTask) -> None:
        self.instruction = Train.from_content(message.content)
        self._training = planned(task.training, self.instruction.config).at(self.instruction.server_round)
        self._task, self._context = task, context
        self._others = other_names(task.model)
        self._num_examples = task.num_train(self.instruction.server_round)
        if not self._num_examples:
            raise ValueError(NO_EXAMPLES)
        own = kept(context, OWN_WEIGHTS) or task.own
        self._start = as_loaded({**to_weights(self.instruction.arrays), **own}, self._others)
        self._trained = {n: self._start[n] for n, p in task.model.named_parameters() if p.requires_grad}
        sent = {} if self.instruction.sent is None else to_weights(self.instruction.sent)
        num_batches = self._num_batches(self._training)
        begun = Begun(self._start, self._trained, sent, kept(context), tuple(task.own), num_batches)
        self._conversation = begun_by(task.half.rule, begun)
        self._loss: float | None = None
        self._next = self._went_on(lambda: next(self._conversation))

    @property
    def is_over(self) -> bool:
        """Whether no pass is due."""
        return isinstance(self._next, Done)

    @property
    def start(self) -> Weights:
        """The state of the model that the due pass starts from."""
        due = self._passing
        return self._start if due.start is None else with_other_names(due.start, self._others)

    @property
    def due(self) -> Pass:
        """The due pass, a strategy's proximal term in its correction."""
        due, pull = self._passing, self.instruction.proximal_mu
        return replace(due, correction=due.correction.pulled(pull, self._trained)) if pull else due

    @property
    def training(self) -> LocalTraining:
        """How the due pass trains."""
        epochs = None if self.is_over else self._passing.epochs
        return self._training if epochs is None else replace(self._training, local_epochs=epochs)

    def learned(self, state: Weights, loss: float) -> None:
        """Go on with what came of the due pass: the state of the model, and the mean loss."""
        self._loss = loss if self._loss is None else self._loss
        training, due = self.training, self.due
        steps = self._num_batches(training) if due.batches is None else len(due.batches)
        path = training.learning_rate * steps
        told = Learned(state, path, steps, training.momentum, due.correction.pull, loss)
        self._next = self._went_on(lambda: self._conversation.send(told))

    def result(self) -> LocalResult:
        """Return what the client has learned; it keeps what its rule and its algorithm say, where that is of use."""
        done, task = self._next, self._task
        assert isinstance(done, Done)
        assert self._loss is not None
        loss = self._loss if done.loss is None else done.loss
        learned = with_other_names(done.weights, self._others)
        if (task.own or done.kept is not None) and math.isfinite(loss) and done.is_of_use:
            keep(self._context, done.kept)
            if task.own:
                keep(self._context, {name: learned[name] for name in task.own}, OWN_WEIGHTS)
        weights = {name: tensor for name, tensor in learned.items() if name not in task.own}
        return LocalResult(self.instruction, self._training, weights, loss, self._num_examples, done.told)

    def _went_on(self, go_on: Callable[[], Pass]) -> Pass | Done:
        """Return what the rule does next; BadRuleError for one that keeps to no conversation."""
        try:
            return as_pass(go_on())
        except StopIteration as stop:
            if not isinstance(stop.value, Done) or self._loss is None:
                what = type(stop.value).__name__ if self._loss is not None else "before any pass"
                raise BadRuleError(f"the algorithm's rule returned {what}: allowed is Done, after a pass") from None
            return stop.value

    @property
    def _passing(self) -> Pass:
        assert isinstance(self._next, Pass)
        return self._next

    def _num_batches(self, training: LocalTraining) -> int:
        return training.num_steps(self._num_examples)


def planned(training: LocalTraining, config: Mapping[str, ConfigRecordValues]) -> LocalTraining:
    """Return how to train by the plan in an instruction: with ``local-rounds`` local epochs where it is given."""
    if LOCAL_ROUNDS not in config:
        return training
    return replace(training, local_epochs=int(config[LOCAL_ROUNDS]))  # type: ignore[arg-type]

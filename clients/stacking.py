"""Several clients' instructions to train, answered at once; see `espalier.sim.in_process_grid.Stack`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from flwr.app import Context, Message

from .messages.arrays import to_weights
from .messages.train import TRAIN, TRAIN_ACCUMULATED, Train
from .stacked_model import StackedModel
from .stacked_training import stacked_sgd
from .task import ClientTask
from .training import LocalResult, accumulated_reply, model_reply, planned

REPLIES = {TRAIN: model_reply, TRAIN_ACCUMULATED: accumulated_reply}


class TrainingStack:
    """Trains the whole models of several clients side by side.

    Parameters
    ----------
    load_task : Callable[[Context], ClientTask]
        Called for every message. All tasks have models of one architecture.
    size : int
        The most clients at a time.
    """

    def __init__(self, load_task: Callable[[Context], ClientTask], size: int) -> None:
        self.size = size
        self._load_task = load_task
        self._model: StackedModel | None = None

    def accepts(self, message: Message) -> bool:
        """Return whether a message is an instruction to train a whole model."""
        return message.has_content() and message.metadata.message_type in REPLIES

    def __call__(self, messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        """Return the replies, one per message.

        Raises
        ------
        Exception
            If a client can't train. Who it is shows when each is answered by itself.
        """
        tasks = [self._load_task(context) for context in contexts]
        instructions = [Train.from_content(message.content) for message in messages]
        trainings = [
            planned(task.training, instruction.config).at(instruction.server_round)
            for task, instruction in zip(tasks, instructions, strict=True)
        ]
        # Edges may be a round apart, and a strategy may send clients different settings.
        alike: dict[object, list[int]] = {}
        for i, (instruction, training) in enumerate(zip(instructions, trainings, strict=True)):
            terms = instruction.server_round, instruction.proximal_mu, replace(training, local_epochs=1)
            alike.setdefault(terms, []).append(i)
        replies: dict[int, Message] = {}
        for those in alike.values():
            own, first = [tasks[i] for i in those], instructions[those[0]]
            self._model = self._model or StackedModel(own[0].model)
            starts = [to_weights(instructions[i].arrays) for i in those]
            how = [trainings[i] for i in those]
            states, losses = stacked_sgd(self._model, own, starts, first.server_round, how, first.proximal_mu)
            for i, state, loss in zip(those, states, losses, strict=True):
                num_examples = tasks[i].num_train(first.server_round)
                result = LocalResult(instructions[i], trainings[i], state, loss, num_examples)
                replies[i] = REPLIES[messages[i].metadata.message_type](messages[i], result)
        return [replies[i] for i in range(len(messages))]

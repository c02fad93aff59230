"""Several clients' instructions to train, answered at once; see `espalier.sim.in_process_grid.Stack`."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from flwr.app import Context, Message
from torch import nn

from ..half import ClientHalf
from ..messages.seconds import ToldSeconds
from ..messages.split import SplitFused
from ..messages.split_names import SPLIT_FUSED
from ..messages.train import TRAIN, TRAIN_ACCUMULATED, proximal_mu
from ..shared.cut import Cut, as_blocks
from ..shared.lanes import Lanes
from ..task import ClientTask
from ..whole.clipping import is_told_to_clip
from ..whole.ruled_round import RuledRound
from ..whole.training import accumulated_reply, model_reply
from .correction import alike
from .model import StackedModel
from .split import Half, Halves
from .training import stacked_sgd

REPLIES = {TRAIN: model_reply, TRAIN_ACCUMULATED: accumulated_reply}


class TrainingStack:
    """Trains several clients side by side: whole models, or halves against edges of this process.

    Parameters
    ----------
    load_task : Callable[[Context], ClientTask]
        Called for every message. All tasks have models of one architecture.
    size : int
        The most clients at a time.
    lanes : Lanes
        Where halves find their edges.
    half : ClientHalf
        The algorithm's, which all tasks have: what answers messages of a type itself does so one by one, and halves of
        a model train by another rule one by one.
    """

    def __init__(self, load_task: Callable[[Context], ClientTask], size: int, lanes: Lanes, half: ClientHalf) -> None:
        self.size = size
        self._load_task = load_task
        self._lanes = lanes
        self._half = half
        self._models: dict[int | None, StackedModel] = {}  # by the cut; None: whole

    def accepts(self, message: Message) -> bool:
        """Return whether a message is an instruction to train a whole model, or the blocks in front of one cut."""
        kind = message.metadata.message_type
        if not message.has_content() or kind not in (*REPLIES, SPLIT_FUSED) or self._half.answers_itself(kind):
            return False
        if kind in REPLIES:
            return not is_told_to_clip(message)
        instruction = SplitFused.from_content(message.content)
        return self._half.is_plain and instruction.tail is None and not proximal_mu(instruction.config)

    def __call__(self, messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message | BaseException]:
        """Return the replies, one per message; a client that fails against its edge has failed alone.

        Clients that train side by side take, each, the seconds of all of them together.

        Raises
        ------
        Exception
            If a client can't train. Who it is shows when each is answered by itself.
        """
        started, at_edges = time.perf_counter(), 0.0
        tasks = [self._load_task(context) for context in contexts]
        is_split = [message.metadata.message_type == SPLIT_FUSED for message in messages]
        whole = [i for i, splits in enumerate(is_split) if not splits]
        halves = {i: Half.of(messages[i], contexts[i], tasks[i]) for i, splits in enumerate(is_split) if splits}
        replies: dict[int, Message | BaseException] = {}
        replies |= self._train_whole({i: messages[i] for i in whole}, contexts, tasks)
        # Edges may be a round apart, and clients may have cuts of their own.
        together: dict[Hashable, list[int]] = {}
        for i, half in halves.items():
            terms = half.instruction.server_round, half.instruction.cut, replace(half.training, local_epochs=1)
            together.setdefault(terms, []).append(i)
        for those in together.values():
            trained, seconds = self._train_halves({i: halves[i] for i in those}, messages)
            for i, reply in trained.items():
                try:
                    if isinstance(reply, Message):
                        reply = tasks[i].as_travels(reply, messages[i], contexts[i])
                    replies[i] = reply
                except ValueError as error:  # it alone has failed: the others have trained against their edges
                    replies[i] = error
            at_edges += seconds
        told = ToldSeconds(time.perf_counter() - started - at_edges, waiting=at_edges)
        for reply in replies.values():
            if isinstance(reply, Message):
                told.add_to(reply)
        return [replies[i] for i in range(len(messages))]

    def _train_whole(
        self, messages: Mapping[int, Message], contexts: Sequence[Context], tasks: Sequence[ClientTask]
    ) -> dict[int, Message]:
        """Return the replies to instructions to train whole models."""
        rounds = {i: RuledRound(message, contexts[i], tasks[i]) for i, message in messages.items()}
        while due := {i: own for i, own in rounds.items() if not own.is_over}:
            passes = {i: own.due for i, own in due.items()}
            # A strategy may send clients different settings.
            together: dict[Hashable, list[int]] = {}
            for i, own in due.items():
                terms = own.instruction.server_round, alike(passes[i]), replace(own.training, local_epochs=1)
                together.setdefault(terms, []).append(i)
            for those in together.values():
                server_round = due[those[0]].instruction.server_round
                states, losses = stacked_sgd(
                    self._model(None, tasks[those[0]].model),
                    [tasks[i] for i in those],
                    [due[i].start for i in those],
                    server_round,
                    [due[i].training for i in those],
                    [passes[i] for i in those],
                )
                for i, state, loss in zip(those, states, losses, strict=True):
                    due[i].learned(state, loss)
        replies = dict[int, Message]()
        for i, own in rounds.items():
            reply = REPLIES[messages[i].metadata.message_type](messages[i], own.result())
            replies[i] = tasks[i].as_travels(reply, messages[i], contexts[i])
        return replies

    def _train_halves(
        self, halves: Mapping[int, Half], messages: Sequence[Message]
    ) -> tuple[dict[int, Message | BaseException], float]:
        """Return the replies to instructions to train halves of one cut, and the seconds that their edges took."""
        clients = list(halves.values())
        blocks = as_blocks(clients[0].task.model)
        cut = Cut.of(blocks, clients[0].instruction.cut)
        together = Halves(self._model(cut.first, cut.front(blocks)), clients)
        together.train(self._lanes)
        replies = {
            i: together.left.get(half.node_id) or Message(together.result(row).to_content(), reply_to=messages[i])
            for row, (i, half) in enumerate(halves.items())
        }
        return replies, together.seconds_at_edges

    def _model(self, cut: int | None, model: nn.Module) -> StackedModel:
        if cut not in self._models:
            self._models[cut] = StackedModel(model)
        return self._models[cut]

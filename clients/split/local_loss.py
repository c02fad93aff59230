"""Training by a local loss: a client's blocks follow the gradient of an auxiliary head, and wait for nobody.

The head stands where the edge's blocks would: each mini-batch goes through it, its loss gives the gradient of the
activations, and the head steps too, unless it is frozen.
"""

from dataclasses import replace

from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn

from ..memory import keep, kept
from ..messages.split_local import LocalResult, SplitLocal, Upload
from ..messages.split_names import AUXILIARY_HEAD
from ..randomness import may_draw
from ..shared.arrays import to_record, to_weights
from ..shared.correction import Weights
from ..shared.crossing import Crossing
from ..shared.tensor_array import record_by_reference
from ..task import ClientTask, LocalTraining
from .registered_labels import check_registered
from .session import Session, TrainedBlocks


class LocalSession(Session):
    """A round whose tail is the auxiliary head: what goes into it is what comes out of the client's own blocks."""

    def new_tail(self, model: nn.Sequential, training: LocalTraining) -> TrainedBlocks:
        """Return the auxiliary head."""
        assert self.task.auxiliary is not None
        return TrainedBlocks(self.task.auxiliary, training, frozen_head=self.terms.frozen_head)

    def tail_may_draw(self, tail: TrainedBlocks) -> bool:
        """Return whether the head may draw random numbers: it is no part of the model."""
        return may_draw(tail.blocks)

    def crossing_at_tail(self, features: Tensor) -> Crossing:
        """Return how they are: rows in the layout that they have."""
        return Crossing.of(features, len(features))

    def train(self, upload_every: int) -> dict[int, Upload]:
        """Train on all mini-batches; return what goes up of each one whose number is a multiple of `upload_every`."""
        uploads: dict[int, Upload] = {}
        while not self.is_over:
            sent = self.forward()
            if upload_every and sent.step % upload_every == 0:
                assert sent.numbers is not None
                uploads[sent.step] = Upload(sent.values.detach(), sent.numbers)
            self.backward(self.at_tail(sent.values))
        return uploads


def train_by_local_loss(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``train.split_local``: train the client's blocks by the loss of its auxiliary head.

    A head that the edge trains is kept for the rounds after that in which it comes down.
    """
    instruction = SplitLocal.from_content(message.content)
    check_registered(context, task, instruction.labels)
    if task.auxiliary is None:
        raise ValueError("this client's algorithm has no auxiliary head")
    if instruction.frozen_head:
        head = _own_head(task.auxiliary.state_dict(), instruction.sent, context)
        block = record_by_reference({**instruction.block, **to_record(head)})
        instruction = replace(instruction, block=block, sent=None)
    session = LocalSession.begin(task, instruction)
    uploads = session.train(instruction.upload_every)
    reply = LocalResult(session.result(), session.terms.label_policy, uploads)
    return Message(reply.to_content(), reply_to=message)


def _own_head(new: Weights, sent: ArrayRecord | None, context: Context) -> Weights:
    """Return the head of a client whose edge trains it: that which came, or the last that came, or a new one."""
    if sent is not None:
        keep(context, to_weights(sent), AUXILIARY_HEAD)
    return kept(context, AUXILIARY_HEAD) or new

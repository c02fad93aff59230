"""Mini-batches that travel with a client's reply: it trains by a local loss, and no gradient goes back."""

from collections.abc import Mapping, Sequence

from flwr.app import Message
from torch import Tensor

from espalier.clients.messages.split_local import LocalResult, SplitLocal

from ..exchange import Exchanges
from ..outcomes import Failure
from ..replies import one_line
from ..reply_faults import content_of
from .loop import SplitOutcome, Terms, loss_in
from .serving import MiniBatch, Serve, Steps


class LocalLossTransport:
    """One message for each client and round; what comes with the replies is then trained on, client after client.

    Parameters
    ----------
    upload_every : int
        Each client sends the activations of every mini-batch whose number is a multiple of it; 0: of none.
    frozen_heads : bool (default: False)
        Clients' auxiliary heads keep their weights in a round, and are no part of its result.
    """

    def __init__(self, upload_every: int, *, frozen_heads: bool = False) -> None:
        self.upload_every = upload_every
        self.frozen_heads = frozen_heads

    def train(self, groups: Sequence[Sequence[int]], terms: Terms, serve: Serve) -> Exchanges[SplitOutcome]:
        """Train clients for one round; those with whose activations no step could be made are left out."""
        clients = [node_id for group in groups for node_id in group]
        replies = yield [self._instruction(node_id, terms).to_message(node_id) for node_id in clients]
        outcome, batches = SplitOutcome(), dict[int, list[MiniBatch]]()
        for node_id, reply in zip(clients, replies, strict=True):
            try:
                batches[node_id] = self._take(node_id, reply, terms, outcome)
            except (ValueError, KeyError, TypeError) as error:
                outcome.failures.append(Failure(node_id, one_line(error)))
        for node_id, own in batches.items():
            for batch in own:
                answer = _made(serve([batch]))[node_id]
                if isinstance(answer, ValueError):
                    outcome.leave_out(node_id, one_line(answer))
                    break
        return outcome

    def _instruction(self, node_id: int, terms: Terms) -> SplitLocal:
        own = {"frozen_head": self.frozen_heads, "upload_every": self.upload_every}
        return SplitLocal(**{**vars(terms.begin(node_id)), **own})

    def _take(self, node_id: int, reply: Message, terms: Terms, outcome: SplitOutcome) -> list[MiniBatch]:
        """Take a client's result into the outcome, and return its mini-batches; ValueError for what does not fit."""
        policy, every = terms.label_policy(node_id), self.upload_every
        sent = LocalResult.from_content(content_of(reply), label_policy=policy, upload_every=every)
        result, most = sent.result, terms.max_steps(node_id) if terms.max_steps else sent.result.num_steps
        if result.num_steps > most:
            raise ValueError(f"it trained on {result.num_steps} mini-batches, its examples make {most} at most")
        block, loss = terms.client_block(node_id, result), loss_in(result)
        batches = [terms.mini_batch(node_id, own.values, own.numbers) for own in sent.uploads.values()]
        outcome.blocks[node_id], outcome.num_examples[node_id] = block, result.num_examples
        outcome.train_losses[node_id] = loss
        return batches


def _made(steps: Steps) -> Mapping[int, Tensor | ValueError]:
    """Make the steps of blocks that end with the head, and so ask no client for anything."""
    try:
        next(steps)
    except StopIteration as over:
        made: Mapping[int, Tensor | ValueError] = over.value
        return made
    raise AssertionError

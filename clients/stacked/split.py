"""The client halves of split training side by side, against an edge in the same process."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import Context, Message
from torch import Tensor

from ..messages.split import Activations, SplitFused, SplitResult
from ..randomness import client_generator
from ..shared.arrays import rows_as_travel, to_record, to_weights
from ..shared.cut import Cut, as_blocks
from ..shared.lanes import Lane, Lanes
from ..split.registered_labels import check_registered, label_numbers
from ..task import ClientTask, LocalTraining
from ..whole.ruled_round import planned
from ..whole.training import batches_there, round_batches
from .blocks import Pass, StackedBlocks
from .model import StackedModel, beside
from .training import of_equal_size, prepared

FAULTS = (Exception, SystemExit, GeneratorExit)  # of a ClientApp: a library under it may end the program


@dataclass(frozen=True)
class Half:
    """A client that trains its half of a model.

    Parameters
    ----------
    node_id : int
        The client.
    task : ClientTask
        Model, data and settings.
    instruction : SplitFused
        What it was told.
    training : LocalTraining
        How it trains in the round.
    batches : list[Tensor]
        Its mini-batches, as indices.
    there : list[Tensor]
        The same indices, where the examples are.
    """

    node_id: int
    task: ClientTask
    instruction: SplitFused
    training: LocalTraining
    batches: list[Tensor]
    there: list[Tensor]

    @classmethod
    def of(cls, message: Message, context: Context, task: ClientTask) -> "Half":
        """Return the client that got a message; ValueError if it can't train."""
        instruction = SplitFused.from_content(message.content)
        check_registered(context, task, instruction.labels)
        server_round = instruction.server_round
        training = planned(task.training, instruction.config).at(server_round)
        batches = round_batches(task, server_round, training)
        return cls(context.node_id, task, instruction, training, batches, list(batches_there(task.train, batches)))

    def sends(self, step: int, values: Tensor) -> Activations:
        """Return what goes to the edge in a step."""
        policy = self.instruction.labels.policy
        numbers = label_numbers(self.batches[step], self.task, policy)
        return Activations(values, policy, numbers, step, len(self.batches), self.num_examples)

    @property
    def num_examples(self) -> int:
        """Its training examples."""
        return self.task.num_train(self.instruction.server_round)

    def draws(self, step: int) -> torch.Generator:
        """Return what preparing a mini-batch and its dropout draw from, one after the other."""
        task = self.task
        return client_generator(task.seed, task.partition_id, self.instruction.server_round, f"dropout/{step}")

    def inputs(self, step: int, draws: torch.Generator) -> Tensor:
        """Return a mini-batch as the model takes it."""
        return prepared(self.task, self.there[step], self.instruction.server_round, step, draws)


class Halves:
    """Clients that train their halves side by side; they have one cut and, but for their epochs, one way to train.

    Parameters
    ----------
    model : StackedModel
        Computes the blocks in front of the cut.
    clients : Sequence[Half]
        The clients.

    Attributes
    ----------
    left : dict[int, BaseException]
        Why who has left, by node id.
    seconds_at_edges : float
        How long the edges took for their halves.
    """

    def __init__(self, model: StackedModel, clients: Sequence[Half]) -> None:
        first, how = clients[0].task.model, clients[0].training
        side = Cut.of(as_blocks(first), clients[0].instruction.cut).front(as_blocks(first))
        trained = [name for name, weights in side.named_parameters() if weights.requires_grad]
        states = [to_weights(client.instruction.block) for client in clients]
        self.left: dict[int, BaseException] = {}
        self.seconds_at_edges = 0.0
        self._clients = list(clients)
        self._blocks = StackedBlocks(model, states, trained, how, clients[0].task.device)

    def train(self, lanes: Lanes) -> None:
        """Train against the edges that `lanes` lead to.

        In a step those advance side by side whose mini-batches are equally large, as in
        `espalier.clients.stacked.training.stacked_sgd`.
        """
        entered = lanes.enter([client.node_id for client in self._clients])
        for step in range(max(len(client.batches) for client in self._clients)):
            passes = self._forward(step)
            sent = {
                self._clients[row].node_id: self._clients[row].sends(step, values)
                for made in passes
                for row, values in zip(made.rows, rows_as_travel(made.outputs), strict=True)
            }
            asked = time.perf_counter()
            gradients = _exchanged(entered, sent)
            self.seconds_at_edges += time.perf_counter() - asked
            for node_id in sent.keys() - gradients.keys():
                self.left[node_id] = ValueError("the edge goes on without it")
            for made in passes:
                self._backward(made, gradients, step)

    def result(self, row: int) -> SplitResult:
        """Return what a client has learned."""
        client = self._clients[row]
        return SplitResult(to_record(self._blocks.state(row)), client.num_examples, len(client.batches) - 1)

    def _forward(self, step: int) -> list[Pass]:
        """Let those compute who have a mini-batch of this number."""
        inputs: dict[int, Tensor] = {}
        draws = {row: client.draws(step) for row, client in enumerate(self._clients)}
        for row, client in enumerate(self._clients):
            if client.node_id not in self.left and step < len(client.batches):
                try:
                    inputs[row] = client.inputs(step, draws[row])
                except FAULTS as error:  # as in a ClientApp by itself: it alone has failed
                    self.left[client.node_id] = error
        there = [client.batches if row in inputs else [] for row, client in enumerate(self._clients)]
        passes = []
        for rows, _ in of_equal_size(there, step):
            try:
                together = beside([inputs[row] for row in rows])
                passes.append(self._blocks.forward(rows, together, [draws[row] for row in rows]))
            except FAULTS as error:  # of this size none is computed, as BatchNorm's of one
                self.left |= {self._clients[row].node_id: error for row in rows}
        return passes

    def _backward(self, made: Pass, gradients: Mapping[int, Tensor], step: int) -> None:
        """Let those step who got a gradient."""
        nodes = [self._clients[row].node_id for row in made.rows]
        if kept := [place for place, node_id in enumerate(nodes) if node_id in gradients]:
            try:
                back = torch.stack([gradients[nodes[place]] for place in kept])
                outputs = made.outputs if len(kept) == len(nodes) else made.outputs[kept]
                own = torch.autograd.grad(outputs, made.leaves, back)
                self._blocks.step(made, own, step + 1, kept)
            except FAULTS as error:  # the edges have gone on: too late to answer one by one
                self.left |= {nodes[place]: error for place in kept}


def _exchanged(entered: Sequence[tuple[list[int], Lane]], sent: Mapping[int, Activations]) -> dict[int, Tensor]:
    """Let every edge have its clients' mini-batches; return the gradients by node id."""
    gradients: dict[int, Tensor] = {}
    for clients, lane in entered:
        gradients |= lane.exchange({node_id: sent[node_id] for node_id in clients if node_id in sent})
    return gradients

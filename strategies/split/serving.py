"""What an edge does with the mini-batches of its clients: steps of server blocks, side by side or in turn.

A step is a generator. Where the edge has the head it yields nothing and returns the cut gradient. Where the head is the
client's it yields what the edge's blocks make of the activations, the features, and is sent their gradient.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

# The step of one client. It returns the cut gradient, or why there is none: then the step was not made.
ServerStep = Generator[Tensor, Tensor | None, Tensor | ValueError]
# The steps of several, by node id: yields features, never of nobody, and is sent the gradients of those who are still
# there; returns what goes back to each in the end.
Steps = Generator[Mapping[int, Tensor], Mapping[int, Tensor], Mapping[int, Tensor | ValueError]]


@dataclass(frozen=True)
class MiniBatch:
    """A client's activations and their labels, checked.

    Parameters
    ----------
    node_id : int
        The client.
    activations : Tensor
        Shape (N, *cut_shape).
    labels : Tensor, optional
        Shape (N, ...); None where the client keeps them.
    length : float (default: 0.0)
        Of the longest sample's activations, where it was measured.
    samples : np.ndarray, optional (default: None)
        Shape (N,): the samples' numbers, where the client sends those, and no labels.
    lengths : Tensor, optional (default: None)
        Shape (N,): how much of each sample's activations, (T, ...), counts, where blocks pass that on.
    part : int (default: 0)
        Which part of a mini-batch these are, from 0.
    more : bool (default: False)
        Another part of the same mini-batch follows: no step is made yet.
    """

    node_id: int
    activations: Tensor
    labels: Tensor | None
    length: float = 0.0
    samples: np.ndarray | None = None
    lengths: Tensor | None = None
    part: int = 0
    more: bool = False


# Serves one mini-batch of each client given.
Serve = Callable[[list[MiniBatch]], Steps]


def side_by_side(steps: Mapping[int, ServerStep]) -> Steps:
    """Make the steps of clients that need not wait for each other."""
    answers: dict[int, Tensor | ValueError] = {}
    due: Mapping[int, Tensor | None] = dict.fromkeys(steps)
    while due:
        features: dict[int, Tensor] = {}
        for node_id, gradient in due.items():
            try:
                features[node_id] = steps[node_id].send(gradient)
            except StopIteration as over:
                answers[node_id] = over.value
        gradients = (yield features) if features else {}
        for node_id in features.keys() - gradients.keys():  # it has left
            steps[node_id].close()
        due = {node_id: gradients[node_id] for node_id in features if node_id in gradients}
    return answers


def in_turn(steps: Mapping[int, ServerStep]) -> Steps:
    """Make the steps of clients each after the one before has ended: they share a server block."""
    answers: dict[int, Tensor | ValueError] = {}
    for node_id, step in steps.items():
        answers |= yield from side_by_side({node_id: step})
    return answers

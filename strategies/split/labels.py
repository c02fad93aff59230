"""Where an edge finds the labels of its clients' mini-batches."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from espalier.clients.messages.labels import IGNORED, LabelsQuery, LabelTerms, RegisteredLabels
from espalier.clients.messages.split_names import INDICES, LABELS, LABELS_CHANGED

from ..exchange import Exchanges
from ..outcomes import Failure
from ..replies import one_line
from ..reply_faults import content_of


class Labels:
    """Where an edge finds the labels of a mini-batch.

    Parameters
    ----------
    policy : str
        ``"indices"``: clients register their labels once, then send sample indices; a client whose labels have changed
        leaves the round, and registers them anew in the next. ``"labels"``: labels come with the activations.
    shape : tuple[int, ...] (default: one label)
        Of a sample's labels: (T,) where each of T places has one. Those that do not count are -100.
    """

    def __init__(self, policy: str, shape: tuple[int, ...] = ()) -> None:
        if policy not in (INDICES, LABELS):
            raise ValueError(f"label_policy is {policy!r}: allowed are {INDICES!r} and {LABELS!r}")
        self.policy = policy
        self.shape = shape
        self._registered: dict[int, RegisteredLabels] = {}

    def register(self, node_ids: Iterable[int]) -> Exchanges[list[Failure]]:
        """Ask those clients for their labels that have not registered them yet."""
        unknown = [n for n in node_ids if n not in self._registered] if self.policy == INDICES else []
        if not unknown:
            return []
        failures = []
        replies = yield [LabelsQuery().to_message(node_id) for node_id in unknown]
        for node_id, reply in zip(unknown, replies, strict=True):
            try:
                self._registered[node_id] = RegisteredLabels.from_content(content_of(reply))
            except (ValueError, KeyError, TypeError) as error:
                failures.append(Failure(node_id, f"no labels registered: {one_line(error)}"))
        return failures

    def forget(self, failures: Iterable[Failure]) -> None:
        """Let those who failed because their labels have changed register them again."""
        for failure in failures:
            if LABELS_CHANGED in failure.reason:
                self._registered.pop(failure.node_id, None)

    def state_dict(self) -> dict[int, Any]:
        """Return the labels that are registered, by node id: for an edge that goes on in another process."""
        return {node_id: (known.labels, known.digest) for node_id, known in self._registered.items()}

    def load_state_dict(self, state: Mapping[int, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._registered = {node_id: RegisteredLabels(*known) for node_id, known in state.items()}

    def terms(self, node_id: int) -> LabelTerms:
        """Return what a client has to know: the policy, and by their digest which of its labels it goes by."""
        known = self._registered.get(node_id)
        return LabelTerms(self.policy, known.digest if known else None)

    @property
    def numbers_per_sample(self) -> int:
        """How many whole numbers tell the labels of a sample: its index, or themselves."""
        return 1 if self.policy == INDICES else math.prod(self.shape)

    def find(self, node_id: int, numbers: np.ndarray, num_classes: int) -> np.ndarray:
        """Return the labels of a client's mini-batch.

        Parameters
        ----------
        node_id : int
            The client.
        numbers : np.ndarray
            What it sent, int64: by the policy labels, of shape (N, ...), or indices, (N,).
        num_classes : int
            Labels are below it.

        Raises
        ------
        ValueError
            If a label or an index is out of range, or samples have other labels than one for each place.
        """
        labels = numbers
        if self.policy == INDICES:
            known = self._registered[node_id].labels
            if numbers.size and _largest(numbers) >= len(known):
                raise ValueError(f"an index is out of range, {len(known)} labels are registered")
            labels = known[numbers]
        if labels.shape[1:] != self.shape:
            raise ValueError(f"a sample has labels of shape {labels.shape[1:]}, expected {self.shape}")
        counting = labels[labels != IGNORED] if self.shape else labels
        if counting.size and _largest(counting) >= num_classes:
            raise ValueError(f"a label is out of range, there are {num_classes} classes")
        return labels


def _largest(numbers: np.ndarray) -> int:
    """Return the largest of int64 numbers, where a negative one counts as larger than all others."""
    return int(numbers.view(np.uint64).max())

"""Split training by a local loss: one message for a client's round, whose reply brings activations with the result."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from ..shared.arrays import config_of, record_of, to_array, to_tensor, to_vector, vector_at
from ..shared.tensor_array import record_by_reference
from .split import SplitBegin, SplitResult
from .split_names import ACTIVATIONS, SPLIT_LOCAL, UPLOAD_EVERY
from .train import CONFIG


@dataclass(frozen=True)
class SplitLocal(SplitBegin, message_type=SPLIT_LOCAL, begins_round=True, ends_round=True):
    """Train for a round by the loss of an auxiliary head behind the client's blocks; the reply is a `LocalResult`.

    With `frozen_head` the auxiliary head keeps its weights, and is no part of `block`: `sent` brings it where it is
    another one than the client has.

    Parameters
    ----------
    upload_every : int (default: 1)
        Activations of each mini-batch whose number is a multiple of it go up; 0: of none.
    """

    upload_every: int = 1

    def to_content(self) -> RecordDict:
        """Return the records."""
        content = super().to_content()
        config = ConfigRecord({**config_of(content, CONFIG), UPLOAD_EVERY: self.upload_every})
        return RecordDict({**content, CONFIG: config})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        return replace(super().from_content(content), upload_every=int(config[UPLOAD_EVERY]))


@dataclass(frozen=True)
class Upload:
    """The activations of a mini-batch, shape (N, *cut_shape), with its labels, or sample indices, shape (N,)."""

    values: Tensor
    numbers: np.ndarray


@dataclass(frozen=True)
class LocalResult:
    """A client's result of a round, and what the edge trains on.

    Parameters
    ----------
    result : SplitResult
        The blocks, the auxiliary head's among them where it trains, and the mean of the local losses.
    label_policy : "indices" or "labels"
        What the numbers of `uploads` are.
    uploads : Mapping[int, Upload]
        By the number of the mini-batch, from 0.
    """

    result: SplitResult
    label_policy: str
    uploads: Mapping[int, Upload]

    def to_content(self) -> RecordDict:
        """Return the records."""
        if not self.uploads:
            return self.result.to_content()
        values = {str(step): to_array(upload.values) for step, upload in self.uploads.items()}
        numbers = {str(step): to_vector(upload.numbers) for step, upload in self.uploads.items()}
        sent = {ACTIVATIONS: record_by_reference(values), self.label_policy: record_by_reference(numbers)}
        return RecordDict({**self.result.to_content(), **sent})

    @classmethod
    def from_content(cls, content: RecordDict, *, label_policy: str, upload_every: int) -> Self:
        """Read the records that a client sent; ValueError where they are not those of the mini-batches that are due."""
        result = SplitResult.from_content(content)
        if not upload_every:
            if ACTIVATIONS in content:
                raise ValueError("it sends activations, where none are asked for")
            return cls(result, label_policy, {})
        values, numbers = record_of(content, ACTIVATIONS), record_of(content, label_policy)
        count = -(-result.num_steps // upload_every)
        for record, what in ((values, ACTIVATIONS), (numbers, label_policy)):
            if len(record) != count:
                raise ValueError(f"it sends {what} of {len(record)} mini-batches, expected those of {count}")
        steps = range(0, result.num_steps, upload_every)
        uploads = {n: Upload(to_tensor(values[f"{n}"]), vector_at(numbers, f"{n}", label_policy)) for n in steps}
        return cls(result, label_policy, uploads)

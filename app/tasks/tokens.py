"""The loss of models that guess at every place of a sequence, such as language models."""

from torch import Tensor
from torch.nn.functional import cross_entropy

from espalier.clients.messages.labels import IGNORED


def token_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over all places that count; 0 where none does.

    Parameters
    ----------
    outputs : Tensor
        Shape (N, T, C), as an `nn.Linear` gives for sequences.
    labels : Tensor
        Shape (N, T), int64: classes, and -100 at places that do not count.
    """
    total = cross_entropy(outputs.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)

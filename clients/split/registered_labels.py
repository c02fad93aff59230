"""The labels that a client registers at its edge, and what goes by their numbers."""

import secrets
from hashlib import blake2b

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message
from torch import Tensor

from ..memory import LABELS_SALT
from ..messages.labels import LabelTerms, RegisteredLabels
from ..messages.split_names import INDICES, KEPT, LABELS_CHANGED
from ..task import ClientTask


def labels_digest(context: Context, task: ClientTask) -> int:
    """Return a number of 63 bits that tells the client's labels from others, to nobody but the client.

    It goes along with the labels when they are registered, and comes back with every instruction. By a plain checksum
    whoever reads these could confirm a guess of all labels; by one with a salt of the edge's too, since that has to
    travel. So the client draws the salt, once, and keeps it in the node's state. Where that is lost, another salt gives
    another digest, and the labels are registered anew, as where they have changed. Two registrations of the same labels
    have the same digest, so either is good. Nothing that is trained or drawn depends on it.
    """
    if LABELS_SALT not in context.state.config_records:
        context.state[LABELS_SALT] = ConfigRecord({LABELS_SALT: secrets.token_bytes(16)})
    salt = bytes(context.state.config_records[LABELS_SALT][LABELS_SALT])  # type: ignore[arg-type]
    labels = np.ascontiguousarray(task.train.labels.cpu().numpy(), "<i4")
    return int.from_bytes(blake2b(labels.data, key=salt, digest_size=8).digest()) >> 1


def check_registered(context: Context, task: ClientTask, labels: LabelTerms) -> None:
    """Raise ValueError if the edge goes by other labels than the client has: its data have changed since."""
    if labels.digest is not None and labels.digest != labels_digest(context, task):
        raise ValueError(f"{LABELS_CHANGED}: its data are not those whose labels it registered")


def register_labels(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``query.labels``: register the training labels at the edge, once."""
    labels = RegisteredLabels(class_indices(task.train.labels), labels_digest(context, task))
    return Message(labels.to_content(), reply_to=message)


def label_numbers(batch: Tensor, task: ClientTask, label_policy: str) -> np.ndarray | None:
    """Return what goes with the activations of a mini-batch, int32: its labels, or sample indices alone, or nothing."""
    if label_policy == KEPT:
        return None
    return batch.to(torch.int32).cpu().numpy() if label_policy == INDICES else class_indices(task.train.labels[batch])


def class_indices(labels: Tensor) -> np.ndarray:
    """Return labels as the edge gets them, int32; ValueError where they are no integers, which would be cut off."""
    if labels.is_floating_point() or labels.is_complex():
        allowed = "integers, the classes; train such a model whole, or give the device a tail"
        raise ValueError(f"labels are {labels.dtype}, an edge takes {allowed}")
    return labels.to(torch.int32).cpu().numpy()

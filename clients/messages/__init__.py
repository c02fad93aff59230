"""The messages between servers and devices: each form is spelled once, in a dataclass that writes and reads it.

Modules: `train` (whole models, evaluation, plans), `split`, `split_local`, `labels`, `head_tuning` and
`split_evaluation` (split models), `secure` (secure aggregation), `frames` (streams), `stay` (a stream for all of them),
`profile` and `edge` (between the cloud and an edge that has a host of its own).
``docs/messages.md`` explains the names in a table.
"""

from . import (  # so that every kind of instruction is known
    edge,
    head_tuning,
    labels,
    profile,
    secure,
    split,
    split_evaluation,
    split_local,
    stay,
    train,
)
from .instruction import Instruction, begins_round, ends_round, goes_on

__all__ = [
    "Instruction",
    "begins_round",
    "edge",
    "ends_round",
    "goes_on",
    "head_tuning",
    "labels",
    "profile",
    "secure",
    "split",
    "split_evaluation",
    "split_local",
    "stay",
    "train",
]

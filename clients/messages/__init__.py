"""The messages between servers and devices: each form is spelled once, in a dataclass that writes and reads it.

Modules: `train` (whole models, evaluation, plans), `split`, `frames` (streams), `profile` and `edge` (between the cloud
and an edge that has a host of its own). ``docs/messages.md`` explains the names in a table.
"""

from . import edge, profile, split, train  # so that every kind of instruction is known
from .instruction import Instruction, begins_round, ends_round, goes_on

__all__ = ["Instruction", "begins_round", "edge", "ends_round", "goes_on", "profile", "split", "train"]

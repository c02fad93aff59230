"""PyTorch's generators, from which dropout draws: a process has them once, so who uses them has them to itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

# Two threads would draw from one sequence. And each can wait for the other for ever: PyTorch holds a generator's lock
# while it waits for Python's to return the state, and Python's while it waits for the generator's to set it.
_HELD = RLock()


@contextmanager
def kept_torch(device: torch.device) -> Iterator[None]:
    """Keep torch's generators from all other threads inside the block, and put back their states afterwards."""
    # Not torch.random.fork_rng, whose checks take longer than a small layer.
    with _HELD:
        before = torch.default_generator.get_state()
        before_on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        try:
            yield
        finally:
            torch.default_generator.set_state(before)
            if before_on_device is not None:
                torch.cuda.set_rng_state(before_on_device, device)


@contextmanager
def seeded_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Let what is drawn from torch's generators, on the CPU and the device, follow `seed` inside the block.

    One thread at a time is inside, in this block or that of `kept_torch`.
    """
    with kept_torch(device):
        # Not torch.manual_seed: it takes a stack trace for every kind of device that might be there one day.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield

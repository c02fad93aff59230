"""A client's random numbers: derived from the run's seed, the client and the round, and from nothing else."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def client_generator(seed: int, partition_id: int, server_round: int, purpose: str) -> torch.Generator:
    """Return a generator of this client's own for one purpose in one round.

    Parameters
    ----------
    seed : int
        Seed of the run.
    partition_id : int
        The client.
    server_round : int
        The round as its server counts it.
    purpose : str
        What it is for, e.g. ``"batches"``.
    """
    return torch.Generator().manual_seed(client_seed(seed, partition_id, server_round, purpose))


def client_seed(seed: int, partition_id: int, server_round: int, purpose: str) -> int:
    """Return the seed of `client_generator`."""
    return random.Random(f"{seed}/{partition_id}/{server_round}/{purpose}").getrandbits(63)


@contextmanager
def seeded_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch's global generators, from which dropout draws, follow `seed` inside the block."""
    # Not torch.random.fork_rng, whose checks take longer than a small layer.
    before = torch.default_generator.get_state()
    before_on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        # Not torch.manual_seed: it takes a stack trace for every kind of device that might be there one day.
        torch.default_generator.manual_seed(seed)
        if before_on_device is not None:
            torch.cuda.manual_seed(seed)
        yield
    finally:
        torch.default_generator.set_state(before)
        if before_on_device is not None:
            torch.cuda.set_rng_state(before_on_device, device)

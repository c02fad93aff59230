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
    bits = random.Random(f"{seed}/{partition_id}/{server_round}/{purpose}").getrandbits(63)
    return torch.Generator().manual_seed(bits)


@contextmanager
def seeded_torch(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Let torch's global generators, from which dropout draws, follow `generator` inside the block."""
    seed = generator.initial_seed()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # Not torch.manual_seed: it takes a stack trace for every kind of device that might be there one day.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield

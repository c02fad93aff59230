"""PyTorch's generators inside a block that seeds them, in one thread and in many."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from espalier.clients.shared.generators import seeded_torch

CPU = torch.device("cpu")


def drawn(seed):
    with seeded_torch(seed, CPU):
        return [torch.rand(2).tolist() for _ in range(3)]


def test_what_is_drawn_in_between_follows_the_seed_and_nobody_outside_notices():
    before = torch.get_rng_state()
    first, other, again = drawn(1), drawn(2), drawn(1)
    with pytest.raises(RuntimeError), seeded_torch(1, CPU):
        torch.rand(3) @ torch.rand(2)
    assert first == again != other
    assert torch.equal(before, torch.get_rng_state())


def test_a_block_inside_a_block_leaves_the_outer_one_as_it_was():
    with seeded_torch(1, CPU):
        inner = torch.rand(2).tolist(), drawn(2), torch.rand(2).tolist()
    assert inner == (drawn(1)[0], drawn(2), drawn(1)[1])


def test_threads_draw_what_each_would_draw_by_itself():
    """They share PyTorch's generator: without a lock they draw from each other's sequence, or wait for ever."""
    seeds = [seed for seed in range(8) for _ in range(200)]
    alone = {seed: drawn(seed) for seed in set(seeds)}
    before = torch.get_rng_state()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(drawn, seeds)) == [alone[seed] for seed in seeds]
    assert torch.equal(before, torch.get_rng_state())

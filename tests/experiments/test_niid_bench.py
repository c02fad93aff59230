"""The model of niid_bench is that of its table."""

import torch

from experiments.niid_bench import cnn


def test_it_has_the_published_sizes():
    model = cnn(10, (3, 32, 32))
    assert [sum(p.numel() for p in block.parameters()) for block in model] == [456, 2_416, 58_284, 850]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)

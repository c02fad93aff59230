"""Where a model can be cut."""

import pytest
from torch import nn

from espalier.strategies.split.server_block import legal_cuts


def test_a_model_in_which_a_block_stands_twice_is_refused():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), relu, nn.Linear(2, 2), relu, nn.Linear(2, 2))
    with pytest.raises(ValueError, match="one block stands in the model twice"):
        legal_cuts(model)
    assert list(legal_cuts(nn.Sequential(*model[:3], nn.ReLU(), model[4]))) == [1, 2, 3, 4]

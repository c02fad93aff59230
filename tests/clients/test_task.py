"""What a client's task refuses."""

import pytest
import torch
from torch import nn

from espalier.clients.half import ClientHalf
from espalier.clients.task import ClientTask, Examples, LocalTraining


def test_weights_that_stay_have_to_be_given_or_they_would_travel():
    model, data = nn.Linear(2, 2), Examples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))
    rest = (data, data, lambda inputs: inputs, LocalTraining(), 0, 0, (3, 0), torch.device("cpu"))
    half = ClientHalf(stays=lambda model: ["bias"])
    with pytest.raises(ValueError, match=r"own is empty: without their first values here, the weights that half"):
        ClientTask(model, *rest, half=half)
    own = {"bias": torch.ones(2)}
    assert ClientTask(model, *rest, half=half, own=own).own == own
    assert ClientTask(model, *rest, half=ClientHalf(stays=lambda model: [])).own == {}


@pytest.mark.parametrize("mods", [[print], {"train": print}])
def test_mods_are_in_lists_by_message_type(mods):
    with pytest.raises(TypeError, match=r"ClientHalf.mods: allowed are lists of mods by message type, such as \{"):
        ClientHalf(mods=mods)
    assert ClientHalf(mods={"train": [print]}).answers_itself("train")


@pytest.mark.parametrize(
    "inputs", [torch.zeros(4, 2), {"ids": torch.zeros(3, 5), "mask": torch.zeros(4, 5)}], ids=["tensor", "dict"]
)
def test_inputs_and_labels_are_as_many(inputs):
    with pytest.raises(ValueError, match="inputs have 4 examples, labels 3: there must be as many"):
        Examples(inputs, torch.zeros(3, dtype=torch.long))


def test_a_mini_batch_has_an_example():
    with pytest.raises(ValueError, match="batch_size is 0: it must be 1 at least"):
        LocalTraining(batch_size=0)

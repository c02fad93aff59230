"""What clients were told alike has one digest at both ends of every transport."""

import numpy as np
import pytest
import torch

from espalier.clients.messages.secure import digest_of
from espalier.clients.messages.split_names import CLIENT_BLOCK, SPLIT_BEGIN
from espalier.clients.messages.train import EDGE_HALF, TRAIN, Train
from espalier.clients.shared.arrays import to_record
from espalier.sim.simulated_grid import records_from_bytes, records_to_bytes

WEIGHTS = {"w": torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4), "count": torch.tensor(5), "none": torch.zeros(0)}


def instruction(weights=WEIGHTS, sent=1.0, **config):
    beside = to_record({"w": torch.full((2,), sent)})
    return Train(to_record(weights), 3, {"proximal-mu": np.float64(0.1), "flag": True, **config}, beside).to_content()


def test_a_message_has_the_digest_of_what_was_sent():
    """However arrays are laid out, and numbers typed, where they begin."""
    sent = instruction({**WEIGHTS, "w": WEIGHTS["w"].to(memory_format=torch.channels_last)})
    received = records_from_bytes(records_to_bytes(sent))
    assert digest_of(TRAIN, sent, ()) == digest_of(TRAIN, received, ()) == digest_of(TRAIN, instruction(), ())


@pytest.mark.parametrize(
    "change",
    [
        {"weights": {**WEIGHTS, "count": torch.tensor(6)}},
        {"weights": {**WEIGHTS, "w": WEIGHTS["w"].reshape(2, 1, 3, 4)}},
        {"sent": 2.0},
        {"flag": False},
    ],
    ids=["number", "shape", "beside", "config"],
)
def test_what_is_told_otherwise_has_another(change):
    assert digest_of(TRAIN, instruction(), ()) != digest_of(TRAIN, instruction(**change), ())


def test_what_differs_between_clients_is_left_out():
    one, other = instruction(sent=1.0), instruction(sent=2.0)
    assert digest_of(TRAIN, one, (EDGE_HALF,)) == digest_of(TRAIN, other, (EDGE_HALF,))
    other = instruction(sent=2.0, flag=False)
    for content in (one, other):
        content[CLIENT_BLOCK] = content.pop("arrays")
    assert digest_of(SPLIT_BEGIN, one, ()) == digest_of(SPLIT_BEGIN, other, ())
    assert digest_of(TRAIN, one, ()) != digest_of(TRAIN, other, ())

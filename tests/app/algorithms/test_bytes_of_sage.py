"""The bytes of a round on FSL-SAGE's setting (arXiv:2505.23182), whose ledger has weights, buffers and activations."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.tasks.models import build_model
from espalier.clients.messages.labels import LabelTerms
from espalier.clients.messages.split import Activations, SplitBegin, SplitResult, SplitStep
from espalier.clients.messages.split_local import LocalResult, SplitLocal, Upload
from espalier.clients.messages.split_names import ACTIVATIONS, LABELS
from espalier.clients.messages.train import Train, Trained
from espalier.clients.shared.arrays import to_record
from espalier.clients.shared.cut import Cut
from espalier.clients.split.auxiliary import first_block_head, new_head

NUM_CLIENTS, NUM_EXAMPLES, BATCH, EVERY = 10, 5_000, 128, 5
TERMS = LabelTerms(LABELS)


def payload(*contents):
    """Return the bytes of the values in messages, without labels and NumPy's headers."""
    records = [(name, one) for own in contents for name, one in own.items() if isinstance(one, ArrayRecord)]
    return sum(array.values.nbytes for name, one in records if name != LABELS for array in one.values())


@pytest.fixture(scope="module")
def parts():
    model, cut = build_model("resnet18-imagenet", image_shape=(3, 32, 32), num_classes=10, seed=0), Cut(2, 5)
    head = new_head(first_block_head, model, cut, torch.zeros(1, 3, 32, 32), 10, seed=0)
    whole, client, auxiliary = (to_record(own.state_dict()) for own in (model, cut.front(model), head))
    with torch.no_grad():
        shape = cut.front(model).eval()(torch.zeros(1, 3, 32, 32)).shape[1:]
    return whole, client, auxiliary, shape


def batches(shape):
    """Return activations of all mini-batches of an epoch, and their labels."""
    sizes = [len(part) for part in torch.arange(NUM_EXAMPLES).split(BATCH)]
    return [(torch.empty(size, *shape), np.zeros(size, np.int32)) for size in sizes]


def of_sfl_v1(client, shape):
    count = len(batches(shape))
    up = [Activations(a, LABELS, y, i, count, 1).to_content() for i, (a, y) in enumerate(batches(shape))]
    down = [SplitStep(1, i, LABELS, a).to_content() for i, (a, _) in enumerate(batches(shape))]
    begin, end = SplitBegin(client, 1, 2, TERMS).to_content(), SplitResult(client, 1, count - 1).to_content()
    return payload(begin, end, *up, *down)


def of_local_losses(block, shape, sent=None):
    uploads = {i: Upload(*batch) for i, batch in enumerate(batches(shape)) if i % EVERY == 0}
    begin = SplitLocal(block, 1, 2, TERMS, sent=sent, upload_every=EVERY).to_content()
    result = LocalResult(SplitResult(block, 1, len(batches(shape)) - 1, 0.0), LABELS, uploads).to_content()
    assert sorted(result[ACTIVATIONS], key=int) == [str(i) for i in range(0, 40, EVERY)]
    return payload(begin, result)


def test_the_bytes_of_a_round_are_those_of_the_paper(parts):
    whole, client, auxiliary, shape = parts
    both = to_record({**client_state(client), **client_state(auxiliary)})
    assert NUM_CLIENTS * of_sfl_v1(client, shape) == 874_000_960
    fedavg = payload(Train(whole).to_content(), Trained(whole, 0.0, 1).to_content())
    assert NUM_CLIENTS * fedavg == 895_302_560
    assert NUM_CLIENTS * of_local_losses(both, shape) == 307_075_200
    sage = of_local_losses(client, shape)
    assert NUM_CLIENTS * sage == 138_687_040
    assert NUM_CLIENTS * (of_local_losses(client, shape, sent=auxiliary) - sage) == 84_194_080


def client_state(record):
    return {name: array.values for name, array in record.items()}

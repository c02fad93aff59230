import copy
import pickle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from espalier.clients.shared.arrays import to_array, to_record, to_tensor, to_weights, values_of
from espalier.clients.shared.tensor_array import TensorArray, num_bytes, record_by_reference
from espalier.sim.in_process_grid import InProcessGrid

TENSORS = [
    torch.randn(3, 4),
    torch.arange(5, dtype=torch.int64),
    torch.tensor(2.5, dtype=torch.float64),
    torch.zeros(2, 0),
    torch.tensor([True, False]),
]


@pytest.mark.parametrize("tensor", TENSORS)
def test_to_whoever_gets_it_it_is_a_flower_array(tensor):
    ours, flowers = TensorArray(tensor), Array(tensor.numpy())
    assert (ours.dtype, ours.shape, ours.stype) == (flowers.dtype, flowers.shape, flowers.stype)
    assert num_bytes(ours) == num_bytes(flowers) == len(flowers.data)
    assert ours.data == flowers.data
    assert ours == flowers
    assert flowers == ours
    assert ours == TensorArray(tensor.clone())
    assert ours != TensorArray(tensor + 1 if tensor.numel() and tensor.dtype != torch.bool else tensor.reshape(1, -1))
    assert np.array_equal(ours.numpy(), flowers.numpy())
    assert ours.object_id == flowers.object_id
    assert ours.deflate() == flowers.deflate()
    for moved in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert type(moved) is Array
        assert moved == flowers


def test_a_record_of_them_travels_as_any_other():
    weights = {"w": torch.randn(2, 3), "n": torch.tensor(7)}
    ours, flowers = to_record(weights), ArrayRecord(weights)
    assert ours == flowers
    assert ours.count_bytes() == flowers.count_bytes()
    assert ours.object_id == flowers.object_id
    assert get_all_nested_objects(ours).keys() == get_all_nested_objects(flowers).keys()
    content = recorddict_from_proto(recorddict_to_proto(RecordDict({"r": ours})))
    assert content == RecordDict({"r": flowers})
    assert type(content["r"]["w"]) is Array
    for read in (ours.to_torch_state_dict(), to_weights(ours), to_weights(content["r"])):
        assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())


def test_bytes_are_not_made_before_somebody_asks():
    array = to_array(torch.randn(2, 3, 4, 4))
    num_bytes(array), to_tensor(array), values_of(array), array.numpy(), copy.copy(array)
    assert "_bytes" not in array.__dict__
    assert array.data is array.data


def test_once_changed_it_is_an_ordinary_array():
    tensor = torch.ones(2)
    changed = {name: TensorArray(tensor) for name in ("data", "shape")}
    changed["data"].data = Array(np.zeros(2, np.float32)).data
    changed["shape"].shape = (1, 2)
    assert all(type(array) is Array for array in changed.values())
    assert changed["data"].numpy().tolist() == [0, 0]
    assert (changed["shape"].shape, changed["shape"].numpy().tolist()) == ((1, 2), [1, 1])
    assert tensor.tolist() == [1, 1]


# Nobody writes into a tensor that was sent


def test_what_flower_gives_away_is_the_receivers_own():
    tensor = torch.ones(3)
    record = record_by_reference({"a": TensorArray(tensor)})
    record["a"].numpy()[:] = 7
    record.to_numpy_ndarrays()[0][:] = 7
    record.to_torch_state_dict()["a"].mul_(7)
    assert tensor.tolist() == [1, 1, 1]
    assert record["a"].numpy().tolist() == [1, 1, 1]


def test_numpy_refuses_to_write_into_the_values():
    with pytest.raises(ValueError, match="read-only"):
        values_of(TensorArray(torch.ones(3)))[:] = 7


@pytest.mark.parametrize("read", [to_tensor, values_of, Array.numpy, lambda a: a.numpy(), lambda a: a.data])
def test_who_reads_what_somebody_wrote_into_is_refused(read):
    """Sender and receiver hold the same tensor, so either could: PyTorch counts how often it was written into."""
    sent, received = torch.ones(3), torch.ones(3)
    arrays = [TensorArray(sent), TensorArray(received)]
    sent.add_(1)
    to_tensor(arrays[1]).mul_(2)
    for array in (*arrays, *map(copy.copy, arrays)):
        with pytest.raises(ValueError, match="written into after it was sent"):
            read(array)


def test_a_sender_goes_on_training_on_weights_that_it_has_sent():
    weights = {"w": torch.ones(2, 2, requires_grad=True)}
    record = to_record(weights)
    with torch.no_grad():
        weights["w"].add_(1)
    assert to_weights(record)["w"].tolist() == [[1, 1], [1, 1]]


def test_a_grid_shares_the_tensor_and_a_client_that_writes_into_it_reaches_nobody_unnoticed():
    app = ClientApp()
    sent = torch.ones(4)

    @app.train()
    def overwrite(message, context):
        mine = message.content["a"]["a"]
        assert to_tensor(mine).data_ptr() == sent.data_ptr()
        mine.numpy()[:] = 5
        message.content["a"].to_torch_state_dict()["a"].fill_(5)
        return Message(message.content, reply_to=message)

    @app.train("by_force")
    def by_force(message, context):
        to_tensor(message.content["a"]["a"]).fill_(5)
        return Message(message.content, reply_to=message)

    grid = InProcessGrid(app, 2)
    record = record_by_reference({"a": TensorArray(sent)})

    def ask(kind):
        messages = [Message(RecordDict({"a": record}), node_id, kind) for node_id in grid.get_node_ids()]
        return list(grid.send_and_receive(messages))

    for reply in ask("train"):
        assert reply.content["a"]["a"].numpy().tolist() == [1, 1, 1, 1]
    first, second = ask("train.by_force")
    with pytest.raises(ValueError, match="written into"):
        to_tensor(first.content["a"]["a"])
    assert second.has_error()
    assert "written into after it was sent" in second.error.reason

"""Which instructions begin and end a client's round, and that every message is read as it was written."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from espalier.clients.messages import Instruction, begins_round, ends_round
from espalier.clients.messages.frames import StreamTicket
from espalier.clients.messages.head_tuning import SplitFeatures, SplitHead
from espalier.clients.messages.labels import LabelTerms, RegisteredLabels
from espalier.clients.messages.profile import DeviceProfile, Profile, ProfileQuery
from espalier.clients.messages.split import Activations, SplitBegin, SplitEnd, SplitResult, SplitStream, SplitTail
from espalier.clients.messages.split_evaluation import EvaluateFront, EvaluateOutputs
from espalier.clients.messages.train import Train, TrainAccumulated
from espalier.sim.in_process_grid import InProcessGrid

BLOCK = ArrayRecord({"w": Array(np.ones(2, np.float32))})
TICKET = StreamTicket("host:1", b"pem", "token", 100)
BEGIN = SplitBegin(BLOCK, 3, 2, LabelTerms("indices", 7), {"local-rounds": 4})


@pytest.mark.parametrize(
    ("message_type", "begins", "ends"),
    [
        ("train", True, True),
        ("train.accumulated", True, True),
        ("train.split_begin", True, False),
        ("train.split_step", False, False),
        ("train.split_tail", False, False),
        ("train.split_head", False, False),
        ("evaluate.split_front", False, False),
        ("evaluate.split_outputs", False, False),
        ("train.split_end", False, True),
        ("train.split_stream", True, True),
        ("train.split_features", False, False),
        ("evaluate", False, False),
        ("query.profile", False, False),
        ("train.of_somebody_else", False, False),
    ],
)
def test_what_begins_and_ends_a_clients_round(message_type, begins, ends):
    assert (begins_round(message_type), ends_round(message_type)) == (begins, ends)


def test_a_message_of_ones_own_says_it_too():
    @dataclass(frozen=True)
    class Mine(Instruction, message_type="train.mine", begins_round=True):
        def to_content(self):
            return RecordDict()

    assert (begins_round("train.mine"), ends_round("train.mine")) == (True, False)
    grid = InProcessGrid(lambda message, context: None, 1)  # messages belong to a run
    (node_id,) = grid.get_node_ids()
    message = Mine().to_message(node_id)
    assert (message.metadata.message_type, message.metadata.dst_node_id) == ("train.mine", node_id)


@pytest.mark.parametrize(
    "message",
    [
        Train(BLOCK, 2, {"proximal-mu": 0.5}),
        TrainAccumulated(BLOCK, 2),
        BEGIN,
        SplitStream(BEGIN, TICKET, "int8", 2.5),
        SplitFeatures(BLOCK, 1, 5, LabelTerms("labels")),
        SplitBegin(BLOCK, 3, 2, LabelTerms("kept"), {}, 4, True),
        SplitTail(3, 2, torch.ones(2, 3)),
        SplitHead(BLOCK, 3, [torch.ones(2, 3)], 0.5),
        EvaluateFront(BLOCK, 2),
        EvaluateOutputs([torch.ones(2, 3)]),
        EvaluateOutputs([torch.ones(2, 3)], BLOCK, 3, True),
        SplitResult(BLOCK, 20, 4),
        SplitResult(BLOCK, 20, 4, 0.25),
        ProfileQuery(),
        ProfileQuery(True),
        ProfileQuery(True, TICKET),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_read_as_it_was_written(message):
    written = message.to_content()
    read = type(message).from_content(written)
    assert read.to_content() == written


def test_a_profile_is_read_as_it_was_written():
    device = DeviceProfile(4, 6e8, 1.5e9, 2**30, 1e6, 2e7, float("inf"), 0.2, 2e-28)
    profile = Profile(9, 1, "north", 30, 3, (3, 0), device)
    assert Profile.from_content(9, profile.to_content()) == profile


def test_cut_tensors_are_read_as_they_were_written():
    gradient = torch.randn(2, 3, 4, 5)
    end = SplitEnd.from_content(SplitEnd(1, 2, "labels", gradient).to_content())
    assert torch.equal(end.gradient, gradient)
    sent = Activations(gradient, "labels", np.array([1, 0], np.int32), 2, 3, 20)
    read = Activations.from_content(sent.to_content(), step=2, label_policy="labels")
    assert torch.equal(read.values, gradient)
    assert (read.numbers.tolist(), read.numbers.dtype, read.num_steps) == ([1, 0], np.int64, 3)


@pytest.mark.parametrize("record", ["activations", "labels", "metrics"])
def test_a_mini_batch_without_one_of_its_records_is_refused_in_one_line(record):
    content = Activations(torch.ones(2, 3), "labels", np.array([1, 0], np.int32), 0, 3, 20).to_content()
    del content[record]
    with pytest.raises(ValueError, match=f"^its reply has no record '{record}'$"):
        Activations.from_content(content, step=0, label_policy="labels")


@pytest.mark.parametrize("dtype", ["<U9", "<M8[s]", "uint16"])
def test_a_tensor_that_can_not_be_is_refused(dtype):
    values = np.zeros(3, dtype)
    content = Activations(torch.ones(2, 3), "labels", np.array([1, 0], np.int32), 0, 3, 20).to_content()
    content["activations"]["activations"] = Array(str(values.dtype), (3,), "numpy.ndarray", Array(values).data)
    if dtype == "uint16":  # a tensor may hold them; that they are no activations is for the round to say
        assert Activations.from_content(content, step=0, label_policy="labels").values.dtype == torch.uint16
        return
    with pytest.raises(ValueError, match=r"a tensor can't hold|are not those of an array"):
        Activations.from_content(content, step=0, label_policy="labels")


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((), np.int32)])
def test_labels_that_are_no_rows_of_integers_are_refused(array):
    with pytest.raises(ValueError, match=r"^labels are .* expected integers, a row for each sample$"):
        RegisteredLabels.from_content(RegisteredLabels(array, 1).to_content())


def test_labels_without_a_digest_are_refused():
    content = RegisteredLabels(np.zeros(3, np.int32), 1).to_content()
    content["metrics"]["labels-digest"] = 0.5
    with pytest.raises(ValueError, match=r"^labels-digest is 0\.5, expected a whole number from 0 on$"):
        RegisteredLabels.from_content(content)

"""Training on another device than the CPU, as on PyTorch's meta device.

Nothing can be read from it, a tensor of the CPU can't be computed with one of its, and whatever is copied there is
counted: what runs on it leaves a GPU alone.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from espalier.app.algorithms.stacked_servers import StackedServers
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.tasks.common import on_device_if_it_fits
from espalier.app.tasks.stacking import check_stack
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.gradients import RecordedGradients
from espalier.clients.messages.labels import LabelTerms
from espalier.clients.messages.split import Activations, SplitFused, SplitStep
from espalier.clients.shared.arrays import to_array, to_record
from espalier.clients.shared.correction import Correction
from espalier.clients.shared.cut import Cut
from espalier.clients.shared.lanes import Lanes
from espalier.clients.shared.tensor_array import num_bytes
from espalier.clients.split.session import Session, SessionTerms
from espalier.clients.stacked.model import StackedModel
from espalier.clients.stacked.split import Half, Halves
from espalier.clients.stacked.training import stacked_sgd
from espalier.clients.task import ClientTask, Examples, LocalTraining
from espalier.clients.whole.training import batches_there, local_sgd, round_batches
from espalier.strategies.split.serving import MiniBatch
from tests.strategies.split.federation import tiny_model

META = torch.device("meta")
SIZES = (8, 8, 4) * 2  # of the mini-batches of a round
STEPS = len(SIZES)
INDICES = [(sum(SIZES),)]  # of all of them, copied at once


class Operations(TorchDispatchMode):
    """Counts what PyTorch does, and what it copies to the device."""

    def __init__(self):
        super().__init__()
        self.names = Counter()
        self.copies = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        name = function.overloadpacket.__name__
        self.names[name] += 1
        if name == "_to_copy" and options.get("device") == META and arguments[0].device != META:
            self.copies.append(tuple(arguments[0].shape))
        if name == "index" and arguments[0].device == META:  # a GPU gets a copy of such indices, and is waited for
            self.copies += [tuple(rows.shape) for rows in arguments[1] if rows is not None and rows.device != META]
        return function(*arguments, **options)


def task(**settings):
    generator = torch.Generator().manual_seed(0)
    train, test, held_back = (
        Examples(
            torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator),
            torch.randint(3, (count,), generator=generator),
        )
        for count in (20, 9, 4)
    )
    training = LocalTraining(**{"batches_per_epoch": STEPS, "batch_size": 8, "learning_rate": 0.1, **settings})
    return ClientTask(
        model=tiny_model().to(META),
        train=train,
        test=test,
        validation=held_back,
        prepare=lambda pixels: pixels / 255,
        training=training,
        seed=0,
        partition_id=0,
        class_counts=(7, 7, 6),
        device=META,
    )


def test_examples_are_put_on_the_device_as_they_are_laid_out():
    before = task()
    pixels = before.train.inputs.contiguous(memory_format=torch.channels_last)
    after = ClientTask(**{**vars(before), "train": Examples((pixels, {"mask": pixels > 9}), before.train.labels)})
    placed = after.on_device()
    assert placed.train.inputs[0].stride() == pixels.stride()
    tensors = [placed.train.inputs[0], placed.train.inputs[1]["mask"], placed.train.labels]
    tensors += [placed.test.inputs, placed.test.labels, placed.validation.inputs, placed.validation.labels]
    assert {tensor.device for tensor in tensors} == {META}
    assert (len(placed.train), len(placed.test), len(placed.validation)) == (20, 9, 4)
    assert after.num_bytes == placed.num_bytes == (20 * 2 + 9 + 4) * 64 + (20 + 9 + 4) * 8


def test_clients_are_placed_while_there_is_room():
    client = task()
    tasks, room = [], 2 * client.num_bytes + 1
    for _ in range(4):
        one, room = on_device_if_it_fits(client, room)
        tasks.append(one.train.labels.device.type)
    assert tasks == ["meta", "meta", "cpu", "cpu"]
    assert room == 1


def test_indices_go_where_the_examples_are_and_stay_where_nothing_is_won():
    def mini_batches():
        yield from torch.arange(20).split(8)

    examples, on_device = task().train, task().on_device().train
    there = list(batches_there(on_device, mini_batches()))
    assert [(len(batch), batch.device) for batch in there] == [(8, META), (8, META), (4, META)]
    given = mini_batches()
    assert batches_there(examples, given) is given  # on a CPU one permutation is in memory at a time
    assert batches_there(replace(examples, labels=on_device.labels), given) is given
    assert list(batches_there(on_device, [])) == []


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"optimizer": "adam"}])
def test_a_round_reads_nothing_from_the_device_and_copies_no_example_there(settings):
    placed = task(**settings).on_device()
    with Operations() as made, pytest.raises(RuntimeError, match="item"):  # the loss, at the end
        local_sgd(placed, server_round=1)
    assert made.names["nll_loss_backward"] == STEPS
    assert made.copies == INDICES


def test_a_recording_of_the_gradients_reads_nothing_from_the_device():
    def record(compute):
        compute()
        return compute

    placed = replace(task().on_device(), gradients=RecordedGradients(8, record))
    with Operations() as made, pytest.raises(RuntimeError, match="item"):  # the loss, at the end
        local_sgd(placed, server_round=1)
    assert made.names["nll_loss_backward"] == STEPS + 1
    assert made.copies == INDICES


def test_examples_that_stay_in_main_memory_are_copied_by_mini_batches():
    kept = task()
    with Operations() as made, pytest.raises(RuntimeError, match="item"):
        local_sgd(kept, server_round=1)
    assert made.copies == [shape for size in SIZES for shape in ((size, 1, 8, 8), (size,))]


def test_activations_and_gradients_of_a_split_client_stay_on_the_device():
    placed = task().on_device()
    terms = SessionTerms(Cut(1, len(placed.model)), server_round=1, label_policy="indices", local_epochs=1)
    session = Session(placed, terms)
    with Operations() as made:
        while not session.is_over:
            step = session.step
            sent = Activations.from_content(session.forward().to_content(), step=step, label_policy="indices")
            answer = SplitStep(1, step, "indices", torch.empty_like(sent.values))
            session.backward(SplitStep.from_content(answer.to_content()).gradient)
    assert made.names["convolution_backward"] == STEPS
    assert made.copies == []


CLIENTS = 3
WEIGHTS = tiny_model().state_dict()  # on the CPU, as they come in a message


def copies_of(weights):
    """Return what side by side is copied to the device: each tensor once for all clients."""
    return [(CLIENTS, *tensor.shape) for tensor in weights.values()]


@pytest.mark.parametrize(("settings", "mu"), [({}, 0.0), ({"optimizer": "adam"}, 0.5)])
def test_clients_side_by_side_read_nothing_from_the_device(settings, mu):
    placed = [task(**settings).on_device() for _ in range(CLIENTS)]
    stacked, trainings = StackedModel(placed[0].model), [one.training for one in placed]
    trained = {name: WEIGHTS[name] for name, _ in placed[0].model.named_parameters()}
    pulled = Correction(pull=mu, anchor=trained)
    with Operations() as made, pytest.raises(NotImplementedError, match="out of meta"):  # the losses, at the end
        stacked_sgd(stacked, placed, [WEIGHTS] * CLIENTS, 1, trainings, [pulled] * CLIENTS)
    # Four layers with two gradients, but for that of the inputs.
    assert made.names["bmm"] + made.names["baddbmm"] == (4 * 3 - 1) * STEPS
    assert made.names["_log_softmax"] == STEPS  # the losses of all clients at once
    assert made.copies == INDICES * CLIENTS + copies_of(WEIGHTS) + (copies_of(trained) if mu else [])


class Answering:
    """A lane to an edge whose gradients are on the device."""

    def __init__(self):
        self.steps = 0

    def exchange(self, sent):
        self.steps += 1
        return {node_id: torch.empty_like(one.values) for node_id, one in sent.items()}


def test_halves_side_by_side_read_nothing_from_the_device():
    placed, block = task().on_device(), tiny_model()[:1].state_dict()
    instruction = SplitFused(to_record(block), 1, 1, LabelTerms("indices"))
    batches, lanes, lane = round_batches(placed, 1, placed.training), Lanes(), Answering()
    there = list(batches_there(placed.train, batches))
    clients = [Half(node_id, placed, instruction, placed.training, batches, there) for node_id in range(CLIENTS)]
    lanes.open(range(CLIENTS), lambda clients: lane)
    with Operations() as made:
        halves = Halves(StackedModel(placed.model[:1]), clients)
        halves.train(lanes)
    assert (lane.steps, halves.left) == (STEPS, {})
    assert made.names["bmm"] + made.names["baddbmm"] == 2 * STEPS
    assert made.copies == copies_of(block)


def test_servers_blocks_side_by_side_read_but_the_losses_from_the_device():
    blocks = tiny_model().to(META)[1:]
    servers = StackedServers(StackedModel(blocks), blocks, LocalTraining(), cross_entropy)
    batches = [
        MiniBatch(node_id, torch.empty((8, 4, 8, 8), device=META), torch.zeros(8, dtype=torch.int64))
        for node_id in range(CLIENTS)
    ]
    with Operations() as made:
        answers = servers.step(batches, dict.fromkeys(range(CLIENTS)))
    assert {str(answer).split(":")[0] for answer in answers.values()} == {"Cannot copy out of meta tensor; no data!"}
    assert made.names["bmm"] + made.names["baddbmm"] == 3 * 3
    assert made.copies == [(CLIENTS, 8)]  # the labels


def test_memory_that_runs_out_for_servers_blocks_is_not_the_clients_failure():
    def loss(outputs, labels):
        raise torch.OutOfMemoryError("no room")

    blocks = tiny_model()[1:]
    servers = StackedServers(StackedModel(blocks), blocks, LocalTraining(), loss)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        servers.step([MiniBatch(0, torch.zeros((8, 4, 8, 8)), torch.zeros(8, dtype=torch.int64))], {0: None})


def test_a_model_with_dropout_is_not_stacked_there():
    digits = build_task(parse_config({}))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.5))
    check_stack(2, digits, model, torch.device("cpu"))
    check_stack(2, digits, model[:2], META)
    with pytest.raises(UserError, match="allowed is 0 for a model with dropout where models compute on meta"):
        check_stack(2, digits, model, META)


def test_bytes_of_what_is_on_the_device_are_counted_there():
    here, there = torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4, device=META)
    ours, expected = to_array(there), to_array(here)
    assert (num_bytes(ours), ours.dtype, ours.shape) == (num_bytes(expected), expected.dtype, expected.shape)
    with pytest.raises(NotImplementedError, match="no data"):
        ours.data  # noqa: B018

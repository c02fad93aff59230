"""Split training by a local loss: CSE-FSL, decoupled HSFL and FSL-SAGE against plain PyTorch, and what is left out."""

import copy

import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.messages.split_names import ACTIVATIONS, AUXILIARY_HEAD, SPLIT_LOCAL
from espalier.strategies.split import Fit, FslSage, LocalLossTransport, ServerBlock, SplitFedV1, SplitFedV2
from espalier.strategies.split.fsl_sage import fit_head
from tests.strategies.split.federation import assert_close, every, momentum_sgd, same, tiny_model, weights
from tests.strategies.split.local_losses import LocalFederation, head_of, plain_rounds, pooled_head

EDGES = {1: [[0, 1, 2, 3]], 2: [[0, 1], [2, 3]]}


def cse_fsl(federation, upload_every, *, cut=1, frozen_heads=False, **options):
    transport = LocalLossTransport(upload_every, frozen_heads=frozen_heads)
    return federation.split(SplitFedV2, cut, make_optimizer=momentum_sgd, transport=transport, **options)


def fsl_sage(federation, upload_every, fit, *, cut=1, **options):
    own = {"head": federation.head, "upload_every": upload_every, "fit": fit}
    return federation.split(FslSage, cut, make_optimizer=momentum_sgd, **own, **options)


def only_model(state, federation):
    return {name: state[name] for name in federation.make_model().state_dict()}


@pytest.fixture
def federation():
    return LocalFederation(pooled_head())


@pytest.mark.parametrize("num_edges", [1, 2])
def test_cse_fsl_is_the_plain_loop(num_edges, federation):
    make = cse_fsl(federation, 2)
    *_, last = federation.run(make, num_edges=num_edges, rounds=3, start=federation.start(with_heads=True))
    model, heads = plain_rounds(federation, 1, 2, edges=EDGES[num_edges], rounds=3)
    assert_close(weights(last), {**model, **heads[0].state_dict()}, 1e-6)


@pytest.mark.parametrize("num_edges", [1, 2])
def test_decoupled_hsfl_is_the_plain_loop(num_edges, federation):
    make = federation.split(SplitFedV1, every(1), make_optimizer=momentum_sgd, transport=LocalLossTransport(1))
    *_, last = federation.run(make, num_edges=num_edges, rounds=3, start=federation.start(with_heads=True))
    model, heads = plain_rounds(federation, 1, 1, edges=EDGES[num_edges], rounds=3, server_per_client=True)
    assert_close(weights(last), {**model, **heads[0].state_dict()}, 1e-6)


@pytest.mark.parametrize("num_edges", [1, 2])
def test_fsl_sage_is_the_plain_loop(num_edges, federation):
    made = {}

    def make(name, size):
        made[name] = fsl_sage(federation, 2, Fit(every=2, steps=5, rate=0.01, examples=20))(name, size)
        return made[name]

    *_, last = federation.run(make, num_edges=num_edges, rounds=3)
    model, heads = plain_rounds(federation, 1, 2, edges=EDGES[num_edges], rounds=3, sage=(2, 5, 0.01, 20))
    assert_close(weights(last), model, 1e-6)
    found = [head for _, edge in sorted(made.items()) for head in edge._heads.values()]
    for head, expected in zip(found, heads.values(), strict=True):
        assert_close(head, expected.state_dict(), 1e-6)


@pytest.mark.parametrize("upload_every", [0, 1, 2, 100])
def test_as_many_activations_travel_as_are_asked_for(upload_every, federation):
    sent = []
    app = federation.app()

    def watched(message, context):
        reply = app(message, context)
        if message.metadata.message_type == SPLIT_LOCAL:
            sent.append(sorted(reply.content.get(ACTIVATIONS, {}), key=int))
        return reply

    start = federation.start(with_heads=True)
    (last,) = federation.run(cse_fsl(federation, upload_every), rounds=1, start=start, grid=federation.grid(watched))
    steps = [3, 5, 2, 5]  # of 20, 33, 14 and 40 examples in mini-batches of 8
    expected = [list(map(str, range(0, n, upload_every))) if upload_every else [] for n in steps]
    assert sorted(sent) == sorted(expected)
    server = {name: tensor for name, tensor in start.state_dict().items() if name.startswith(("second", "third"))}
    assert all(torch.equal(weights(last)[name], tensor) for name, tensor in server.items()) == (upload_every == 0)


def test_fsl_sage_that_never_fits_is_cse_fsl_with_frozen_heads(federation):
    *_, never = federation.run(fsl_sage(federation, 1, Fit(every=0)), rounds=3)
    *_, frozen = federation.run(cse_fsl(federation, 1, frozen_heads=True), rounds=3)
    assert same(weights(never), weights(frozen))


def test_a_head_like_the_servers_blocks_gives_the_gradients_of_sfl_v1():
    """In the first step, of which a round has one: what comes of the clients' blocks then tells their gradients."""
    model = tiny_model().double()
    federation = LocalFederation(head_of(lambda: copy.deepcopy(model[2:])), batches_per_epoch=1)
    (local,) = federation.run(cse_fsl(federation, 1, cut=2), rounds=1, start=federation.start(with_heads=True))
    (v1,) = federation.run(federation.split(SplitFedV1, every(2)), rounds=1)
    client = [name for name in model.state_dict() if name.startswith(("first", "second"))]
    start = model.state_dict()
    found, expected = ({n: (start[n] - weights(last)[n]) / 0.05 for n in client} for last in (local, v1))
    assert_close(found, expected, 1e-6)
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-2


def test_a_head_that_is_fitted_to_the_end_gives_the_gradient_of_a_linear_server():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Linear(6, 3)).double()
    server = ServerBlock(model, 1, momentum_sgd)
    activations, labels = torch.randn(40, 6, dtype=torch.float64), torch.randint(3, (40,))
    head = nn.Linear(6, 3).double()
    true = server.gradient(activations, labels)

    def distance():
        inputs = activations.clone().requires_grad_(True)
        (estimate,) = torch.autograd.grad(cross_entropy(head(inputs), labels), inputs)
        return (estimate - true).abs().max()

    assert distance() > 1e-3
    assert fit_head(head, activations, labels, true, cross_entropy, steps=600, rate=0.03)
    assert fit_head(head, activations, labels, true, cross_entropy, steps=200, rate=0.001)
    assert distance() < 1e-4 * true.abs().max()


def test_fitting_leaves_the_servers_blocks_as_they_are():
    model = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    server = ServerBlock(model, 1, momentum_sgd)
    before = {name: tensor.clone() for name, tensor in server.blocks.state_dict().items()}
    assert server.gradient(torch.randn(5, 6), torch.arange(5) % 3).abs().max() > 0
    assert same(before, server.blocks.state_dict())


def spoilt(app, how, client=1):
    def answer(message, context):
        reply = app(message, context)
        if context.node_config["partition-id"] == client and message.metadata.message_type == SPLIT_LOCAL:
            answer.node_id = context.node_id
            return how(message, reply)
        return reply

    return answer


def with_activations(change):
    def how(message, reply):
        record = reply.content[ACTIVATIONS]
        reply.content[ACTIVATIONS] = ArrayRecord({n: Array(v) for n, v in change(dict(_values(record))).items()})
        return reply

    return how


def _values(record):
    return {name: array.numpy() for name, array in record.items()}


def with_metrics(**told):
    def how(message, reply):
        own = {name.replace("_", "-") if name != "train_loss" else name: value for name, value in told.items()}
        reply.content["metrics"] = MetricRecord({**reply.content["metrics"], **own})
        return reply

    return how


def with_labels(message, reply):
    record = _values(reply.content["labels"])
    reply.content["labels"] = ArrayRecord({n: Array(v + 3) for n, v in record.items()})
    return reply


def with_head(message, reply):
    block = {
        n: v * float("nan") if n.startswith(AUXILIARY_HEAD) else v
        for n, v in _values(reply.content["client-block"]).items()
    }
    reply.content["client-block"] = ArrayRecord({n: Array(v) for n, v in block.items()})
    return reply


LIES = {
    "hold NaN or Inf": with_activations(lambda own: {**own, "2": own["2"] * float("nan")}),
    "activations have shape": with_activations(lambda own: {**own, "0": own["0"][:, :3]}),
    "it sends activations of 4 mini-batches, expected those of 3": with_activations(lambda own: {**own, "6": own["0"]}),
    "it sends activations of 2 mini-batches, expected those of 3": with_activations(
        lambda own: {n: own[n] for n in ("0", "2")}
    ),
    "9 activations in a mini-batch": with_activations(lambda own: {**own, "0": own["0"][[0] * 9]}),
    "8 labels for 7 activations": with_activations(lambda own: {**own, "0": own["0"][:7]}),
    "a label is out of range": with_labels,
    "its examples make 5 at most": with_metrics(step=5),
    "step is -1": with_metrics(step=-1),
    "metric 'train_loss' is nan": with_metrics(train_loss=float("nan")),
    "holds NaN": with_head,
    "the battery is empty": lambda message, reply: Message(Error(3, "the battery is empty"), reply_to=message),
    "NaN or too large": with_activations(lambda own: {**own, "4": own["4"] * 1e300}),
}


@pytest.mark.parametrize("reason", LIES)
def test_a_liar_is_left_out_and_named(reason, federation):
    options = {"label_policy": "labels", "max_batch": 8, "max_steps": lambda node_id: 5}
    start = federation.start(with_heads=True)
    lying = spoilt(federation.app(), LIES[reason])
    grid = federation.grid(lying)
    (round_,) = federation.run(cse_fsl(federation, 2, **options), rounds=1, start=start, grid=grid)
    (update,) = (edge.updates[0] for edge in round_.edges.values())
    (failure,) = update.failures
    assert reason in failure.reason
    assert failure.node_id == lying.node_id
    assert len(update.participants) == 3
    if reason == "NaN or too large":  # the shared block keeps the steps that were made before
        return
    dead = federation.grid(spoilt(federation.app(), LIES["the battery is empty"]))
    (without,) = federation.run(cse_fsl(federation, 2, **options), rounds=1, start=start, grid=dead)
    assert same(weights(round_), weights(without))


def test_activations_that_nobody_asked_for_are_a_reason(federation):
    def how(message, reply):
        reply.content[ACTIVATIONS] = ArrayRecord()
        return reply

    grid = federation.grid(spoilt(federation.app(), how))
    (round_,) = federation.run(cse_fsl(federation, 0), rounds=1, start=federation.start(with_heads=True), grid=grid)
    (update,) = (edge.updates[0] for edge in round_.edges.values())
    assert [failure.reason for failure in update.failures] == ["it sends activations, where none are asked for"]


def test_a_head_goes_down_once_and_again_to_whom_it_did_not_reach(federation):
    """Heads are fitted after round 1: they are in the instructions of round 2, and for who fails there of round 3."""
    app, came = federation.app(), []

    def watched(message, context):
        client = context.node_config["partition-id"]
        if message.metadata.message_type == SPLIT_LOCAL:
            number = message.content["config"]["server-round"]
            came.append((number, client, "edge-half" in message.content))
            if (number, client) == (2, 1):
                return Message(Error(3, "the battery is empty"), reply_to=message)
        return app(message, context)

    federation.run(fsl_sage(federation, 1, Fit(every=100, steps=1)), rounds=4, grid=federation.grid(watched))
    assert {(number, client) for number, client, brings in came if brings} == {(2, 0), (2, 1), (2, 2), (2, 3), (3, 1)}


def test_an_edge_goes_on_from_its_state(federation):
    """Heads, who has not got them, and the examples that are kept, all are in it."""
    make = fsl_sage(federation, 2, Fit(every=2, steps=2, rate=0.01, examples=20))
    edge, other = make("a", 4), make("a", 4)
    federation.run(lambda name, size: edge, rounds=3)
    other.load_state_dict(edge.state_dict())
    assert other._due == edge._due != set()
    assert all(same(other._heads[n], edge._heads[n]) for n in edge._heads)
    assert all(torch.equal(a, b) for n in edge._kept for a, b in zip(other._kept[n], edge._kept[n], strict=True))
    assert {len(labels) for _, labels in edge._kept.values()} == {20}

"""Replies are brought into the form of the model that was sent, and refused where that can't be."""

import random
from functools import cache

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Bulyan, FedAvg, FedAvgM, FedMedian, MultiKrum, QFedAvg

from espalier.sim.flower_private import ensure_run_id
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import AccumulatedGradients, Hierarchical, StrategyEdge
from espalier.strategies.replies import reason_of
from espalier.strategies.reply_faults import loss_faults
from espalier.strategies.reply_forms import in_form_of
from espalier.strategies.screening import screen
from espalier.strategies.split import SplitFedV1, SplitFedV2
from tests.strategies.split.federation import Federation, same, weights
from tests.strategies.toys import initial, to_numpy, to_record, toy_app, toy_topology

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
KINDS = {
    "Bulyan": lambda: Bulyan(num_malicious_nodes=0, **ANY),
    "FedAvg": lambda: FedAvg(**ANY),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9, **ANY),
    "FedMedian": lambda: FedMedian(**ANY),
    "MultiKrum": lambda: MultiKrum(num_malicious_nodes=0, num_nodes_to_select=3, **ANY),
    "QFedAvg": lambda: QFedAvg(client_learning_rate=0.1, **ANY),
}


def altering(app, change, clients=(0,)):
    """Return an app like `app` in which `change` gets the replies of some clients to instructions to train."""
    altered = ClientApp()

    def handle(message, context):
        reply = app(message, context)
        if message.metadata.message_type.startswith("train") and context.node_config["partition-id"] in clients:
            change(reply)
        return reply

    for action in ("", "accumulated", "split_begin", "split_step", "split_end"):
        altered.train(action)(handle) if action else altered.train()(handle)
    altered.evaluate()(handle)
    for action in ("profile", "labels"):
        altered.query(action)(handle)
    return altered


def arrays_as(convert):
    """Return a change of every array in a reply's model, gradient or client block."""

    def change(reply):
        for name in ("arrays", "accumulated-gradient", "client-block"):
            if name in reply.content:
                record = reply.content[name]
                reply.content[name] = to_record({k: convert(v) for k, v in to_numpy(record).items()})

    return change


def backwards(reply):
    reply.content["arrays"] = ArrayRecord(dict(reversed(reply.content["arrays"].items())))


def toy_run(make, app=None):
    grid = InProcessGrid(app or toy_app(), 5)
    strategy = Hierarchical(FedAvg(**ANY), lambda name, size: make(), toy_topology(grid, 1))
    (*_, last) = strategy.rounds(grid, to_record(initial()), 2)
    return last


@cache
def straight_run(kind):
    """Return what clients come to that change nothing of their replies."""
    return to_numpy(toy_run(KINDS[kind]).arrays)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", [0, 3])
def test_the_order_in_which_a_client_names_its_arrays_changes_nothing(kind, client):
    turned = toy_run(KINDS[kind], altering(toy_app(), backwards, [client]))
    assert list(turned.arrays) == list(initial())
    for name, values in straight_run(kind).items():
        np.testing.assert_array_equal(turned.arrays[name].numpy(), values)


@pytest.mark.parametrize("dtype", [np.float64, ">f4", np.longdouble])
@pytest.mark.parametrize("kind", KINDS)
def test_other_types_of_the_same_numbers_change_nothing(kind, dtype):
    other = toy_run(KINDS[kind], altering(toy_app(), arrays_as(lambda v: v.astype(dtype))))
    for name, values in straight_run(kind).items():
        np.testing.assert_array_equal(other.arrays[name].numpy(), values)
        assert other.arrays[name].dtype == "float32"


@pytest.mark.parametrize("kind", ["FedAvg", "FedAvgM", "MultiKrum"])
@pytest.mark.parametrize("claim", ["bfloat16", "", "torch.float32", "float64", "float32"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_an_array_says_of_itself_changes_nothing(kind, claim, dtype):
    def claiming(reply):
        arrays_as(lambda v: v.astype(dtype))(reply)
        honest = reply.content["arrays"]
        reply.content["arrays"] = ArrayRecord(
            {name: Array(dtype=claim, shape=(1,), stype=array.stype, data=array.data) for name, array in honest.items()}
        )

    other = toy_run(KINDS[kind], altering(toy_app(), claiming))
    for name, values in straight_run(kind).items():
        np.testing.assert_array_equal(other.arrays[name].numpy(), values)
        assert (other.arrays[name].dtype, tuple(other.arrays[name].shape)) == ("float32", values.shape)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.complex64])
def test_integers_are_no_weights(dtype):
    outcome = toy_run(KINDS["FedAvg"], altering(toy_app(), arrays_as(lambda v: v.astype(dtype))))
    (edge,) = outcome.edges.values()
    (failure,) = edge.updates[0].failures
    assert failure.reason == f"array 'w' has dtype {np.dtype(dtype)}, expected float32"


def split(kind):
    return lambda federation: federation.split(kind, (lambda n: 1) if kind is SplitFedV1 else 1)


@pytest.mark.parametrize("dtype", [">f8", np.longdouble, np.float16, np.int64])
@pytest.mark.parametrize(
    "make",
    [
        lambda federation: lambda name, size: AccumulatedGradients(0.05, StrategyEdge(FedAvg(**ANY))),
        split(SplitFedV1),
        split(SplitFedV2),
    ],
    ids=["accumulated gradients", "sfl-v1", "sfl-v2"],
)
def test_no_client_decides_the_type_of_the_model(make, dtype):
    federation = Federation(sizes=(20, 33, 14))
    app = altering(federation.app(), arrays_as(lambda v: v.astype(dtype) if v.dtype.kind == "f" else v))
    outcome = federation.run(make(federation), grid=federation.grid(app), rounds=1)[0]
    assert {name: w.dtype for name, w in weights(outcome).items()} == {
        name: w.dtype for name, w in federation.make_model().state_dict().items()
    }
    failures = outcome.edges["edge-0"].updates[0].failures
    assert len(failures) == (dtype is np.int64)
    if dtype in (">f8", np.longdouble):
        assert same(weights(outcome), weights(federation.run(make(federation), rounds=1)[0]))


def test_a_model_that_is_in_form_is_not_copied():
    record = to_record(initial())
    assert in_form_of(record, record) is record
    turned = ArrayRecord(dict(reversed(record.items())))
    assert list(in_form_of(record, turned).items()) == list(record.items())


class Lazy(FedAvg):
    """Makes its messages when they are taken."""

    def configure_train(self, *what):
        yield from super().configure_train(*what)

    def configure_evaluate(self, *what):
        yield from super().configure_evaluate(*what)


def test_a_strategy_that_makes_its_messages_lazily_draws_by_the_seed_too():
    drawn = []
    for state in range(3):
        random.seed(state)
        grid = InProcessGrid(toy_app(), 8)
        options = ANY | {"fraction_train": 0.5, "fraction_evaluate": 0.5}
        topology = toy_topology(grid, 1)
        strategy = Hierarchical(FedAvg(**ANY), lambda name, size, o=options: Lazy(**o), topology)
        (outcome,) = strategy.rounds(grid, to_record(initial()), 1)
        places = {n: i for i, n in enumerate(topology["edge-0"])}
        trained = outcome.edges["edge-0"].updates[0].participants
        drawn.append(([places[n] for n in trained], [places[n] for n in outcome.evaluations["edge-0"].replies]))
    assert drawn[0] == drawn[1] == drawn[2]
    assert [len(places) for places in drawn[0]] == [4, 4]


def of_simulation(raised, said):
    """Return the reason of Flower's simulation for what a ClientApp raised: the traceback of a Ray worker."""
    worker = "\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=7, ip=192.0.2.2, actor_id=e8a9)"
    frame = '  File "/app/client.py", line 4, in train\n    raise '
    link = "The above exception was the direct cause of the following exception:"
    end = f"flwr.clientapp.client_app.ClientAppException: \nException ClientAppException occurred. Message:{said}'>"
    kind = "<class 'ray.exceptions.RayTaskError(ClientAppException)'>"
    return f"{kind}:<'{worker}\n{20 * frame}\n{raised}\n\n{link}\n\n{worker}\n{frame}\n{end}"


def test_the_reason_of_an_error_reply_reaches_a_strategy_in_one_printable_line():
    ensure_run_id()
    instruction = Message(RecordDict(), 7, "train")
    odd, plain = "no room\nround 9: all is well \x1b[2J \udc80", "no room"
    reasons = odd, plain, of_simulation("ValueError: no room", " no room")
    replies = [Message(Error(203, reason), reply_to=instruction) for reason in reasons]
    screened, _ = screen([instruction] * 3, replies, "num-examples")
    assert [reply.error.code for reply in screened] == [203, 203, 203]
    assert screened[2].error.reason == "ValueError: no room"
    assert screened[0].error.reason == "no room round 9: all is well \\x1b[2J \\udc80"
    assert screened[1] is replies[1]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (of_simulation("RuntimeError: no\nroom", " no\nroom"), "RuntimeError: no room"),
        (of_simulation("my_app.client.Odd: a: b", " a: b"), "Odd: a: b"),
        (of_simulation("ValueError", ""), "ValueError"),
        (of_simulation("told otherwise", " no room"), "no room"),
        (
            "<class 'app.errors.UserError'>:<'data-dir = '/x': no such folder'>",
            "UserError: data-dir = '/x': no such folder",
        ),
        ("<class 'tests.test_own.<locals>.Odd'>:<''>", "Odd: "),
        ("<class 'ValueError'>:<'it was cut o", "ValueError: it was cut o"),
        ("ClientApp stopped responding.", "ClientApp stopped responding."),
        ("", "error 203"),
    ],
)
def test_an_exception_of_a_client_reads_the_same_whichever_engine_told_of_it(reason, said):
    assert reason_of(Error(203, reason)) == said


def screened_with_variates(*contents):
    """Return what is left of replies to instructions that hold a model and its control variates, and the failures."""
    ensure_run_id()
    instructions = [
        Message(RecordDict({"model": constant(0), "variates": constant(0)}), n, "train") for n in range(len(contents))
    ]
    replies = [
        Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 5})}), reply_to=instruction)
        for content, instruction in zip(contents, instructions, strict=True)
    ]
    return screen(instructions, replies, "num-examples")


def constant(value):
    return ArrayRecord({"w": Array(np.full(3, value, np.float32))})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"model": constant(1), "change": constant(np.nan)}, "array 'w' holds NaN or Inf"),
        ({"model": constant(1)}, "its reply has no record 'change', which others have"),
        ({"model": constant(1), "change": constant(1), "x" * 101: constant(1)}, "the name of a record is 'xxx"),
    ],
)
def test_replies_in_words_of_their_own_are_judged_by_their_numbers_and_names(content, reason):
    good = {"model": constant(1), "change": constant(2)}
    replies, (failure,) = screened_with_variates(good, content, good)
    assert failure.node_id == 1
    assert failure.reason.startswith(reason)
    assert [reply.has_error() for reply in replies] == [False, True, False]


def test_a_record_that_others_have_not_is_dropped():
    good = {"model": constant(1), "change": constant(2)}
    replies, failures = screened_with_variates(good, good | {"more": constant(3)}, good)
    assert failures == []
    assert [sorted(reply.content) for reply in replies] == [["change", "metrics", "model"]] * 3


def test_the_majority_decides_a_boolean():
    reference = ArrayRecord({"mask": Array(np.array([True, False, False]))})
    mean = ArrayRecord({"mask": Array(np.array([0.9, 0.1, 0.6]))})
    assert to_numpy(in_form_of(reference, mean))["mask"].tolist() == [True, False, True]


def test_what_a_client_calls_the_accuracy_of_its_training_may_be_in_percent():
    def in_percent(reply):
        told = reply.content["metrics"]
        reply.content["metrics"] = MetricRecord({**told, "accuracy": 57.5, "top-loss": 3.5})

    found = toy_run(KINDS["FedAvg"], altering(toy_app(), in_percent, range(5)))
    (edge,) = found.edges.values()
    assert [update.failures for update in edge.updates] == [[]]
    assert to_numpy(found.arrays)["w"].tolist() == to_numpy(toy_run(KINDS["FedAvg"]).arrays)["w"].tolist()


@pytest.mark.parametrize("losses", [[1e20, 3e21, 2e20], [1e38, -1e30, 1e25]])
def test_losses_of_a_model_that_gets_worse_without_bound_are_large_with_everybody(losses):
    assert loss_faults([{"loss": loss} for loss in losses]) == [""] * 3


def test_a_loss_is_absurd_beside_the_others():
    reason = "metric 'loss' is 9.223372036854776e+18, expected a loss of less than 2.3e+18"
    assert loss_faults([{"loss": 2.3}, {"loss": 2.0**63}, {"loss": 2.3}]) == ["", reason, ""]
    assert [bool(fault) for fault in loss_faults([{"loss": -1e38}, {"other": -1e38}, {}])] == [True, False, False]
    assert [bool(fault) for fault in loss_faults([{"loss": 1e14}])] == [False]


def test_what_clients_tell_in_words_reaches_a_strategy_of_ones_own():
    who = []

    class Asking(FedAvg):
        def aggregate_train(self, server_round, replies):
            who.append([reply.content.pop("about")["who"] for reply in replies if not reply.has_error()])
            return super().aggregate_train(server_round, replies)

    def tell(reply):
        reply.content["about"] = ConfigRecord({"who": f"node {reply.metadata.src_node_id}"})

    app = altering(toy_app(), tell, clients=(0, 1, 2))
    grid = InProcessGrid(app, num_nodes=4)
    topology = toy_topology(grid, 1)
    (outcome,) = Hierarchical(FedAvg(**ANY), lambda n, s: Asking(**ANY), topology).rounds(grid, to_record(initial()), 1)
    (edge,) = topology.values()
    assert who == [[f"node {node}" for node in edge[:3]]]
    ((failure),) = outcome.edges["edge-0"].failures
    assert (failure.node_id, failure.reason) == (edge[3], "its reply has no config record 'about', which others have")


def test_a_config_stands_in_for_no_arrays():
    app = InProcessGrid(toy_app(), num_nodes=3)
    nodes = list(app.get_node_ids())
    two = {"a": to_record(initial()), "b": to_record(initial())}
    asked = [Message(RecordDict(dict(two)), dst_node_id=node, message_type="train") for node in nodes]
    metrics = MetricRecord({"num-examples": 1})
    replies = [Message(RecordDict({**two, "metrics": metrics}), reply_to=message) for message in asked]
    replies[2].content["a"] = ConfigRecord({"x": 1})
    _, (failure,) = screen(asked, replies, "num-examples")
    assert (failure.node_id, failure.reason) == (nodes[2], "its reply has no record 'a', which others have")

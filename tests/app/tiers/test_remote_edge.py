"""What the cloud makes of an edge's answers, honest or not."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from espalier.app.ground.checkpoint import from_bytes, to_bytes
from espalier.app.ground.errors import UserError
from espalier.app.meters.bytes import Link
from espalier.app.meters.seconds import OfEdge, Seconds
from espalier.app.tiers.remote_edge import EdgeFailed, RemoteEdge
from espalier.app.tiers.states import AtCloud
from espalier.app.tiers.wire import (
    Counted,
    counted_to_wire,
    evaluation_to_wire,
    heads_to_wire,
    outcome_to_wire,
    profile_from_wire,
    profile_to_wire,
    updates_from_wire,
)
from espalier.clients.messages.edge import PAYLOAD, from_payload, to_payload
from espalier.clients.messages.profile import MOST_CLASSES
from espalier.clients.messages.train import ARRAYS
from espalier.clients.shared.arrays import to_array
from espalier.clients.shared.compression import Int8
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import EdgeOutcome, Evaluation, Failure, Profile, Update
from espalier.strategies.compression import CompressedUplinks, CountedUplinks, PlainUplinks
from espalier.strategies.edges import EVERYBODY
from espalier.strategies.split import FineTuning, Personalised
from espalier.strategies.views import MemberGrid

CLIENTS = (2, 5)
PROFILES = [Profile(72 + i, client, "west", 10, 9, ()) for i, client in enumerate(CLIENTS)]
NODES = {71: 2, 72: 5}  # at the edge's host
COUNTED: list = []  # what the edge's counts are told to
NOTHING = {"sent": [], "plans": []}
CONFIG = ConfigRecord({"server-round": 2, "lr": 0.5})
HEAD = ArrayRecord({"head.bias": Array(np.zeros(2, np.float32))})


def model(*values):
    return ArrayRecord({"w": Array(np.array(values, np.float32)), "n": Array(np.array(7, np.int64))})


GOOD = EdgeOutcome(
    model(3.0, 4.0),
    [
        Update(model(1.0, 2.0), MetricRecord({"train_loss": 0.1}), 11.0, [71, 72], []),
        Update(failures=[Failure(EVERYBODY, "nobody"), Failure(72, "late")]),
        Update(model(3.0, 4.0), MetricRecord({"train_loss": 0.3}), 5, [72], [Failure(71, "gone")]),
    ],
    1.0,
)


@pytest.fixture
def remote():
    InProcessGrid(lambda message, context: message, 1)  # messages need a run
    return RemoteEdge(
        "west",
        99,
        PROFILES,
        3,
        AtCloud({"edge": {"round": 0}}),
        wait_seconds=4.0,
        reply_seconds=8.0,
        head=HEAD,
        is_planned=True,
        on_counted=lambda name, counted: COUNTED.append((name, counted)),
    )


@pytest.fixture(autouse=True)
def _no_counts():
    COUNTED.clear()


def members():
    return MemberGrid(InProcessGrid(lambda message, context: message, 1), [])


def answered(conversation, wire):
    """Return the one message of a conversation, and its result after the answer."""
    (message,) = next(conversation)
    content = wire if isinstance(wire, RecordDict) else RecordDict({PAYLOAD: to_payload(to_bytes(wire))})
    with pytest.raises(StopIteration) as stop:
        conversation.send([Message(content, reply_to=message)])
    return message, stop.value.value


def train(remote, wire, server_round=4):
    return answered(remote.train_round(server_round, model(0.0, 0.0), CONFIG, members()), wire)


def wire_of(outcome=GOOD, **changes):
    return (
        outcome_to_wire(outcome, outcome.arrays and {ARRAYS: outcome.arrays}, NODES)
        | {"state": {"edge": {"round": 3}}, "counted": NOTHING}
        | changes
    )


def test_one_exchange_gives_all_edge_rounds_of_a_global_round(remote):
    message, first = train(remote, wire_of())
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (99, "train.edge")
    assert dict(message.content["config"]) == {"wait-seconds": 4.0, "reply-seconds": 8.0}
    request = from_bytes(from_payload(message.content))
    assert (request["round"], request["config"], request["state"]) == (2, CONFIG, {"edge": {"round": 0}})
    updates = [first]
    for server_round in (5, 6):
        with pytest.raises(StopIteration) as stop:
            next(remote.train_round(server_round, model(0.0, 0.0), CONFIG, members()))
        updates.append(stop.value.value)
    there = EdgeOutcome(GOOD.arrays, GOOD.updates, 0.0)
    here = EdgeOutcome(updates[-1].arrays, updates, 0.0)
    assert (here.weight, here.metrics) == (there.weight, there.metrics) == (8.0, {"train_loss": 0.3})
    assert [update.arrays is not None for update in updates] == [True, False, True]
    assert updates[2].arrays["w"].numpy().tolist() == [3.0, 4.0]
    assert [list(update.participants) for update in updates] == [[3, 6], [], [6]]
    assert updates[1].failures == [Failure(EVERYBODY, "nobody"), Failure(6, "late")]
    assert remote.state_dict() == {"edge": {"round": 3}}


def test_an_edge_whose_run_has_other_settings_by_now_is_left_out_until_it_has_the_same(caplog):
    def check(name, config):
        if config["seed"]:
            raise UserError(f"seed = 0, but {config['seed']} at edge {name!r}")

    caplog.set_level("INFO", "espalier")
    state = AtCloud({"edge": {"round": 0}})
    edge = RemoteEdge("west", 99, PROFILES, 3, state, wait_seconds=0, reply_seconds=0, check_config=check)
    _, update = train(edge, wire_of(config={"seed": 7}), server_round=1)
    assert update == Update(failures=[Failure(EVERYBODY, "seed = 0, but 7 at edge 'west'")])
    assert edge.state_dict() == {"edge": {"round": 0}}  # what was trained otherwise is not taken
    _, evaluation = answered(
        edge.evaluate_round(3, model(1.0, 1.0), CONFIG, members()),
        evaluation_to_wire(Evaluation(), NODES) | {"state": {}, "counted": NOTHING, "config": {"seed": 7}},
    )
    assert evaluation.failures == update.failures
    _, update = train(edge, wire_of(config={"seed": 0}))
    assert list(update.participants) == [3, 6]
    assert [record.getMessage() for record in caplog.records] == ["edge 'west' is back"]


def claimed(data, size=3):
    return ArrayRecord({PAYLOAD: Array("uint8", (size,), "numpy.ndarray", data)})


ONE = to_array(torch.zeros(1, dtype=torch.uint8)).data
HUGE = ONE[:-1].replace(b"(1,), }" + b" " * 14, b"(100000000000000,), }")


def round_of(**changes):
    wire = outcome_to_wire(GOOD, {ARRAYS: GOOD.arrays}, NODES)
    return {"rounds": [wire["rounds"][0] | changes, *wire["rounds"][1:]]}


DEEP: list = []
for _ in range(100):
    DEEP = [DEEP]
BAD = {
    "NaN": ({"sent": {ARRAYS: model(math.nan, 0.0)}}, "array 'w' holds NaN or Inf"),
    "shape": ({"sent": {ARRAYS: model(1.0)}}, r"array 'w' has shape \(1,\), expected \(2,\)"),
    "missing": ({"sent": {ARRAYS: ArrayRecord({"w": Array(np.zeros(2, np.float32))})}}, "array 'n' is missing"),
    "no arrays": ({"sent": {ARRAYS: 3}}, "AttributeError"),
    "nothing sent": ({"sent": 3}, "TypeError"),
    "no model": ({"sent": None}, "edge rounds that do not fit its model"),
    "perhaps a model": (round_of(trained=1), "'trained' of an edge round is no boolean"),
    "fewer rounds": ({"rounds": []}, "0 edge rounds that do not fit"),
    "no rounds": ({"rounds": None}, "TypeError"),
    "weight": (round_of(weight=-1.0), "a weight is -1.0"),
    "weight inf": (round_of(weight=math.inf), "a weight is inf"),
    "weight of more than there is": (round_of(weight=10**12), r"its weight is 1e\+12, its clients have 20 examples"),
    "20,000 metrics": (
        round_of(metrics=MetricRecord({f"m{i}": 0.0 for i in range(20_000)})),
        "20000 entries in record 'metrics', expected 1000 at most",
    ),
    "a long name": (
        round_of(metrics=MetricRecord({"m" * 2 * 10**7: 0.0})),
        r"a name in record 'metrics' is 'm+\.\.\.m+', expected 100 printable characters at most",
    ),
    "weight text": (round_of(weight="much"), "a weight is 'much'"),
    "foreign": (round_of(participants=[3]), "client 3 is not one of the edge's"),
    "metrics": (round_of(metrics=MetricRecord({"train_loss": math.nan})), "metric 'train_loss' is nan"),
    "no metrics": (round_of(metrics=[1]), "metrics are a list"),
    "failures": (round_of(failures=[3]), "TypeError"),
    "no reason": (round_of(failures=[(2, ["x"] * 10**6)]), r"a reason is \['x', .*\], expected a text"),
    "failures of others": (round_of(failures=[(3, "x")]), "client 3 is not one of the edge's"),
    "deep state": ({"state": DEEP}, "it is not packed data"),
    "state": ({"state": "none"}, "its state is a str"),
    "weight too large": (round_of(weight=10**400), "OverflowError"),
    "two losses": (round_of(metrics=MetricRecord({"train_loss": [0.1, 0.2]})), r"metric 'train_loss' is \[0.1, 0.2\]"),
    "round is an array": ({"rounds": [np.zeros(2)] * 3}, "IndexError"),
    "participant is an array": (round_of(participants=[np.array([2])]), r"client array\(\[2\]\) is not one"),
}


PLAN = {
    "eligible": [2, 5],
    "selected": [5],
    "local_rounds": [3],
    "option": [0],
    "frequency_hz": [1e9],
    "power_watts": [0.5],
    "late": [5],
    "spare": [],
    "compute_joules": [0.25],
    "upload_joules": [0.125],
    "seconds": 2.5,
    "short": False,
    "converged": True,
    "eligible_at_full_power": [],
}


def planned(*reports, first=4, **changes):
    return {"counted": {"sent": [], "plans": [(first + i, PLAN | one) for i, one in enumerate(reports)]} | changes}


def timed(clients, edge=(1.0, 2.0, 3.0, 3)):
    return planned(seconds={"clients": clients, "edge": list(edge)})


BAD |= {
    "seconds of others": (timed({3: [1.0, 0.0, 0.0, 1]}), "client 3 is not one of the edge's"),
    "endless seconds": (timed({}, (math.inf, 0.0, 0.0, 1)), "its seconds are no numbers >= 0"),
    "negative seconds": (timed({2: [-1.0, 0.0, 0.0, 1]}), "its seconds are no numbers >= 0"),
    "half a round": (timed({2: [1.0, 0.0, 0.0, 0.5]}), "its seconds are no numbers >= 0"),
    "no seconds": (planned(seconds=3), "TypeError"),
    "no counts": ({"counted": None}, "TypeError"),
    "bytes of nothing": (planned(sent=[("uplink", "model")]), "not enough values"),
    "sideways": (planned(sent=[("sideways", "model", 1)]), "its bytes are of 'sideways', 'model'"),
    "a kind of its own": (planned(sent=[("uplink", "x" * 10**6, 1)]), "its bytes are of 'uplink', 'xxx"),
    "two lines": (planned(sent=[("uplink", "a\nb", 1)]), r"its bytes are of 'uplink', 'a.nb'"),
    "twice": (planned(sent=[("uplink", "model", 1)] * 2), "its bytes are of 'uplink', 'model'"),
    "negative": (planned(sent=[("uplink", "model", -1)]), "its bytes of 'model' are -1"),
    "too many": (planned(sent=[("uplink", "model", 10**400)]), "its bytes of 'model' are 1000"),
    "half a byte": (planned(sent=[("uplink", "model", 0.5)]), "its bytes of 'model' are 0.5"),
    "other rounds": (planned({}, first=3), r"its plans are of edge rounds \[3\]"),
    "more rounds": (planned({}, {}, {}, {}), r"its plans are of edge rounds \[4, 5, 6, 7\]"),
    "a round twice": (planned(plans=[(4, PLAN)] * 2), r"its plans are of edge rounds \[4, 4\]"),
    "no plan": (planned(plans=[(4, [1])]), "a plan has other fields"),
    "more fields": (planned({"more": 1}), "a plan has other fields"),
    "foreign selected": (planned({"selected": [3]}), "'selected' of a plan holds others than the edge's clients"),
    "late but not selected": (planned({"late": [2]}), "'late' of a plan holds others than those selected"),
    "spare but not selected": (planned({"spare": [2]}), "'spare' of a plan holds others than those selected"),
    "selected twice": (planned({"selected": [5, 5]}), "'selected' of a plan holds a client twice"),
    "no list": (planned({"eligible": 2}), "'eligible' of a plan holds others"),
    "fewer joules": (planned({"upload_joules": []}), "'upload_joules' of a plan is no number >= 0"),
    "negative joules": (planned({"compute_joules": [-1.0]}), "'compute_joules' of a plan is no number >= 0"),
    "NaN joules": (planned({"compute_joules": [math.nan]}), "'compute_joules' of a plan is no number >= 0"),
    "endless": (planned({"seconds": math.inf}), "'seconds' of a plan is no number >= 0"),
    "half a cut": (planned({"option": [0.5]}), "'option' of a plan is no number >= 0"),
    "maybe short": (planned({"short": 1}), "'short' of a plan is no boolean"),
    "nearly converged": (planned({"converged": 0.9}), "'converged' of a plan is no boolean"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_answer_that_does_not_fit_is_one_failure_and_the_state_stays(remote, name):
    changes, reason = BAD[name]
    _, update = train(remote, wire_of(**changes))
    (failure,) = update.failures
    assert (update.arrays, failure.node_id) == (None, EVERYBODY)
    assert "\n" not in failure.reason
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(failure.reason)
    assert remote.state_dict() == {"edge": {"round": 0}}
    assert COUNTED == []
    with pytest.raises(StopIteration) as stop:
        next(remote.train_round(5, model(0.0, 0.0), CONFIG, members()))
    assert stop.value.value == Update()


INT8 = CompressedUplinks(Int8(), seed=0)


def compressing(sent):
    """Return the first edge round of a global one whose edge sends a model as `sent`."""
    edge = RemoteEdge("west", 99, PROFILES, 3, AtCloud({}), wait_seconds=0, reply_seconds=0, uplinks=INT8)
    return train(edge, wire_of(sent=sent))[1]


def test_an_update_is_read_and_counted_as_it_travelled():
    sent = INT8.carried("west", 2, model(0.0, 0.0), GOOD.arrays).sent
    assert (sent["compressed"]["compressed"].shape, list(sent["arrays"])) == ((4 + 2,), ["n"])  # a scale, two values
    arrived = compressing(sent).arrays
    assert arrived["w"].numpy() == pytest.approx([3.0, 4.0], abs=4.0 / 254)
    counted = CountedUplinks(Int8()).carried("west", 2, model(0.0, 0.0), arrived)
    assert counted.arrived == arrived
    assert {name: record.count_bytes() for name, record in counted.sent.items()} == {
        name: record.count_bytes() for name, record in sent.items()
    }


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda sent: {"arrays": GOOD.arrays}, "KeyError: compressed"),
        (lambda sent: sent | {"compressed": GOOD.arrays}, "has not the one array of that name"),
        (lambda sent: sent | {"compressed": ArrayRecord({"compressed": Array(np.zeros(5, np.uint8))})}, "expected 6"),
        (lambda sent: sent | {"compressed": ArrayRecord({"compressed": Array(np.full(6, 255, np.uint8))})}, "a scale"),
        (lambda sent: sent | {"arrays": GOOD.arrays}, "beside its update are 2 arrays"),
        (lambda sent: sent | {"arrays": ArrayRecord({"n": Array(np.zeros(9))})}, "array 'n' has"),
    ],
)
def test_what_is_no_update_leaves_its_edge_out(lie, reason):
    update = compressing(lie(INT8.carried("west", 2, model(0.0, 0.0), GOOD.arrays).sent))
    (failure,) = update.failures
    assert (update.arrays, failure.node_id) == (None, EVERYBODY)
    assert reason in failure.reason


def test_a_client_fails_once_in_an_edge_round(remote):
    told = [(2, "first"), (None, "own"), *[(2, "a reason")] * 10_000, (None, "again")]
    _, update = train(remote, wire_of(**round_of(failures=told)))
    assert update.failures == [Failure(3, "first"), Failure(EVERYBODY, "own")]
    evaluation = evaluation_to_wire(Evaluation(), NODES) | {"failures": told}
    _, result = answered(
        remote.evaluate_round(6, model(1.0, 1.0), CONFIG, members()), evaluation | {"state": {}, "counted": NOTHING}
    )
    assert result.failures == [Failure(3, "first"), Failure(EVERYBODY, "own")]


def test_what_an_edge_counted_comes_back_with_its_answer(remote):
    sent = Counter({Link("west", "edge", "uplink", "model"): 7, Link("west", "edge", "downlink", "config"): 2})
    plans = [(4, PLAN), (6, PLAN | {"selected": [2], "late": []})]
    seconds = OfEdge({2: Seconds(1.0, 0.5, 0.25, 3)}, Seconds(1.0, 2.0, 3.0, 3))
    train(remote, wire_of(counted=counted_to_wire(sent, plans, seconds)))
    assert [("west", Counted({("downlink", "config"): 2, ("uplink", "model"): 7}, plans, seconds))] == COUNTED
    unplanned = RemoteEdge("east", 9, PROFILES, 3, AtCloud({}), wait_seconds=0, reply_seconds=0)
    _, update = train(unplanned, wire_of(counted=counted_to_wire(sent, plans)))
    assert "its plans are of edge rounds [4, 6]" in update.failures[0].reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "its answer can't be read"),
        (RecordDict({PAYLOAD: to_payload(b"garbage")}), "its answer can't be read: it is not packed data"),
        (RecordDict({PAYLOAD: ArrayRecord({PAYLOAD: Array(np.zeros(3))})}), "a payload is float64"),
        ({"error": "KeyError:\n'state'"}, "KeyError: 'state'"),
        ({"error": np.array([0xFFFFFFF], np.uint32).view("<U1")}, "its answer can't be read"),
        (RecordDict({PAYLOAD: claimed(b"")}), "its answer can't be read: can't be read (EOF"),
        (RecordDict({PAYLOAD: claimed(b"PK\x03\x04")}), "its answer can't be read: can't be read (EOF"),
        (
            RecordDict({PAYLOAD: claimed(ONE)}),
            "its answer can't be read: the data are not those of a vector of 3 bytes",
        ),
        (RecordDict({PAYLOAD: claimed(HUGE, 10**14)}), "its answer can't be read: can't be read (buffer is too small"),
    ],
)
def test_an_answer_that_is_none_is_a_failure(remote, content, reason):
    _, update = train(remote, content)
    assert reason in update.failures[0].reason


def test_an_edge_that_is_not_there_is_a_failure_and_its_return_is_logged_once(remote, caplog):
    caplog.set_level("INFO", "espalier")
    conversation = remote.train_round(1, model(0.0, 0.0), CONFIG, members())
    (message,) = next(conversation)
    with pytest.raises(StopIteration) as stop:
        conversation.send([Message(Error(2, "<class 'NoEdgeError'>:<'the edge's\nrun'>"), reply_to=message)])
    assert stop.value.value.failures == [Failure(EVERYBODY, "NoEdgeError: the edge's run")]
    for server_round in (4, 7):
        train(remote, wire_of(), server_round)
    assert [record.getMessage() for record in caplog.records] == ["edge 'west' is back"]


def test_evaluation_and_heads_come_back_by_client(remote):
    own = MetricRecord({"loss": 0.7, "accuracy": 0.5, "top-2": 0.75, "num-examples": 9})
    evaluation = Evaluation(MetricRecord({"loss": 1.0}), 9.0, {72: own}, [Failure(71, "x")])
    wire = evaluation_to_wire(evaluation, NODES) | {"state": {"a": 1}, "counted": NOTHING}
    message, result = answered(remote.evaluate_round(6, model(1.0, 1.0), CONFIG, members()), wire)
    assert message.metadata.message_type == "evaluate.edge"
    assert from_bytes(from_payload(message.content))["round"] == 2
    assert result == Evaluation(evaluation.metrics, 9.0, {6: own}, [Failure(3, "x")])

    heads = Personalised({71: {"head.bias": torch.tensor([0.1, 0.2])}}, {71: own}, [])
    wire = heads_to_wire(heads, NODES) | {"state": {"a": 2}, "counted": NOTHING}
    message, result = answered(remote.personalise(model(1.0, 1.0), FineTuning(3, 0.5), members()), wire)
    request = from_bytes(from_payload(message.content))
    assert (message.metadata.message_type, request["num_steps"], request["learning_rate"]) == (
        "train.edge_heads",
        3,
        0.5,
    )
    assert torch.equal(result.heads[3]["head.bias"], torch.tensor([0.1, 0.2]))
    assert result.metrics == {3: own}
    assert remote.state_dict() == {"a": 2}


def test_an_evaluation_that_was_asked_for_while_the_edge_trained_does_not_undo_what_it_learned(remote):
    evaluation = remote.evaluate_round(3, model(1.0, 1.0), CONFIG, members())
    (asked,) = next(evaluation)
    assert from_bytes(from_payload(asked.content))["state"] == {"edge": {"round": 0}}
    train(remote, wire_of())
    wire = evaluation_to_wire(Evaluation(), NODES) | {"state": {"edge": {"round": 0}}, "counted": NOTHING}
    with pytest.raises(StopIteration):
        evaluation.send([Message(RecordDict({PAYLOAD: to_payload(to_bytes(wire))}), reply_to=asked)])
    assert remote.state_dict() == {"edge": {"round": 3}}


@pytest.mark.parametrize("is_untried", [True, False])
def test_what_fails_at_an_edge_of_the_run_itself_ends_it(is_untried):
    state = AtCloud({})
    state.is_untried = is_untried
    edge = RemoteEdge("west", 99, PROFILES, 3, state, wait_seconds=0, reply_seconds=0, is_own=True)
    kind = EdgeFailed if is_untried else UserError  # the state is from a file, which may be to blame
    grid, arrays = members(), model(1.0, 1.0)
    for conversation in (
        edge.train_round(1, arrays, CONFIG, grid),
        edge.evaluate_round(3, arrays, CONFIG, grid),
        edge.personalise(arrays, FineTuning(3, 0.5), grid),
    ):
        (message,) = next(conversation)
        content = RecordDict({PAYLOAD: to_payload(to_bytes({"error": "KeyError: 'x'"}))})
        with pytest.raises(kind, match=r"KeyError: 'x'$"):
            conversation.send([Message(content, reply_to=message)])


def heads_of(**weights):
    return ArrayRecord({name.replace("_", "."): Array(np.array(values)) for name, values in weights.items()})


FITS = heads_of(head_bias=np.zeros(2, np.float32))
FIGURES = MetricRecord({"loss": 0.7, "accuracy": 0.5, "num-examples": 9})


def test_heads_are_judged_by_the_figures_of_the_task(remote):
    own = MetricRecord({"loss": 0.7, "mae": 0.5, "num-examples": 9})
    rest = {"metrics": {2: own}, "failures": [], "state": {}, "counted": NOTHING}
    asked = model(1.0, 1.0), FineTuning(3, 0.5), members()
    _, result = answered(remote.personalise(*asked), {"heads": {2: FITS}} | rest)
    assert (result.metrics, len(result.failures)) == ({}, 1)  # there is no accuracy
    remote.figures = ("loss",)
    _, result = answered(remote.personalise(*asked), {"heads": {2: FITS}} | rest)
    assert (result.metrics, result.failures) == ({3: own}, [])


@pytest.mark.parametrize(
    ("heads", "reason"),
    [
        ({2: heads_of(head_bias=np.zeros(3, np.float32))}, r"a head: array 'head.bias' has shape (3,), expected (2,)"),
        ({2: heads_of(head_weight=np.zeros(2, np.float32))}, "a head: array 'head.bias' is missing"),
        ({2: ArrayRecord({**FITS, **model(1.0, 1.0)})}, "a head: array 'w' is not in the model"),
        ({2: heads_of(head_bias=np.zeros(2, int))}, "a head: array 'head.bias' has dtype int64, expected float32"),
        ({2: heads_of(head_bias=[math.nan, 0.0])}, "a head: array 'head.bias' holds NaN or Inf"),
        ({2: 3}, "AttributeError"),
        ({}, "it has no heads of clients [2], which it evaluated"),
        ({5: FITS}, "it has no heads of clients [2], which it evaluated"),
        ({2: FITS, 7: FITS}, "client 7 is not one of the edge's"),
    ],
)
def test_heads_that_are_not_like_the_models_are_a_failure(remote, heads, reason):
    wire = {"heads": heads, "metrics": {2: FIGURES}, "failures": [], "state": {"a": 2}, "counted": NOTHING}
    _, result = answered(remote.personalise(model(1.0, 1.0), FineTuning(3, 0.5), members()), wire)
    assert (result.heads, result.metrics, len(result.failures)) == ({}, {}, 1)
    assert reason in result.failures[0].reason
    assert remote.state_dict() == {"edge": {"round": 0}}


def test_a_head_has_the_data_types_of_the_models(remote):
    heads = {2: heads_of(head_bias=[0.5, 1.0]), 5: FITS}  # whose evaluation failed
    wire = {"heads": heads, "metrics": {2: FIGURES}, "failures": [(5, "gone")], "state": {}, "counted": NOTHING}
    _, result = answered(remote.personalise(model(1.0, 1.0), FineTuning(3, 0.5), members()), wire)
    assert result.heads[3]["head.bias"].dtype == torch.float32
    assert (list(result.heads), list(result.metrics), result.failures) == ([3, 6], [3], [Failure(6, "gone")])


def test_heads_that_stay_with_their_clients_are_not_told():
    edge = RemoteEdge("west", 99, PROFILES, 3, AtCloud({}), wait_seconds=0, reply_seconds=0)
    asked = model(1.0, 1.0), FineTuning(3, 0.5), members()
    wire = {"heads": {}, "metrics": {2: FIGURES}, "failures": [], "state": {}, "counted": NOTHING}
    _, result = answered(edge.personalise(*asked), wire)
    assert (result.heads, result.metrics) == ({}, {3: FIGURES})
    _, result = answered(edge.personalise(*asked), wire | {"heads": {2: FITS}})
    assert (result.heads, result.metrics) == ({}, {})
    assert "it has heads of clients [2], which keep theirs" in result.failures[0].reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accuracy": None}, "accuracy"),
        ({"loss": None}, "loss"),
        ({"accuracy": [0.1, 0.2]}, "metric 'accuracy' is [0.1, 0.2], expected a number"),
        ({"loss": 10**400}, "metric 'loss' is 1000"),
        ({"top-x": 0.5}, "invalid literal"),
        ({"loss": math.nan}, "metric 'loss' is nan"),
        ({"accuracy": -5.0}, "metric 'accuracy' is -5.0, expected a number from 0 to 1"),
        ({"num-examples": -5}, "metric 'num-examples' is -5, expected a number >= 0"),
        ({"num-validation-examples": -1}, "metric 'num-validation-examples' is -1, expected a number >= 0"),
        ({"loss": -1e38}, "metric 'loss' is -1e+38, expected a loss of less than 1e+18"),
        ({"loss": 1e308}, "metric 'loss' is 1e+308"),
        ({"num-examples": -3}, "metric 'num-examples' is -3, expected a number >= 0"),
    ],
)
def test_clients_figures_that_can_not_be_reported_are_a_failure(remote, changes, reason):
    figures = {"loss": 1.0, "accuracy": 0.5, "num-examples": 3} | changes
    own = MetricRecord({name: value for name, value in figures.items() if value is not None})
    wire = evaluation_to_wire(Evaluation(own, 3.0, {72: own}), NODES) | {"state": {}, "counted": NOTHING}
    _, result = answered(remote.evaluate_round(6, model(1.0, 1.0), CONFIG, members()), wire)
    assert (result.replies, [reason in failure.reason for failure in result.failures]) == ({}, [True])
    heads = {72: {"head.bias": torch.zeros(2)}}
    wire = heads_to_wire(Personalised(heads, {72: own}), NODES) | {"state": {}, "counted": NOTHING}
    _, result = answered(remote.personalise(model(1.0, 1.0), FineTuning(3, 0.5), members()), wire)
    assert (result.metrics, [reason in failure.reason for failure in result.failures]) == ({}, [True])


def test_an_edges_own_figure_that_is_too_large_is_a_failure(remote):
    own = MetricRecord({"loss": 10**400, "accuracy": 0.5, "num-examples": 3})
    wire = evaluation_to_wire(Evaluation(own, 3.0, {}), NODES) | {"state": {}, "counted": NOTHING}
    _, result = answered(remote.evaluate_round(6, model(1.0, 1.0), CONFIG, members()), wire)
    assert result.metrics is None
    assert "metric 'loss' is 1000" in result.failures[0].reason


@pytest.mark.parametrize("count", [0, -1, 10**400])
def test_a_client_has_examples(count):
    profile = profile_to_wire(Profile(3, 2, "west", 10, 5, (4, 6)))
    assert profile_from_wire(profile, "west").num_train_examples == 10
    assert profile_from_wire(profile | {"num_test_examples": 0}, "west").num_test_examples == 0
    with pytest.raises(ValueError, match=f"num_train_examples of client 2 is {count}"):
        profile_from_wire(profile | {"num_train_examples": count}, "west")
    with pytest.raises(ValueError, match="num_test_examples of client 2 is -5"):
        profile_from_wire(profile | {"num_test_examples": -5}, "west")


@pytest.mark.parametrize("client", [1.9, True, "2", -5, 10**400])
def test_a_client_is_a_number(client):
    profile = profile_to_wire(Profile(3, 2, "west", 10, 5, (4, 6)))
    with pytest.raises(ValueError, match=f"a client is {client!r}"):
        profile_from_wire(profile | {"client": client}, "west")


@pytest.mark.parametrize("counts", [[-1], [2.7], ["3"], [1] * (MOST_CLASSES + 1)], ids=repr)
def test_a_client_counts_its_classes(counts):
    profile = profile_to_wire(Profile(3, 2, "west", 10, 5, (4, 6)))
    assert profile_from_wire(profile, "west").class_counts == (4, 6)
    with pytest.raises(ValueError, match="class_counts of client 2 are not"):
        profile_from_wire(profile | {"class_counts": counts}, "west")


@pytest.mark.parametrize(
    ("numbers", "why"), [([2, 2], "a client is there twice"), ([True], "client True is not one of")]
)
def test_participants_are_clients_and_each_is_there_once(remote, numbers, why):
    one = {"trained": True, "metrics": None, "weight": 3.0, "participants": numbers, "failures": []}
    wire = {"sent": {ARRAYS: model(1.0, 1.0)}, "rounds": [one]}
    with pytest.raises(ValueError, match=why):
        updates_from_wire(wire, model(1.0, 1.0), 1, [0, 1, 2], PlainUplinks())

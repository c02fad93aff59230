"""Whatever one client answers, the honest ones win: they all take part, and nothing but short lines comes of it."""

import logging
from functools import cache

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp.strategy import FedMedian
from hypothesis import given, settings
from hypothesis import strategies as some

from espalier.clients.messages.frames import Format, pack, unpack_activations
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Guard, ask_profiles
from espalier.strategies.split import SplitFedV1
from tests.strategies.guards.tight import tight
from tests.strategies.split.federation import Federation, same, weights
from tests.strategies.split.streams import ThreadedGrid, lying, serving, streamed
from tests.strategies.test_hostile import (
    ANY,
    LIAR,
    dying,
    evaluation_reasons,
    profiled,
    reasons,
    telling,
    toy_run,
)
from tests.strategies.toys import examples_of, initial, local_step, toy_app

NUM_CLIENTS = 5
QUICK = {"evaluate_every": 0}
HONEST = [client for client in range(NUM_CLIENTS) if client != LIAR]
FEW = settings(max_examples=20, deadline=None, derandomize=True, database=None)
FEWER = settings(max_examples=4, deadline=None, derandomize=True, database=None)
FEWEST = settings(max_examples=6, deadline=None, derandomize=True, database=None)

# What Flower's records take: they refuse the rest before anything is sent.
ODD = some.sampled_from([0, -1, 16, 18, 10**12, 1e308, -1e308, -5.0, float("nan"), float("inf"), float("-inf")])
LISTS = some.sampled_from([[], [1, 2], [1.0] * 2000, [float("nan")]])
ENDS = some.sampled_from([2**63 - 1, -(2**63), 10**400, -0.0, 5e-324])
NUMBERS = ODD | LISTS | ENDS | some.integers() | some.floats()
METRIC_NAMES = ("num-examples", "train_loss", "loss", "accuracy", "top-3", "step", "num-steps", "labels-digest")
OTHER_NAMES = ("partition-id", "num-train-examples", "edge-name", "class-counts", "w", "b", "num-test-examples")
RECORDS = ("metrics", "arrays", "activations", "indices", "labels", "client-block", "config", "profile")
NASTY_NAMES = ("", "x" * 200, "a\nround 9: all is well", "\x1b[2J", "\u202e", "\udc80")
NAMES = some.sampled_from((*METRIC_NAMES, *OTHER_NAMES, *RECORDS, *NASTY_NAMES)) | some.text(max_size=5)
SHAPES = some.sampled_from([(), (0,), (1,), (4,), (5,), (2, 3), (3, 2), (6, 1), (2, 3, 1), (1, 96), (8, 96), (8, 97)])
TYPES = some.sampled_from(["float32", "float64", "float16", "int32", "int64", "uint8", "bool", "complex64", "<U3"])
FILLS = some.sampled_from([0, 1, -1, 1e-30, 1e4, 1e30, 1e300, float("nan"), float("inf"), float("-inf")])


def filled(shape, dtype, fill):
    with np.errstate(all="ignore"):
        return Array(np.full(shape, fill).astype(dtype))


TEXTS = some.text(max_size=50) | some.sampled_from(["x" * 100_000, "no\nroom", "\x1b[2J", "\udc80"])
# What an array says of itself need not be so.
FORGED = some.builds(
    Array,
    some.sampled_from(["float32", "int8", "object", "", "no type", "x" * 1000]),
    some.sampled_from([(5,), (2, 3), (-1,), (2**40,), ()]),
    some.sampled_from(["numpy.ndarray", "pickle", ""]),
    some.binary(max_size=40) | some.just(b"\x93NUMPY\x01\x00") | some.just(b"\x93NUMPY" + bytes([1, 0, 255, 255])),
)
ARRAYS = some.builds(filled, SHAPES, TYPES, FILLS) | FORGED


# Of a record in hand the names that it has, and any others.
OWN = some.integers(0, 5)


def change(kind, *what):
    return some.tuples(some.just(kind), *what)


KINDS = {
    "numbers": change("number", OWN, ODD) | change("number", OWN, NUMBERS) | change("no number", OWN),
    "names": change("number", NAMES, NUMBERS) | change("called", OWN, NAMES) | change("array", NAMES, ARRAYS),
    "arrays": change("array", OWN, ARRAYS) | change("array", OWN, FORGED) | change("no array", OWN),
    "values": change("scaled", FILLS | some.floats(-20, 20)) | change("first value", OWN, FILLS | some.floats()),
    "records": change("record", NAMES, some.builds(MetricRecord) | some.builds(ArrayRecord) | some.builds(ConfigRecord))
    | change("no record", OWN),
    "failures": change("fails", TEXTS) | change("error", some.integers(0, 2000), TEXTS),
}
CHANGES = {kind: some.lists(changes, min_size=1, max_size=3) for kind, changes in KINDS.items()}
each_kind = pytest.mark.parametrize("kind", KINDS)


def changed(changes):
    """Return a lie that makes these changes to a reply."""

    def lie(message, reply):
        for kind, *what in changes:
            if kind == "fails":
                raise RuntimeError(*what)
            if kind == "error":
                return Message(Error(*what), reply_to=message)
            try:
                apply(reply.content, kind, *what)
            except (ValueError, TypeError, KeyError, OverflowError, StopIteration, ZeroDivisionError):
                continue  # Flower does not let it pass, or there is no such thing in this reply
        return reply

    return lie


def apply(content, kind, name, *value):
    """Make a change to what a reply holds; KeyError and the like where it does not fit."""
    if kind in ("number", "no number"):
        record = next(record for record in content.values() if not isinstance(record, ArrayRecord))
    elif kind in ("array", "no array", "first value"):
        record = next(iter(content.array_records.values()))
    else:
        record = content
    if kind == "scaled":
        for arrays in content.array_records.values():
            for key, array in arrays.items():
                values = array.numpy()
                with np.errstate(all="ignore"):
                    arrays[key] = Array((values * name).astype(values.dtype))
        return
    name = list(record)[name % len(record)] if isinstance(name, int) else name
    if kind == "called":
        record[value[0]] = record.pop(name)
    elif kind == "first value":
        values = record[name].numpy().copy()
        with np.errstate(all="ignore"):
            values.flat[0] = np.float64(value[0]).astype(values.dtype)
        record[name] = Array(values)
    elif value:
        record[name] = value[0]
    else:
        del record[name]


@pytest.fixture(scope="module")
def said():
    """Collect the project's log."""
    lines = []

    class Collect(logging.Handler):
        def emit(self, record):
            assert not record.exc_info
            lines.append(record.getMessage())

    handler, logger = Collect(), logging.getLogger("espalier")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def assert_short_lines(said, reasons=()):
    """Assert that all there was to say are lines, printable and short, and forget the log."""
    for text in [*said, *reasons]:
        assert text.isprintable()
        assert 0 < len(text) < 700
    said.clear()


def clients_in(outcome, place):
    return [place[node_id] for node_id in outcome.edges["edge-0"].updates[0].participants]


@cache
def toy_place():
    return {profile.node_id: profile.partition_id for profile in ask_profiles(InProcessGrid(toy_app(), NUM_CLIENTS))}


def distance(left, right):
    return float(np.sqrt(sum(((left[k] - right[k]).double() ** 2).sum().item() for k in left)))


@cache
def toy_run_without(kind):
    """Return the round of a run in which the liar is dead at messages of a kind."""
    (without,) = toy_run(telling(profiled(toy_app()), dying, [kind]), num_clients=NUM_CLIENTS, rounds=1, guard=tight())
    return without


@each_kind
@given(data=some.data())
@FEW
def test_any_reply_to_train_is_left_out_or_moves_the_model_no_further_than_the_guard_lets_it(said, kind, data):
    changes = data.draw(CHANGES[kind])
    app = profiled(toy_app())
    (found,) = toy_run(telling(app, changed(changes)), num_clients=NUM_CLIENTS, rounds=1, guard=tight(), **QUICK)
    without = toy_run_without("train")
    took_part = clients_in(found, toy_place())
    assert all(np.isfinite(found.train_metrics[name]) for name in found.train_metrics)
    assert_short_lines(said, reasons(found))
    if LIAR not in took_part:
        assert took_part == HONEST
        assert same(weights(found), weights(without))
        return
    assert took_part == list(range(NUM_CLIENTS))
    lengths = [length_of_step(client) for client in HONEST]
    # The mean moves by the liar's weight, at most, times how far its model may be from those of the others.
    most = examples_of(LIAR) / sum(map(examples_of, [*HONEST, LIAR])) * (10 * max(lengths) + max(lengths))
    assert distance(weights(found), weights(without)) <= most


def length_of_step(client):
    start = initial()
    trained = local_step(start, client, 1)
    return float(np.sqrt(sum(((trained[k] - start[k]).astype(float) ** 2).sum() for k in start)))


@each_kind
@given(data=some.data())
@FEW
def test_the_median_of_five_lies_among_the_honest_whatever_two_of_them_answer(said, kind, data):
    def median():
        return FedMedian(**ANY)

    one, other = data.draw(CHANGES[kind]), data.draw(CHANGES[kind])
    app = telling(telling(toy_app(), changed(one)), changed(other), liar=LIAR + 1)
    (found,) = toy_run(
        app, num_clients=NUM_CLIENTS, rounds=1, make_edge=lambda: FedMedian(**ANY), guard=Guard("off"), **QUICK
    )
    assert_short_lines(said, reasons(found))
    honest = [client for client in HONEST if client != LIAR + 1]
    assert set(honest) <= set(clients_in(found, toy_place()))
    models = [local_step(initial(), client, 1) for client in honest]
    for name, values in weights(found).items():
        each = np.stack([model[name] for model in models])
        assert (each.min(0) - 1e-6 <= values.numpy()).all()
        assert (values.numpy() <= each.max(0) + 1e-6).all()


@each_kind
@given(data=some.data())
@FEW
def test_any_reply_to_evaluate_is_left_out_or_a_figure_of_its_own(said, kind, data):
    changes = data.draw(CHANGES[kind])
    app = profiled(toy_app())
    lying_app = telling(app, changed(changes), ["evaluate"])
    (found,) = toy_run(lying_app, num_clients=NUM_CLIENTS, rounds=1, guard=tight())
    without = toy_run_without("evaluate")
    assert_short_lines(said, evaluation_reasons(found))
    assert same(weights(found), weights(without))
    place, evaluation = toy_place(), found.evaluations["edge-0"]
    answered = {place[node_id] for node_id in evaluation.replies}
    assert set(HONEST) <= answered
    if LIAR not in answered:
        assert found.evaluate_metrics == without.evaluate_metrics
    assert np.isfinite(found.evaluate_metrics["loss"])


@each_kind
@given(data=some.data())
@FEW
def test_any_profile_leaves_the_others_theirs(said, kind, data):
    grid = InProcessGrid(telling(toy_app(), changed(data.draw(CHANGES[kind])), ["query.profile"]), NUM_CLIENTS)
    profiles = ask_profiles(grid)
    assert_short_lines(said)
    liars = {p.node_id for p in profiles} - {node_id for node_id, client in toy_place().items() if client in HONEST}
    assert len(liars) <= 1
    found = {p.partition_id: p.num_train_examples for p in profiles if p.node_id not in liars}
    assert found == {client: examples_of(client) for client in HONEST}


@cache
def split_run_without():
    """Return the weights of a round of split training in which the liar is dead."""
    federation = Federation(sizes=SIZES)
    dead = federation.grid(telling(federation.app(), dying, ["train.split_begin"]))
    return weights(federation.run(federation.split(SplitFedV1, lambda n: 2), rounds=1, grid=dead, **QUICK)[0])


SIZES = (12, 10, 9)
SPLIT_KINDS = ["train.split_begin", "train.split_step", "train.split_end", "query.labels"]


@each_kind
@given(data=some.data(), message_type=some.sampled_from(SPLIT_KINDS))
@FEWER
def test_any_message_of_split_training_is_left_out_or_touches_nobody_elses_block(said, kind, data, message_type):
    changes = data.draw(CHANGES[kind])
    federation = Federation(sizes=SIZES)
    make_edge = federation.split(SplitFedV1, lambda n: 2)
    grid = federation.grid(telling(federation.app(), changed(changes), [message_type]))
    (found,) = federation.run(make_edge, rounds=1, grid=grid, guard=tight(), **QUICK)
    assert_short_lines(said, reasons(found))
    place = {profile.node_id: profile.partition_id for profile in ask_profiles(federation.grid())}
    took_part = set(clients_in(found, place))
    assert {0, 2} <= took_part
    assert all(torch.isfinite(values).all() for values in weights(found).values())
    if LIAR not in took_part:
        assert same(weights(found), split_run_without())


FORM = Format("float32", torch.float64)
FRAME = pack(FORM, torch.zeros(8, 96, dtype=torch.float64), step=0, num_steps=2, labels=torch.zeros(8).int())
CUTS = some.slices(len(FRAME))
PLACES = some.lists(some.tuples(some.integers(0, 80), some.binary(min_size=1, max_size=4)), max_size=4)


def spoiled(frame, cut, places, more):
    """Return a frame with bytes changed, cut off and added."""
    data = bytearray(frame)
    for start, value in places:
        data[start : start + len(value)] = value
    return bytes(data[cut]) + more


@given(CUTS | some.just(slice(None)), PLACES, some.binary(max_size=20))
@settings(FEW, max_examples=150)
def test_any_frame_is_read_or_refused_in_a_line(cut, places, more):
    try:
        frame = unpack_activations(FORM, spoiled(FRAME, cut, places, more), step=0, sample_shape=(96,))
    except ValueError as error:
        assert_short_lines([str(error)])
        return
    assert frame.values.shape == (len(frame.labels), 96)


@given(CUTS | some.just(slice(None)), PLACES, some.binary(max_size=20))
@FEWEST
def test_any_frame_in_a_stream_touches_nobody_else(said, cut, places, more):
    federation = Federation(sizes=SIZES)

    def lie(form, values, step, num_steps, labels):
        return spoiled(pack(form, values, step=step, num_steps=num_steps, labels=labels), cut, places, more)

    make_edge = federation.split(SplitFedV1, lambda n: 2)
    with serving() as server:
        grid = ThreadedGrid(lying(federation, lie), 3)
        (found,) = federation.run(streamed(make_edge, server), rounds=1, grid=grid, **QUICK)
    assert_short_lines(said, reasons(found))
    if reasons(found):
        assert same(weights(found), split_run_without())

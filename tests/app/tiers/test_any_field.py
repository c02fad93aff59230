"""Whatever an edge's host puts into a field of its answer: it is used, or left out, and nothing else happens."""

import json
import math
from contextlib import suppress

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from espalier.app.ground.checkpoint import to_bytes
from espalier.app.ground.errors import UserError
from espalier.app.meters.bytes import ByteMeter
from espalier.app.reports.metrics import edge_lines, global_line, personalised_line, summarise
from espalier.app.settings.sections import Deploy
from espalier.app.tiers.cloud import ask_edges, check_edges
from espalier.app.tiers.wire import evaluation_to_wire, heads_to_wire, outcome_to_wire
from espalier.clients.messages.edge import PAYLOAD, to_payload
from espalier.clients.messages.train import ARRAYS
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import EdgeOutcome, Evaluation, Failure, Round
from espalier.strategies.edges import EVERYBODY
from espalier.strategies.split import FineTuning, Personalised
from tests.app.tiers.test_cloud import INTRODUCTION
from tests.app.tiers.test_remote_edge import CONFIG, COUNTED, GOOD, NODES, PLAN, answered, members, model, remote

__all__ = ["remote"]  # a fixture

CLIENT_OF = {3: 2, 6: 5}  # at the cloud
OWN = {"loss": 0.7, "accuracy": 0.5, "top-2": 0.75, "num-examples": 9}
SENT = [("uplink", "model", 7), ("downlink", "config", 2)]
BEFORE = {"edge": {"round": 1}}
MOST_TEXT = 10_000
NO_PLANS = {"sent": SENT, "plans": []}
REST = {"state": {"edge": {"round": 3, "w": model(1.0, 2.0)}}, "counted": {"sent": SENT, "plans": [(2, PLAN)]}}
LONG = "x" * 10**4
DEEP: list = []
for _ in range(100):
    DEEP = [DEEP]
ODD = [
    *(None, True, False, 0, 1, -1, 0.5, -0.5, 10**19, 10**400, 1e300, math.nan, math.inf, -math.inf),
    *("", "x", LONG, "two\nlines", "\ud800", b"", b"x" * 1000, [], {}, (), [1, 2], [[1, 2]], {"x": 1}, {2: 1}, DEEP),
    *([(2, "again")] * 100, [(2, LONG)], [(None, "x")] * 100, [("uplink", LONG, 1)], [2, 2], [None], ["model"]),
    [("uplink", f"kind {i}", 1) for i in range(100)],
    *(np.zeros(3), np.array("x"), np.array(["x", "y"]), np.array(1 + 2j), np.float64("nan")),
    np.datetime64("2026-01-01"),
    *(model(0.0), model(1.0, 2.0), model(math.inf, 0.0), ArrayRecord(), ArrayRecord({LONG: Array(np.zeros(2))})),
    *(MetricRecord(), MetricRecord({"loss": math.nan}), MetricRecord({LONG: 1.0}), ConfigRecord({"x": LONG})),
    *(MetricRecord(OWN), MetricRecord({**OWN, "num-examples": -3}), MetricRecord({**OWN, "top-" + "9" * 90: 0.5})),
]  # fmt: skip


def places(value, path=()):
    """Yield the way to everything in a wire."""
    yield path
    if isinstance(value, dict | list | tuple):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def with_odd(value, path, odd):
    if not path:
        return odd
    key, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, key: with_odd(value[key], rest, odd)}
    return type(value)(with_odd(item, rest, odd) if i == key else item for i, item in enumerate(value))


def without(value, path):
    key, rest = path[0], path[1:]
    if rest:
        return with_odd(value, path[:1], without(value[key], rest))
    return {k: v for k, v in value.items() if k != key} if isinstance(value, dict) else type(value)()


def odd_at(wire, path, values):
    """Yield a wire with one part changed, left out or added to."""
    yield without(wire, path)
    for odd in values:
        yield with_odd(wire, path, odd)
    inner = wire
    for key in path:
        inner = inner[key]
    for key in (LONG, -1, 7, None, ("x", 1)) if isinstance(inner, dict) else ():
        yield with_odd(wire, path, {**inner, key: 1})


def wires_of(wire):
    """Yield the messages like this one that can be sent, each with one field that is odd.

    Each place gets every second of the odd values, its neighbour the others: so much for the time that it takes.
    """
    for number, path in enumerate(places(wire)):
        for changed in odd_at(wire, path, ODD[number % 2 :: 2]) if path else ():
            with suppress(AttributeError, TypeError, ValueError):  # it can't be packed
                yield RecordDict({PAYLOAD: to_payload(to_bytes(changed))})


def is_taken(result):
    return not any("does not fit" in f.reason or "can't be read" in f.reason for f in result.failures)


def check(remote, result, lines, asked_with):
    """Clients fail once, what is written is short, and the state can go with the next request."""
    nodes = [failure.node_id for failure in result.failures]
    assert set(nodes) <= {EVERYBODY, *CLIENT_OF}
    assert len(set(nodes)) == len(nodes)
    assert len("".join(map(json.dumps, lines))) < MOST_TEXT
    summarise(lines)
    to_bytes({"state": remote.state_dict()})
    if not is_taken(result):
        assert (remote.state_dict(), COUNTED, len(nodes)) == (asked_with, [], 1)


def counts_told():
    meter = ByteMeter({"edge": "edge"})
    for name, counted in COUNTED:
        meter.add(name, counted.sent)
    return meter.drain()


def answers(remote, wire, ask):
    """Yield what comes of each odd answer; most are left out, some fields may hold anything."""
    taken = []
    for content in wires_of(wire):
        COUNTED.clear()
        remote._state.load_state_dict(BEFORE)
        _, result = answered(ask(), content)
        taken.append(is_taken(result))
        yield result
    assert len(taken) > 500
    assert 0.01 < sum(taken) / len(taken) < 0.5


def test_a_round(remote):
    wire = outcome_to_wire(EdgeOutcome(GOOD.arrays, GOOD.updates[2:], 1.0), {ARRAYS: GOOD.arrays}, NODES) | REST
    remote.edge_rounds = 1
    for first in answers(remote, wire, lambda: remote.train_round(2, model(0.0, 0.0), CONFIG, members())):
        updates = remote._updates
        assert updates == [first]
        for update in updates:
            assert set(update.participants) <= CLIENT_OF.keys()
            assert 0 <= update.weight <= 20
            assert update.arrays is None or np.isfinite(update.arrays["w"].numpy()).tolist() == [True, True]
        model_of = next((update.arrays for update in reversed(updates) if update.arrays), None)
        outcome = Round(2, model(0.0, 0.0), None, None, {"west": EdgeOutcome(model_of, updates, 1.0)})
        counts = counts_told()
        lines = [*edge_lines(outcome, counts, CLIENT_OF), global_line(outcome, counts, CLIENT_OF, None, None, 1.0)]
        for update in updates:
            check(remote, update, lines, BEFORE) if update.failures else None


def test_an_evaluation(remote):
    given = Evaluation(MetricRecord(OWN), 9.0, {71: MetricRecord(OWN), 72: MetricRecord(OWN)}, [Failure(71, "gone")])
    wire = evaluation_to_wire(given, NODES) | REST | {"counted": NO_PLANS}
    for result in answers(remote, wire, lambda: remote.evaluate_round(6, model(1.0, 1.0), CONFIG, members())):
        assert result.replies.keys() <= CLIENT_OF.keys()
        assert all(math.isfinite(own[name]) for own in result.replies.values() for name in own)
        assert all(own.get("num-examples", 0) >= 0 for own in result.replies.values())
        outcome = Round(2, model(0.0, 0.0), None, None, {}, {"west": result})
        line = global_line(outcome, counts_told(), CLIENT_OF, {"loss": 1.0, "accuracy": 0.5}, None, 1.0)
        check(remote, result, [line], BEFORE)


def test_heads(remote):
    heads = {72: {"head.bias": torch.ones(2)}}
    wire = heads_to_wire(Personalised(heads, {72: MetricRecord(OWN)}, [Failure(71, "gone")]), NODES) | REST
    wire |= {"counted": NO_PLANS}
    for result in answers(remote, wire, lambda: remote.personalise(model(1.0, 1.0), FineTuning(3, 0.5), members())):
        assert result.metrics.keys() <= result.heads.keys() <= CLIENT_OF.keys()
        assert all(head.keys() == {"head.bias"} and head["head.bias"].shape == (2,) for head in result.heads.values())
        check(remote, result, [personalised_line(2, {"west": result}, counts_told(), CLIENT_OF)], BEFORE)


def test_an_introduction(caplog):
    sent = []
    grid = InProcessGrid(lambda message, context: Message(sent[0], reply_to=message), 1)
    for content in wires_of(INTRODUCTION | {"version": "1.0"}):
        sent[:] = [content]
        caplog.clear()
        edges = ask_edges(grid, Deploy(wait_for_nodes=0), grid.get_node_ids()).values()
        said = [record.getMessage() for record in caplog.records]
        assert len(edges) + len(said) == 1
        try:
            check_edges({"seed": 0}, list(edges), 1)
        except UserError as error:
            said.append(str(error))
        assert all(len(line) < 1000 and line.isprintable() for line in said)

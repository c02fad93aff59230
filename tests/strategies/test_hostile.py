"""One client that lies costs no more than that client: what was tried, and what comes of it."""

import logging
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, QFedAvg

from espalier.clients.messages.split_names import NUM_STEPS
from espalier.clients.messages.train import METRICS, NUM_EXAMPLES
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical, KnownClients, ask_profiles, group_by_edge
from espalier.strategies.exchange import converse
from espalier.strategies.split import SplitFedV1
from tests.strategies.split.federation import Federation, same, weights
from tests.strategies.split.streams import ThreadedGrid, honest, lying, serving, streamed
from tests.strategies.toys import initial, to_record, toy_app

ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
LIAR = 1


def telling(app, lie, kinds=("train",), liar=LIAR):
    """Return an app like `app` in which one client's replies to messages of some kinds are what `lie` makes of them."""

    def answer(message, context):
        reply = app(message, context)
        if context.node_config["partition-id"] == liar and message.metadata.message_type in kinds:
            return lie(message, reply) or reply
        return reply

    return answer


def dying(message, reply):
    raise RuntimeError("dead")


def metrics_as(**changes):
    """Return a lie about metrics."""

    def lie(message, reply):
        told = {name.replace("_", "-"): value for name, value in changes.items()}
        reply.content[METRICS] = MetricRecord({**reply.content[METRICS], **told})

    return lie


def toy_run(app, *, num_clients=4, num_edges=1, rounds=2, make_edge=lambda: FedAvg(**ANY), knows=True, **options):
    """Return the rounds of a toy run whose edges know their clients."""
    grid = InProcessGrid(app, num_clients)
    profiles = ask_profiles(grid)

    def make(name, size):
        return KnownClients(make_edge(), profiles) if knows else make_edge()

    place = {profile.node_id: profile.partition_id for profile in profiles}
    strategy = Hierarchical(
        FedAvg(**ANY), make, group_by_edge(profiles, num_edges), node_name=lambda n: f"client {place[n]}", **options
    )
    return list(strategy.rounds(grid, to_record(initial()), rounds))


def reasons(outcome):
    return [failure.reason for edge in outcome.edges.values() for one in edge.updates for failure in one.failures]


def evaluation_reasons(outcome):
    return [failure.reason for one in outcome.evaluations.values() for failure in one.failures]


def profiled(app):
    """Let the toys' profiles tell of test examples too; the toys evaluate on as many as they train on."""

    def answer(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "query.profile":
            reply.content["profile"]["num-test-examples"] = reply.content["profile"]["num-train-examples"]
        return reply

    return answer


def assert_as_without(lie, reason, kinds=("train",), **options):
    """Assert that a liar is left out of training, and that the model is that of a run in which it is dead."""
    app = profiled(toy_app())
    found = toy_run(telling(app, lie, kinds), **options)
    expected = toy_run(telling(app, dying, kinds), **options)
    assert [reason in text for outcome in found for text in reasons(outcome)] == [True] * len(found)
    assert same(weights(found[-1]), weights(expected[-1]))


@pytest.mark.parametrize("count", [10**12, 18])  # the second is one more than it has
def test_a_client_can_not_weigh_more_than_its_profile_said(count):
    assert_as_without(metrics_as(num_examples=count), f"it says {count} examples, its profile said 17")


def test_an_evaluation_on_more_examples_than_the_profile_said_is_left_out():
    lie = metrics_as(num_examples=10**12, loss=0.0)
    (found,) = toy_run(telling(profiled(toy_app()), lie, ["evaluate"]), rounds=1)
    assert evaluation_reasons(found) == ["it says 1000000000000 examples, its profile said 17"]
    (honest_one,) = toy_run(telling(profiled(toy_app()), dying, ["evaluate"]), rounds=1)
    assert found.evaluate_metrics == honest_one.evaluate_metrics


@pytest.mark.parametrize("value", [float("nan"), 1e308, float("inf"), 10**400])
def test_a_loss_that_is_no_number_is_left_out_of_the_evaluation_and_counted(value):
    (found,) = toy_run(telling(profiled(toy_app()), metrics_as(loss=value), ["evaluate"]), rounds=1)
    assert ["metric 'loss' is" in reason for reason in evaluation_reasons(found)] == [True]
    (without,) = toy_run(telling(profiled(toy_app()), dying, ["evaluate"]), rounds=1)
    assert found.evaluate_metrics == without.evaluate_metrics


@pytest.mark.parametrize("name", ["accuracy", "top-3"])
@pytest.mark.parametrize("value", [-5.0, 1.01])
def test_accuracies_lie_in_0_to_1(name, value):
    def lie(message, reply):
        reply.content[METRICS] = MetricRecord({**reply.content[METRICS], name: value})

    (found,) = toy_run(telling(profiled(toy_app()), lie, ["evaluate"]), rounds=1)
    assert evaluation_reasons(found) == [f"metric {name!r} is {value}, expected a number from 0 to 1"]


def test_qfedavg_goes_on_without_a_client_whose_loss_is_negative():
    def lie(message, reply):
        reply.content[METRICS] = MetricRecord({**reply.content[METRICS], "train_loss": -1.0})

    reason = "metric 'train_loss' is -1.0, expected a number >= 0"
    assert_as_without(lie, reason, make_edge=lambda: QFedAvg(client_learning_rate=0.1, **ANY))


def many_metrics(message, reply):
    reply.content[METRICS] = MetricRecord({f"m{i}": 0.0 for i in range(200_000)})


def a_long_name(message, reply):
    reply.content[METRICS] = MetricRecord({**reply.content[METRICS], "m" * 2 * 10**7: 0.0})


def a_long_list(message, reply):
    reply.content[METRICS] = MetricRecord({**reply.content[METRICS], "train_loss": [0.0] * 200_000})


def a_long_reason(message, reply):
    return Message(Error(0, "no\n\x1b[2J" * 10**6), reply_to=message)


def an_array_of_a_long_name(message, reply):
    reply.content["arrays"]["w" * 2 * 10**7] = Array(np.zeros(1))


def many_records(message, reply):
    for i in range(100):
        reply.content[f"record{i}"] = ArrayRecord({"w": Array(np.zeros(1))})


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (many_metrics, "200000 entries in record 'metrics', expected 1000 at most"),
        (a_long_name, "a name in record 'metrics' is 'mmm"),
        (a_long_list, "'train_loss' has 200000 values, expected 1000 at most"),
        (a_long_reason, r"no \x1b[2Jno \x1b[2J"),
        (an_array_of_a_long_name, "is not in the model"),
        (many_records, "102 records, expected 16 at most"),
    ],
)
def test_what_is_too_large_is_a_short_printable_line(lie, reason, caplog):
    caplog.set_level(logging.WARNING, "espalier")
    assert_as_without(lie, reason, rounds=1)
    lines = [record.getMessage() for record in caplog.records if record.name == "espalier"]
    assert lines
    assert all(len(line) < 600 and line.isprintable() for line in lines)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query.profile"])
@pytest.mark.parametrize("reason", ["", " ", "\n"])
def test_an_error_without_a_reason_is_one_all_the_same(kind, reason, caplog):
    def lie(message, reply):
        return Message(Error(7, reason), reply_to=message)

    app = telling(profiled(toy_app()), lie, [kind])
    outcomes = toy_run(app, num_clients=3, rounds=1)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("espalier")]
    assert [line for line in said if "error 7" in line] == said
    assert len(said) == 1
    assert len(outcomes) == 1


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize("num_edges", [1, 2])
def test_of_two_clients_or_edges_nobody_who_adds_a_metric_puts_the_other_out(liar, num_edges):
    for kind in ("train", "evaluate"):
        app = telling(toy_app(), metrics_as(boast=1.0), [kind], liar)
        outcomes = toy_run(app, num_clients=2, num_edges=num_edges, knows=False)
        assert [reasons(outcome) + evaluation_reasons(outcome) for outcome in outcomes] == [[], []]
        assert same(weights(outcomes[-1]), weights(toy_run(toy_app(), num_clients=2, num_edges=num_edges)[-1]))
        assert "boast" not in outcomes[-1].train_metrics


def test_a_metric_that_is_asked_for_has_to_be_there_and_others_are_dropped():
    def lie(message, reply):
        reply.content[METRICS] = MetricRecord({NUM_EXAMPLES: 17, "boast": 1.0})

    grid = InProcessGrid(telling(toy_app(), lie), 2)
    profiles = ask_profiles(grid)
    strategy = Hierarchical(
        FedAvg(**ANY),
        lambda name, size: KnownClients(FedAvg(**ANY), profiles, train_metrics=["train_loss"]),
        group_by_edge(profiles, 1),
        evaluate_every=0,
    )
    first = next(strategy.rounds(grid, to_record(initial()), 2))
    assert reasons(first) == ["metric 'train_loss' is None, expected a number"]
    assert list(first.train_metrics) == ["train_loss"]


def test_edges_share_one_mapping_of_profiles():
    def boast(message, reply):
        reply.content[METRICS] = MetricRecord({**reply.content[METRICS], NUM_EXAMPLES: 10**6})

    grid, by_node = InProcessGrid(telling(toy_app(), boast), 4), {}
    profiles = ask_profiles(grid)
    strategy = Hierarchical(
        FedAvg(**ANY),
        lambda name, size: KnownClients(FedAvg(**ANY), by_node),
        group_by_edge(profiles, 2),
        evaluate_every=0,
    )
    by_node |= {profile.node_id: profile for profile in profiles}
    first = next(strategy.rounds(grid, to_record(initial()), 2))
    assert reasons(first) == [f"it says 1000000 examples, its profile said {profiles[LIAR].num_train_examples}"]


def test_a_figure_that_a_test_set_has_not_is_missing_there_and_nowhere_else():
    """At an edge the mean of a figure is that of the clients that have it."""
    grid = InProcessGrid(profiled(toy_app()), 5)
    profiles = ask_profiles(grid)
    sizes = {profile.partition_id: profile.num_train_examples for profile in profiles}
    recall = {0: 0.1, 1: 0.9, 3: 0.4, 4: 0.7}  # client 2 has none

    def answer(message, context):
        reply = profiled(toy_app())(message, context)
        client = context.node_config["partition-id"]
        if message.metadata.message_type == "evaluate" and client in recall:
            reply.content[METRICS] = MetricRecord({**reply.content[METRICS], "recall": recall[client]})
        return reply

    grid = InProcessGrid(answer, 5)
    client_of = {profile.node_id: profile.partition_id for profile in ask_profiles(grid)}
    (whole,), (expected,) = (
        list(
            Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), group_by_edge(ask_profiles(own), 1)).rounds(
                own, to_record(initial()), 1
            )
        )
        for own in (grid, InProcessGrid(profiled(toy_app()), 5))
    )
    assert evaluation_reasons(whole) == []
    replies = {client_of[n]: own for one in whole.evaluations.values() for n, own in one.replies.items()}
    assert {client: own.get("recall") for client, own in replies.items()} == {**recall, 2: None}
    total = sum(sizes[client] for client in recall)
    assert whole.evaluate_metrics["recall"] == pytest.approx(sum(sizes[i] * recall[i] for i in recall) / total)
    assert whole.evaluate_metrics["loss"] == expected.evaluate_metrics["loss"]


def test_a_figure_in_another_form_is_not_taken_for_the_others():
    def lie(message, reply):
        reply.content[METRICS] = MetricRecord({**reply.content[METRICS], "loss": [0.0, 0.0]})

    found = toy_run(telling(profiled(toy_app()), lie, ["evaluate"]), rounds=1, knows=False)[0]
    without = toy_run(telling(profiled(toy_app()), dying, ["evaluate"]), rounds=1, knows=False)[0]
    assert evaluation_reasons(found) == []
    assert found.evaluate_metrics["loss"] == pytest.approx(without.evaluate_metrics["loss"], rel=1e-12)


def evaluated_by(told, num_clients=4, num_edges=2, *, asked=("loss",), more=True):
    """Return the outcome of a round in which clients add metrics to their evaluations, and node ids by client."""

    def answer(message, context):
        reply = profiled(toy_app())(message, context)
        added = told.get(context.node_config["partition-id"])
        if message.metadata.message_type == "evaluate" and added:
            reply.content[METRICS] = MetricRecord({**reply.content[METRICS], **added})
        return reply

    grid = InProcessGrid(answer, num_clients)
    profiles = ask_profiles(grid)

    def edge(name, size):
        return KnownClients(FedAvg(**ANY), profiles, evaluate_metrics=asked, evaluates_more=more)

    (found,) = Hierarchical(FedAvg(**ANY), edge, group_by_edge(profiles, num_edges)).rounds(
        grid, to_record(initial()), 1
    )
    assert evaluation_reasons(found) == []
    replies = {n: own for one in found.evaluations.values() for n, own in one.replies.items()}
    return found, {profile.partition_id: dict(replies[profile.node_id]) for profile in profiles}


@pytest.mark.parametrize("num_edges", [1, 2, 4])
@pytest.mark.parametrize(
    "lie",
    [
        {"mae": [0.1, 0.2]},
        {"top-x": 0.5},
        {"top-3": 0.5},
        {"train_loss": 1e30},
        {"num-nodes": 3},
        {"validation-loss": 0.0},
        {"validation-mae": 0.5},
        {"personal-loss": 0.0},
        {"personal-mae": 0.5},
        {f"top-{i}": [0.5] * 1000 for i in range(990)},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_what_is_no_figure_of_a_task_is_dropped_and_costs_nobody_a_figure(lie, num_edges):
    honest = {client: {"mae": 0.25 * (1 + client)} for client in range(4)}
    found, replies = evaluated_by(honest | {0: honest[0] | lie}, num_edges=num_edges)
    names = {"mae", "loss", NUM_EXAMPLES}
    assert [set(own) for own in replies.values()] == [names - lie.keys(), names, names, names]
    assert [replies[client]["mae"] for client in (1, 2, 3)] == [0.5, 0.75, 1.0]
    expected, _ = evaluated_by(honest, num_edges=num_edges)
    assert found.evaluate_metrics["loss"] == expected.evaluate_metrics["loss"]
    _, of_built_in_task = evaluated_by({0: lie}, num_edges=num_edges, more=False)
    assert all(set(own) == names - {"mae"} for own in of_built_in_task.values())


def test_of_clients_own_models_there_are_a_tasks_own_figures_and_no_others():
    told = {"loss": 1.0, "mae": 0.5, "personal-loss": 2.0, "personal-mae": 0.25}
    lie = {"personal-num-examples": 9.0, "personal-top-1": 1.0, "personal-personal-mae": 0.5, "personal-x": [0.5] * 2}
    _, replies = evaluated_by(dict.fromkeys(range(4), told) | {0: told | lie}, asked=("loss", "personal-loss"))
    assert all(own == {**told, NUM_EXAMPLES: own[NUM_EXAMPLES]} for own in replies.values())


def test_figures_of_many_names_are_bounded_and_those_of_most_clients_stay():
    told = {client: {"mae": 0.5, **{f"{client}-{i}": 1.0 for i in range(900 * (client < 2))}} for client in range(6)}
    found, replies = evaluated_by(told, num_clients=6)
    assert found.evaluate_metrics["mae"] == pytest.approx(0.5)
    assert found.evaluate_metrics.keys() >= {"loss", "mae"}
    assert [len(own) for own in replies.values()] == [103, 3, 3, 3, 3, 3]
    assert len(found.evaluate_metrics) == 102


def test_a_mean_of_accuracies_that_are_all_one_may_be_rounded():
    accuracies = {client: {"accuracy": 1.0} for client in range(34)}
    found, _ = evaluated_by(accuracies, num_clients=34, num_edges=1, asked=("loss", "accuracy"), more=False)
    assert found.evaluate_metrics["accuracy"] == pytest.approx(1.0, abs=1e-12)


def test_an_evaluation_without_a_loss_is_left_out_where_others_have_figures_of_their_own():
    def lie(message, reply):
        reply.content[METRICS] = MetricRecord({NUM_EXAMPLES: 17, "mae": 1.0})

    grid = InProcessGrid(profiled(telling(toy_app(), lie, ["evaluate"])), 2)
    profiles = ask_profiles(grid)

    def edge(name, size):
        return KnownClients(FedAvg(**ANY), profiles, evaluate_metrics=["loss"], evaluates_more=True)

    (found,) = Hierarchical(FedAvg(**ANY), edge, group_by_edge(profiles, 1)).rounds(grid, to_record(initial()), 1)
    assert evaluation_reasons(found) == ["metric 'loss' is None, expected a number"]


# Split training: the number of mini-batches, and the time that they take.


def steps_of(federation):
    return lambda client: federation.tasks[client].training.num_steps(len(federation.tasks[client].train))


def bounded(federation, grid):
    """Return what makes SFL-V1 edges that know how many mini-batches their clients have."""
    client_of = {profile.node_id: profile.partition_id for profile in ask_profiles(grid)}
    return federation.split(SplitFedV1, lambda n: 2, max_steps=lambda n: steps_of(federation)(client_of[n]))


def test_a_client_can_not_have_more_mini_batches_than_its_examples_make():
    federation = Federation(sizes=(20, 33, 14))
    lie = metrics_as(**{NUM_STEPS: 10**9})
    outcomes = []
    for told in (lie, dying):
        grid = federation.grid(telling(federation.app(), told, ["train.split_begin"]))
        outcomes.append(federation.run(bounded(federation, grid), rounds=1, grid=grid)[0])
    assert reasons(outcomes[0]) == ["num-steps is 1000000000, its examples make 5 at most"]
    assert same(weights(outcomes[0]), weights(outcomes[1]))


def test_a_stream_can_not_have_more_mini_batches_than_its_examples_make_either():
    federation = Federation(sizes=(20, 33, 14))
    app = lying(federation, lambda form, values, step, num_steps, labels: honest(form, values, step, 10**9, labels))
    grid = ThreadedGrid(app, 3)
    with serving() as server:
        (found,) = federation.run(streamed(bounded(federation, grid), server), rounds=1, grid=grid)
    assert reasons(found) == ["num-steps is 1000000000, its examples make 5 at most"]
    (expected,) = federation.run(
        federation.split(SplitFedV1, lambda n: 2),
        rounds=1,
        grid=federation.grid(telling(federation.app(), dying, ["train.split_begin"])),
    )
    assert same(weights(found), weights(expected))


def test_the_time_for_answers_is_that_of_a_clients_whole_round_not_of_a_mini_batch():
    """A client that says that it has any number of mini-batches, and takes its time for each, is left out once."""
    federation = Federation(sizes=(20, 33, 14))

    class Slow(InProcessGrid):
        """Holds every reply of the liar back for a while."""

        liar = None

        def pull_messages(self, message_ids):
            return super().pull_messages([i for i in message_ids if self.ready(i)])

        def ready(self, message_id):
            return time.monotonic() >= self.held.get(message_id, 0.0)

        def push_messages(self, messages):
            messages = list(messages)
            ids = list(super().push_messages(messages))
            self.held = {
                i: time.monotonic() + 0.3
                for i, m in zip(ids, messages, strict=True)
                if m.metadata.dst_node_id == self.liar and m.metadata.message_type.startswith("train")
            }
            return ids

    grid = Slow(telling(federation.app(), metrics_as(**{NUM_STEPS: 10**9}), ["train.split_begin"]), 3)
    topology = group_by_edge(ask_profiles(grid), 1)
    grid.liar = topology["edge-0"][LIAR]
    make_edge = federation.split(SplitFedV1, lambda n: 2)
    strategy = Hierarchical(FedAvg(**ANY), make_edge, topology, evaluate_every=2, poll_seconds=0.001)
    rounds = strategy.rounds(grid, ArrayRecord(federation.make_model().state_dict()), 2, timeout=1.0)
    assert reasons(next(rounds)) == ["no reply before the deadline"]


def test_every_round_of_a_client_has_its_own_time():
    grid = InProcessGrid(lambda message, context: Message(RecordDict(), reply_to=message), 1)
    (node,) = grid.get_node_ids()

    def conversation():
        answers = []
        for kind in ("train.split_begin", "train.split_step") * 5:
            (reply,) = yield [Message(RecordDict(), node, kind)]
            answers.append(reply.has_error())
        return answers

    class Slow(InProcessGrid):
        def pull_messages(self, message_ids):
            time.sleep(0.2)
            return super().pull_messages(message_ids)

    grid.__class__ = Slow
    assert converse(grid, {"": conversation()}, timeout_seconds=1.5, poll_seconds=0.001)[""] == [False] * 10


@pytest.mark.parametrize("name", ["a\nround 9: all is well", "\x1b[2Jx", "e" * 200])
def test_an_edge_has_a_name_that_can_be_shown(name, caplog):
    def lie(message, reply):
        reply.content["profile"]["edge-name"] = name

    grid = InProcessGrid(telling(toy_app(), lie, ["query.profile"]), 3)
    assert [profile.partition_id for profile in ask_profiles(grid)] == [0, 2]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "espalier"]
    assert "edge-name is" in line
    assert line.isprintable()
    assert len(line) < 400

"""A strategy over SFL-V1 does what it does over clients that train the whole model, or says that it can't."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from espalier.clients.messages.split_names import SPLIT_BEGIN
from espalier.strategies import Observer, StrategyEdge
from espalier.strategies.split import SplitFedV1
from tests.strategies.split.federation import ANY, Federation, assert_close, every, weights

SIZES = (20, 33, 14, 40, 9, 25)


class Picky(FedAvg):
    """Asks every second client, another half in every round, and has figures of its own."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        return [m for i, m in enumerate(messages) if i % 2 == server_round % 2]

    def aggregate_evaluate(self, server_round, replies):
        metrics = super().aggregate_evaluate(server_round, replies)
        return MetricRecord({**metrics, "own": float(server_round)})


class Lookahead(FedAvg):
    """Sends another model than it was given."""

    def configure_train(self, server_round, arrays, config, grid):
        ahead = ArrayRecord({name: Array(np.asarray(1.05 * array.numpy())) for name, array in arrays.items()})
        return super().configure_train(server_round, ahead, config, grid)


class Telling(FedAvg):
    """Tells clients what split clients do not know of."""

    def configure_train(self, server_round, arrays, config, grid):
        config["temperature"] = 0.5
        return super().configure_train(server_round, arrays, config, grid)


class Choosy(FedAvg):
    """Tells each client a proximal term of its own."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for number, message in enumerate(messages):
            own = ConfigRecord({**message.content["config"], "proximal-mu": 0.1 * number})
            message.content = RecordDict({**message.content, "config": own})
        return messages


class TwoModels(FedAvg):
    """Sends clients a second record of arrays."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content["variates"] = arrays.copy()
        return messages


class OtherEvaluation(FedAvg):
    """Evaluates another model."""

    def configure_evaluate(self, server_round, arrays, config, grid):
        zeros = ArrayRecord({name: Array(np.zeros_like(array.numpy())) for name, array in arrays.items()})
        return super().configure_evaluate(server_round, zeros, config, grid)


class Watch(Observer):
    """Notes who is asked to train."""

    def __init__(self):
        self.asked = []

    def on_message(self, tier, edge, direction, message):
        if tier == "edge" and direction == "downlink" and message.metadata.message_type in (SPLIT_BEGIN, "train"):
            self.asked.append(message.metadata.dst_node_id)


STRATEGIES = {
    "picky": lambda: Picky(**ANY),
    "half of them": lambda: FedAvg(**ANY, fraction_train=0.5),
    "half of them, with a server optimizer": lambda: FedAdam(**ANY, fraction_train=0.5, eta=0.05),
}


def split(federation, strategy, **options):
    """Return what makes an SFL-V1 edge that a strategy aggregates."""

    def make(name, size):
        edge = StrategyEdge(strategy(), seed=7)
        return federation.split(SplitFedV1, every(2), aggregation=edge, **options)(name, size)

    return make


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_chooses_trains_and_evaluates_as_over_whole_models(name):
    federation, strategy, watches = Federation(sizes=SIZES), STRATEGIES[name], (Watch(), Watch())
    whole = federation.run(lambda *_: StrategyEdge(strategy(), seed=7), rounds=3, observers=[watches[0]])
    halves = federation.run(split(federation, strategy), rounds=3, observers=[watches[1]])
    assert watches[0].asked == watches[1].asked
    assert len(watches[0].asked) == 3 * len(SIZES) / 2
    for one, other in zip(whole, halves, strict=True):
        assert_close(weights(other), weights(one), 1e-9)
        assert dict(other.evaluate_metrics) == pytest.approx(dict(one.evaluate_metrics), rel=1e-9)
        (own,), (expected,) = other.edges["edge-0"].updates, one.edges["edge-0"].updates
        assert own.participants == expected.participants
    assert ("own" in halves[0].evaluate_metrics) == (name == "picky")


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Lookahead, "Lookahead sends clients another model than the edge's, which split training does not pass on"),
        (
            TwoModels,
            "TwoModels sends clients other records than a model and a config, which split training does not pass on",
        ),
        (Telling, "Telling tells clients temperature, which split training does not pass on"),
        (Choosy, "Choosy tells clients different values of proximal-mu"),
    ],
)
def test_what_split_training_can_not_pass_on_is_a_failure_and_nobody_trains(strategy, reason):
    federation, watch = Federation(sizes=SIZES), Watch()
    start = federation.make_model()
    for outcome in federation.run(split(federation, lambda: strategy(**ANY)), start=start, observers=[watch]):
        assert [failure.reason for failure in outcome.edges["edge-0"].failures] == [reason]
        assert_close(weights(outcome), start.state_dict(), 0)
    assert watch.asked == []


def test_an_evaluation_of_another_model_is_a_failure_too():
    federation = Federation(sizes=SIZES)
    for outcome in federation.run(split(federation, lambda: OtherEvaluation(**ANY))):
        assert outcome.evaluate_metrics is None
        found = [failure.reason for failure in outcome.evaluations["edge-0"].failures]
        assert len(found) == len(SIZES)
        assert all("OtherEvaluation sends clients another model than the edge's" in reason for reason in found)


def test_clients_that_leave_are_failures_of_the_strategys_round_once():
    federation = Federation(sizes=SIZES)
    app = federation.app()

    def dying(message, context):
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == SPLIT_BEGIN:
            raise RuntimeError("dead")
        return app(message, context)

    class Counting(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            seen.append((len(replies), sum(reply.has_error() for reply in replies)))
            return super().aggregate_train(server_round, replies)

    seen = []
    outcomes = federation.run(split(federation, lambda: Counting(**ANY)), grid=federation.grid(dying))
    assert seen == [(6, 1), (6, 1)]
    for outcome in outcomes:
        (failure,) = outcome.edges["edge-0"].failures
        assert "dead" in failure.reason
        assert len(outcome.edges["edge-0"].updates[0].participants) == 5

"""Selection in front of an edge, and the edge that adds up gradients."""

import re
from functools import partial
from math import comb

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from espalier.clients.messages.split_names import SPLIT_END
from espalier.clients.messages.train import CPU_FREQUENCY_HZ, LOCAL_ROUNDS, TRAIN_ACCUMULATED, TRANSMIT_POWER_WATTS
from espalier.clients.shared.statistics import is_statistic
from espalier.strategies import (
    AccumulatedGradients,
    Arrivals,
    Hierarchical,
    Observer,
    ResourceAware,
    StrategyEdge,
    ask_profiles,
)
from espalier.strategies.accumulated import step
from espalier.strategies.allocation import Problem, exact
from espalier.strategies.edges import EVERYBODY
from espalier.strategies.resource_aware import Outcome
from espalier.strategies.split import SplitFedV1
from tests.strategies.split.federation import ANY, SGD, SHAPE, Federation, assert_close, same, weights

SIZES = (24, 24, 24, 24)


class Fixed:
    """Resources that never change: far and near clients, and those who are late."""

    def __init__(
        self, *, z=2, deadline_seconds=10.0, late=(), spare=None, wanted=None, max_local_rounds=3, options=1, theta=0.5
    ):
        self.z, self.deadline_seconds, self.late, self.max_local_rounds = z, deadline_seconds, late, max_local_rounds
        self.spare, self.wanted = spare, wanted
        self.options, self.theta, self.plans = options, theta, []

    def problem(self, server_round, clients):
        return Problem(
            gain=np.array([1e-9, 1e-13, 1e-10, 1e-12])[: len(clients)],
            max_frequency_hz=1e9,
            max_power_watts=0.2,
            energy_budget_joules=1.0,
            cycles_per_local_round=1e9,
            payload_bits=1e6,
            clients_per_cell=self.z,
            deadline_seconds=self.deadline_seconds,
            max_local_rounds=self.max_local_rounds,
            bandwidth_hz=540e3,
            noise_watts=2e-15,
            capacitance=2e-28,
            theta=self.theta,
        )

    def carry_out(self, server_round, clients, plan):
        self.plans.append(plan)
        late, spare = (np.isin(np.arange(len(clients)), who) for who in (self.late, self.spare or ()))
        return Outcome(late, None if self.spare is None else spare, self.wanted)

    def state_dict(self):
        return {"plans": len(self.plans)}

    def load_state_dict(self, state):
        self.restored = state


class Watch(Observer):
    def __init__(self):
        self.sent = []

    def on_message(self, tier, edge, direction, message):
        if tier == "edge" and direction == "downlink" and message.metadata.message_type != MessageType.EVALUATE:
            self.sent.append(message)


def run(federation, make_edge, observers=(), rounds=2):
    """Return the outcomes of a one-edge run, and the weights at its end and its start."""
    outcomes = federation.run(lambda name, size: make_edge(), observers=observers, rounds=rounds)
    return outcomes, weights(outcomes[-1]), federation.make_model().state_dict()


def members_of(federation):
    return [profile.node_id for profile in ask_profiles(federation.grid())]


def evaluation():
    return StrategyEdge(FedAvg(**ANY))


class Given(Fixed):
    """Resources that say of a plan what they are told to say."""

    def __init__(self, outcome):
        super().__init__()
        self.outcome = outcome

    def carry_out(self, server_round, clients, plan):
        return self.outcome


@pytest.mark.parametrize(
    ("resources", "solve", "message"),
    [
        (Fixed(), "exact", "solve is 'exact': it must be a function"),
        (object(), exact, "resources are a object without problem(): see Resources"),
        (Fixed(), lambda problem: None, "the plan's selected has shape (): it must be (4,), one for each client"),
        (Given(Outcome(np.ones(1, bool))), exact, "the outcome's late has shape (1,): it must be (4,)"),
        (Given(Outcome(np.ones(4, bool), np.ones(2, bool))), exact, "the outcome's spare has shape (2,): it must be"),
    ],
)
def test_plans_of_another_form_are_refused(resources, solve, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run(Federation(sizes=SIZES), lambda: ResourceAware(FedAvg(**ANY), resources, solve), rounds=1)


def test_a_step_along_accumulated_gradients_is_the_average_of_the_models():
    federation = Federation(sizes=SIZES)
    outcomes, accumulated, start = run(federation, lambda: AccumulatedGradients(0.05, evaluation()))
    assert [outcome.edges["edge-0"].weight for outcome in outcomes] == [1, 1]
    _, averaged, _ = run(federation, lambda: FedAvg(**ANY))
    assert_close(accumulated, averaged, 1e-12)
    assert float((accumulated["head.weight"] - start["head.weight"]).abs().max()) > 1e-3


def test_gradients_are_divided_by_the_share_of_results_that_arrived():
    federation, late = Federation(sizes=SIZES), (2,)

    def models(arrivals, late):
        inner = AccumulatedGradients(0.05, evaluation(), arrivals=arrivals)
        outcomes, *_ = run(federation, lambda: ResourceAware(inner, Fixed(late=late), exact), rounds=3)
        return [weights(outcome) for outcome in outcomes]

    estimate = Arrivals()
    plain, divided = models(None, late), models(estimate, late)
    assert (estimate.asked, estimate.arrived) == (6, 3)
    assert_close(divided[0], plain[0], 0)  # nothing was known before
    # Of two results one arrived: 1/p is 3/2.
    for name, before in plain[0].items():
        if is_statistic(name) or not before.is_floating_point():  # the last is a counter of batches
            assert torch.equal(divided[1][name], plain[1][name])
            continue
        torch.testing.assert_close(divided[1][name] - before, 1.5 * (plain[1][name] - before), rtol=0, atol=1e-12)
    assert_close(models(Arrivals(), ())[2], models(None, ())[2], 0)


class Varying(Fixed):
    """Resources whose clients are late in some rounds, or unable to take part at all."""

    def __init__(self, late_in, idle_in):
        super().__init__()
        self.late_in, self.idle_in = late_in, idle_in

    def problem(self, server_round, clients):
        self.deadline_seconds = 1e-3 if server_round in self.idle_in else 10.0
        return super().problem(server_round, clients)

    def carry_out(self, server_round, clients, plan):
        self.late = self.late_in.get(server_round, ())
        return super().carry_out(server_round, clients, plan)


class Arrived(Observer):
    """Keeps what each edge round adds up: whose gradients, and how many were asked for."""

    def __init__(self):
        self.latest, self.rounds = {}, {}

    def on_message(self, tier, edge, direction, message):
        if (tier, direction) == ("edge", "uplink") and message.metadata.message_type == TRAIN_ACCUMULATED:
            gradient = message.content["accumulated-gradient"].to_torch_state_dict()
            self.latest[message.metadata.src_node_id] = gradient

    def on_edge_round(self, server_round, edge, update):
        late = [failure for failure in update.failures if failure.node_id != EVERYBODY]
        gradients = [self.latest[node_id] for node_id in update.participants]
        self.rounds.setdefault(edge, []).append((gradients, len(gradients) + len(late)))


def test_over_global_rounds_the_model_moves_by_the_gradients_that_arrived():
    """RawHFL, eq. 17: ``w - eta sum_e sum_b alpha_b sum_u alpha_u (1_sc / p_sc) g_u``, late and idle ones too."""
    federation, arrived = Federation(sizes=(16,) * 8), Arrived()
    worlds = {
        "edge-0": Varying({1: (0,), 3: (0, 2), 4: (2,)}, {6}),
        "edge-1": Varying({2: (2,), 5: (0,)}, {1, 4}),
    }

    def edge(name, size):
        inner = AccumulatedGradients(0.05, evaluation(), arrivals=Arrivals())
        return ResourceAware(inner, worlds[name], exact)

    *_, last = federation.run(edge, num_edges=2, rounds=2, edge_rounds=3, observers=[arrived])
    expected, end = federation.make_model().state_dict(), weights(last)
    floats = [name for name, values in expected.items() if values.is_floating_point()]
    for rounds in arrived.rounds.values():
        asked_before = arrived_before = 0
        for gradients, asked in rounds:
            probability = (arrived_before + 1) / (asked_before + 1)
            for name in floats if gradients else ():
                rate = 0.05 if is_statistic(name) else 0.05 / probability
                of_edge = rate / asked * sum(gradient[name] for gradient in gradients)
                expected[name] = expected[name] - of_edge / len(arrived.rounds)
            asked_before, arrived_before = asked_before + asked, arrived_before + len(gradients)
    assert_close({n: end[n] for n in floats}, {n: expected[n] for n in floats}, 1e-13)
    counts = {name: [(len(gradients), asked) for gradients, asked in rounds] for name, rounds in arrived.rounds.items()}
    assert counts == {
        "edge-0": [(1, 2), (2, 2), (0, 2), (1, 2), (2, 2), (0, 0)],
        "edge-1": [(0, 0), (1, 2), (2, 2), (0, 0), (1, 2), (2, 2)],
    }


@pytest.mark.parametrize("asked", [0, 1, 4, 16, 64])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 1.0])
def test_the_mean_step_lacks_what_results_before_have_not_shown_yet(p, asked):
    counts = [comb(asked, k) * p**k * (1 - p) ** (asked - k) for k in range(asked + 1)]
    inverse = sum(chance / Arrivals(asked, k).probability for k, chance in enumerate(counts))
    assert p * inverse == pytest.approx(1 - (1 - p) ** (asked + 1), rel=1e-13)


def test_the_share_that_arrived_is_kept_and_checked():
    edge, other = (AccumulatedGradients(0.05, evaluation(), arrivals=Arrivals()) for _ in range(2))
    edge.arrivals.note(8, 5)
    other.load_state_dict(edge.state_dict())
    assert other.arrivals == Arrivals(8, 5)
    assert other.arrivals.probability == 6 / 9
    for asked, arrived in ((3, 4), (3, -1), (3.0, 1), (True, 1)):
        with pytest.raises(ValueError, match="can't have arrived"):
            other.load_state_dict(edge.state_dict() | {"arrivals": {"asked": asked, "arrived": arrived}})


def test_a_variance_is_not_carried_beyond_those_of_the_clients():
    start, *gradients = (ArrayRecord({"norm.running_var": Array(np.array([value]))}) for value in (1.0, 14.0, 12.0))
    after = step(start, gradients, 0.05, 2, probability=0.4)  # the clients have 0.3 and 0.4
    assert float(after["norm.running_var"].numpy()[0]) == pytest.approx(0.35, rel=1e-14)


def test_a_variance_of_zero_is_not_below_it_by_a_rounding():
    start = np.linspace(0.1, 1.0, 1000, dtype=np.float32)
    sent, gradient = (ArrayRecord({"norm.running_var": Array(values)}) for values in (start, start / 0.07))
    after = step(sent, [gradient] * 4, 0.07, 4)["norm.running_var"].numpy()
    assert 0 <= after.min() <= after.max() < 1e-6


def test_counters_move_by_the_rounded_mean_of_what_clients_counted():
    start, *counted = (ArrayRecord([np.array([number])]) for number in (10, -1, -2, -2))
    (after,) = step(start, counted, 0.05, 3).to_numpy_ndarrays()
    assert after.tolist() == [12]
    assert after.dtype == np.int64


@pytest.mark.parametrize("inner", ["accumulated", "fedavg", "split"])
def test_only_the_selected_train_and_each_by_its_own_plan(inner):
    federation, resources, watch = Federation(sizes=SIZES), Fixed(theta=0.9, deadline_seconds=2.5), Watch()
    make_inner = {
        "accumulated": lambda: AccumulatedGradients(0.05, evaluation()),
        "fedavg": evaluation,
        "split": lambda: SplitFedV1(
            federation.make_model(), lambda n: 1, SGD, input_shape=SHAPE, evaluation=evaluation()
        ),
    }[inner]
    outcomes, after, _ = run(federation, lambda: ResourceAware(make_inner(), resources, exact), [watch], rounds=1)
    (update,), (plan,) = outcomes[0].edges["edge-0"].updates, resources.plans
    members = members_of(federation)
    assert plan.selected.tolist() == [True, False, True, False]
    assert list(update.participants) == [members[0], members[2]]
    assert not update.failures
    told = {
        m.metadata.dst_node_id: next(iter(m.content.config_records.values()))
        for m in watch.sent
        if LOCAL_ROUNDS in next(iter(m.content.config_records.values()), ConfigRecord())
    }
    assert set(told) == {members[0], members[2]}
    for i in (0, 2):
        assert told[members[i]][LOCAL_ROUNDS] == plan.local_rounds[i]
        assert told[members[i]][CPU_FREQUENCY_HZ] == plan.frequency_hz[i]
        assert told[members[i]][TRANSMIT_POWER_WATTS] == plan.power_watts[i]

    # The same as a federation of these two alone whose clients have so many local epochs.
    (rounds,) = set(plan.local_rounds[[0, 2]].tolist())
    assert rounds > 1
    alone = Federation(sizes=SIZES, local_epochs=rounds)
    grid = alone.grid()
    start = ArrayRecord(alone.make_model().state_dict())
    few = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), {"edge-0": [members[0], members[2]]})
    assert_close(after, weights(next(few.rounds(grid, start, 1))))


def test_a_late_client_is_left_out_and_its_share_of_the_step_missing():
    federation, watch = Federation(sizes=SIZES), Watch()
    gradients, losses = {}, {}

    class Keep(Watch):
        def on_message(self, tier, edge, direction, message):
            if tier == "edge" and direction == "uplink" and message.metadata.message_type == TRAIN_ACCUMULATED:
                gradients[message.metadata.src_node_id] = message.content["accumulated-gradient"].to_torch_state_dict()
                losses[message.metadata.src_node_id] = message.content["metrics"]["train_loss"]

    resources = Fixed(late=(2,))
    make = lambda: ResourceAware(AccumulatedGradients(0.05, evaluation()), resources, exact)  # noqa: E731
    outcomes, after, start = run(federation, make, [watch, Keep()], rounds=1)
    (update,) = outcomes[0].edges["edge-0"].updates
    members = members_of(federation)
    assert list(update.participants) == [members[0]]
    assert [(f.node_id, f.reason) for f in update.failures] == [(members[2], "its result arrived after the deadline")]
    expected = start["head.weight"] - 0.05 / 2 * gradients[members[0]]["head.weight"]
    torch.testing.assert_close(after["head.weight"], expected, rtol=1e-12, atol=1e-12)
    assert update.metrics["train_loss"] == losses[members[0]]


def split_edge(federation):
    return SplitFedV1(federation.make_model(), lambda n: 2, SGD, input_shape=SHAPE, evaluation=evaluation())


EDGES = {
    "flower": lambda federation: evaluation(),
    "split": split_edge,
    "accumulated": lambda federation: AccumulatedGradients(0.05, evaluation()),
    "divided by arrived": lambda federation: AccumulatedGradients(0.05, evaluation(), arrivals=Arrivals()),
}


@pytest.mark.parametrize("edge", EDGES)
def test_with_spare_clients_all_is_as_if_only_the_first_had_been_selected_to_the_bit(edge):
    federation = Federation(sizes=SIZES)

    def outcomes_of(**options):
        outcomes, model, _ = run(federation, lambda: ResourceAware(EDGES[edge](federation), Fixed(**options), exact))
        return [update.participants for one in outcomes for update in one.edges["edge-0"].updates], model

    chosen, first = outcomes_of(z=2)
    assert len(chosen[0]) == 2
    for options in ({"spare": (3,)}, {"late": (3,), "wanted": 2}):
        also, model = outcomes_of(z=3, **options)
        assert chosen == also
        assert same(first, model)
    two_late, model = outcomes_of(z=3, late=(2, 3), wanted=2)
    alone, one_late = outcomes_of(z=2, late=(2,))
    assert two_late == alone
    assert same(model, one_late)
    assert len(outcomes_of(z=3)[0][0]) == 3


def test_an_edge_whose_clients_are_all_late_keeps_its_model_and_its_weight():
    federation, resources = Federation(sizes=SIZES), Fixed(late=(0, 2))
    make = lambda: ResourceAware(AccumulatedGradients(0.05, evaluation()), resources, exact)  # noqa: E731
    outcomes, after, start = run(federation, make, rounds=1)
    assert outcomes[0].edges["edge-0"].weight == 1
    assert same(after, start)


def test_a_late_client_that_failed_has_its_own_reason():
    federation = Federation(sizes=SIZES)
    inner, app = federation.app(), ClientApp()

    @app.train()
    def train(message, context):
        if context.node_config["partition-id"] == 2:
            raise MemoryError("out of memory")
        return inner(message, context)

    app.evaluate()(partial(inner.__call__))
    app.query("profile")(partial(inner.__call__))
    make_edge = lambda name, size: ResourceAware(evaluation(), Fixed(late=(2,)), exact)  # noqa: E731
    (outcome,) = federation.run(make_edge, grid=federation.grid(app), rounds=1)
    (failure,) = outcome.edges["edge-0"].updates[0].failures
    assert failure.node_id == members_of(federation)[2]
    assert "out of memory" in failure.reason


def test_the_evaluations_state_is_kept():
    strategies = [FedAdam(**ANY), FedAdam(**ANY)]
    first, second = (AccumulatedGradients(0.05, StrategyEdge(strategy)) for strategy in strategies)
    strategies[0].m_t = {"w": np.ones(2)}
    second.load_state_dict(first.state_dict())
    assert strategies[1].m_t["w"].tolist() == [1, 1]


def test_a_late_client_of_a_split_edge_is_left_out():
    federation, watch = Federation(sizes=SIZES), Watch()
    resources = Fixed(late=(0,))
    make = lambda: ResourceAware(  # noqa: E731
        SplitFedV1(federation.make_model(), lambda n: 2, SGD, input_shape=SHAPE, evaluation=evaluation()),
        resources,
        exact,
    )
    outcomes, _, _ = run(federation, make, [watch], rounds=1)
    (update,) = outcomes[0].edges["edge-0"].updates
    members = members_of(federation)
    assert list(update.participants) == [members[2]]
    assert [failure.node_id for failure in update.failures] == [members[0]]
    # Until its result is due it trains along with the others.
    sent = [
        [m.metadata.message_type for m in watch.sent if m.metadata.dst_node_id == members[i]].count(SPLIT_END)
        for i in range(4)
    ]
    assert sent == [1, 0, 1, 0]


def test_where_nobody_can_take_part_the_model_is_kept_and_the_round_counted():
    federation = Federation(sizes=SIZES)
    make = lambda: ResourceAware(evaluation(), Fixed(deadline_seconds=1e-3), exact)  # noqa: E731
    outcomes, after, start = run(federation, make)
    assert same(after, start)
    for outcome in outcomes:
        (update,) = outcome.edges["edge-0"].updates
        assert [(f.node_id, f.reason) for f in update.failures] == [(EVERYBODY, "nobody can take part: 4 for deadline")]


def test_its_state_is_the_edges_and_the_resources():
    federation, resources = Federation(sizes=SIZES), Fixed()
    edges = []
    run(federation, lambda: edges.append(ResourceAware(evaluation(), resources, exact)) or edges[0])
    state = edges[0].state_dict()
    assert state["resources"] == {"plans": 2}
    edges[0].load_state_dict(state)
    assert resources.restored == {"plans": 2}
